//! Pure side: streams of one-GPU and whole-node jobs, drawn from laws or recorded, through the
//! live rule and its rivals in virtual time, and what each makes of them.
//!
//! ```text
//! spec, law ─► Problem ─► contender ─► sim::run(meter(policy)) ─► measure ─► report, plot, lanes
//! ```
//!
//! One stream goes to all contenders, so that only who decides differs. A contender knows of each
//! job its shape and an enforced limit of its run time (`limits.rs`), never the run time itself.

pub mod contender;
mod lanes;
mod law;
mod limits;
mod measure;
mod meter;
mod plot;
mod report;
mod spec;
mod style;

pub use contender::{Contender, ContenderError};
pub use lanes::{Window, draw as lanes};
pub use law::{Law, LawError};
pub use limits::{Limits, LimitsError, Longest};
pub use measure::{Figures, Measured, Waits, play};
pub use plot::draw as plot;
pub use report::Report;
pub use spec::{Arrivals, Drawn, KEYS, Larges, Spec, SpecError, recorded};

use crate::trace::{DAY_MS, HOUR_MS, MINUTE_MS};

/// A length of time as `parse_duration` reads it: `1h30m`, `2d`, `45s`; parts of a second are
/// dropped where there are whole ones.
pub(crate) fn span(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1_000 {
        return format!("0.{ms:03}s");
    }
    let parts = [
        (ms / DAY_MS, "d"),
        (ms % DAY_MS / HOUR_MS, "h"),
        (ms % HOUR_MS / MINUTE_MS, "m"),
        (ms % MINUTE_MS / 1_000, "s"),
    ];
    let parts = parts.into_iter().filter(|&(count, _)| count > 0);
    let parts: Vec<String> = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    parts.concat()
}

/// A length of time for people, to two units at most.
pub(crate) fn short(ms: u64) -> String {
    match ms {
        0..60_000 => span(ms),
        60_000..HOUR_MS => span(ms / 1_000 * 1_000),
        HOUR_MS..DAY_MS => span(ms / MINUTE_MS * MINUTE_MS),
        _ => span(ms / HOUR_MS * HOUR_MS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse_duration;

    #[test]
    fn spans_read_back_as_written() {
        for text in ["0.250s", "45s", "1h30m", "2d", "1d2h3m4s"] {
            assert_eq!(parse_duration(text).map(span).as_deref(), Some(text));
        }
        assert_eq!(short(93_784_000), "1d2h");
        assert_eq!(short(5_430_000), "1h30m");
    }
}
