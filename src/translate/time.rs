//! Pure: points in time, between the policy's milliseconds and the API's whole seconds.
//!
//! The API writes whole seconds. What began is rounded down and what ends is rounded up, so that a
//! state read back from the ledger never promises an earlier end than the one it was written from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::policy::Millis;

const SECOND_MS: u64 = 1_000;

/// The policy's point in time. Times before the Unix epoch, which no cluster has, become zero.
pub fn millis(time: &Time) -> Millis {
    Millis(u64::try_from(time.0.as_millisecond()).unwrap_or_default())
}

/// A beginning, rounded down to the second.
pub fn began(at: Millis) -> Time {
    seconds(at.0 / SECOND_MS)
}

/// An end, rounded up to the second.
pub fn ends(at: Millis) -> Time {
    seconds(at.0.div_ceil(SECOND_MS))
}

/// A span of whole seconds as the API gives it; negative ones become zero.
pub fn span(seconds: i64) -> Millis {
    Millis::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// A point in time as a person reads it in a message.
pub fn spoken(at: Millis) -> String {
    let time = ends(at);
    time.0.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// The point in time that [`spoken`] says in these words.
pub fn heard(text: &str) -> Option<Millis> {
    let time: Timestamp = format!("{}Z", text.strip_suffix(" UTC")?).parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(Millis)
}

fn seconds(seconds: u64) -> Time {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    // Beyond the year 9999 there is no timestamp; "for ever" is written as its last second.
    Time(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_round_down_and_ends_round_up() {
        let at = Millis(1_700_000_000_400);
        assert_eq!(millis(&began(at)), Millis(1_700_000_000_000));
        assert_eq!(millis(&ends(at)), Millis(1_700_000_001_000));
        assert_eq!(millis(&ends(Millis(1_700_000_000_000))), Millis(1_700_000_000_000));
    }

    #[test]
    fn for_ever_is_a_time_too() {
        assert_eq!(ends(Millis(u64::MAX)).0, Timestamp::MAX);
        assert_eq!(spoken(Millis(1_700_000_000_001)), "2023-11-14 22:13:21 UTC");
    }

    #[test]
    fn what_is_said_is_heard() {
        for at in [0, 1_000, 1_700_000_001_000, 253_402_207_200_000] {
            assert_eq!(heard(&spoken(Millis(at))), Some(Millis(at)));
        }
        assert_eq!(heard(&spoken(Millis(1_700_000_000_001))), Some(Millis(1_700_000_001_000)));
        for other in
            ["", "soon", "2023-11-14 22:13:21", "2023-11-14 UTC", "1960-01-01 00:00:00 UTC"]
        {
            assert_eq!(heard(other), None, "{other}");
        }
    }
}
