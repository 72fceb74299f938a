//! The one place where time is read. Everything else is given the time as a value, so that it can
//! be tested and replayed.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::policy::Millis;

/// Now, in milliseconds of the Unix epoch; zero on a machine whose clock is before it.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
