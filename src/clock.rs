//! The one place where time is read. Everything else is given the time as a value, or a [`Clock`],
//! so that it can be tested and replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::policy::Millis;

/// Now, in milliseconds of the Unix epoch; zero on a machine whose clock is before it.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Tells the time of day to what decides by time at moments of its own choosing.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until it is moved; clones move together.
    pub fn manual(start: Millis) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(start.0))))
    }

    /// Moves a manual clock on by `span`. The machine's clock is not ours to move.
    pub fn advance(&self, span: Millis) {
        match &self.0 {
            Source::System => {}
            Source::Manual(millis) => {
                millis.fetch_add(span.0, Ordering::SeqCst);
            }
        }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now(&self) -> Millis {
        match &self.0 {
            Source::System => now(),
            Source::Manual(millis) => Millis(millis.load(Ordering::SeqCst)),
        }
    }
}

/// A point on the clock that never steps back: for time limits within this process.
#[cfg(feature = "cluster")]
pub fn instant() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A time of a Kubernetes object as the policy counts. Before the epoch is the epoch.
#[cfg(feature = "cluster")]
pub fn to_millis(time: jiff::Timestamp) -> Millis {
    Millis(u64::try_from(time.as_millisecond()).unwrap_or(0))
}

/// A time of the policy as a Kubernetes object has it. What lies beyond the calendar is its end.
#[cfg(feature = "cluster")]
pub fn to_timestamp(millis: Millis) -> jiff::Timestamp {
    let millis = i64::try_from(millis.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "cluster")]
    #[test]
    fn both_ways_give_the_same_time() {
        for millis in [0, 1, 1_796_000_000_123] {
            assert_eq!(to_millis(to_timestamp(Millis(millis))), Millis(millis));
        }
        assert_eq!(to_timestamp(Millis(u64::MAX)), jiff::Timestamp::MAX);
        assert_eq!(to_millis(jiff::Timestamp::MIN), Millis(0));
    }

    #[test]
    fn a_manual_clock_moves_for_all_its_clones() {
        let clock = Clock::manual(Millis(1_000));
        let other = clock.clone();
        clock.advance(Millis(500));
        assert_eq!(other.now(), Millis(1_500));
    }
}
