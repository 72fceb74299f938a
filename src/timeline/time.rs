//! Pure side: points in time and lengths of time as people read them.

/// A length of time, three or four figures long: `850 ms`, `9.4 s`, `1 m 20 s`, `2 h 05 m`.
pub(crate) fn length(ms: u64) -> String {
    // What rounds up to a minute is written as one.
    let seconds = ms.saturating_add(500) / 1000;
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..59_950 => {
            let tenths = (ms + 50) / 100;
            format!("{}.{} s", tenths / 10, tenths % 10)
        }
        _ if seconds < 3600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A point in time in UTC, to the second.
pub(crate) fn utc(ms: u64) -> String {
    let seconds = ms / 1000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day counted from 1970-01-01 (Gregorian calendar).
///
/// Years begin in March here, so that a leap day is the last day of its year and the lengths of
/// the months before it repeat every five months.
fn date(day: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468; // from 0000-03-01
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = day + DAYS_TO_1970;
    let (era, day) = (day / DAYS_IN_400_YEARS, day % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + later, month, day_of_month)
}

/// Distance of the ticks of an axis: the smallest usual one that needs at most `most` of them.
pub(super) fn tick_step_ms(span_ms: u64, most: u64) -> u64 {
    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    #[rustfmt::skip]
    const STEPS: [u64; 27] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000,
        MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
        HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
    ];
    let most = most.max(1);
    let usual = STEPS.into_iter().find(|step| span_ms / step <= most);
    usual.unwrap_or_else(|| span_ms.div_ceil(most).div_ceil(DAY) * DAY)
}

/// Label of a tick, in the unit that the distance of the ticks asks for.
pub(super) fn tick(ms: u64, step_ms: u64, span_ms: u64) -> String {
    if step_ms < 1000 && span_ms < 1000 {
        format!("{ms} ms")
    } else if step_ms < 1000 {
        let tenths = ms / 100;
        if ms.is_multiple_of(100) {
            format!("{}.{} s", tenths / 10, tenths % 10)
        } else {
            format!("{}.{:03} s", ms / 1000, ms % 1000)
        }
    } else if span_ms < 120_000 {
        format!("{} s", ms / 1000)
    } else if span_ms < 7_200_000 {
        format!("{}:{:02}", ms / 60_000, ms / 1000 % 60)
    } else {
        format!("{}:{:02} h", ms / 3_600_000, ms / 60_000 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_796_083_199, "2026-11-30 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds * 1000), expected);
        }
    }

    #[test]
    fn lengths_keep_their_figures() {
        for (ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (9_449, "9.4 s"),
            (59_949, "59.9 s"),
            (59_950, "1 m 00 s"),
            (80_000, "1 m 20 s"),
            (3_599_499, "59 m 59 s"),
            (3_599_500, "1 h 00 m"),
            (7_500_000, "2 h 05 m"),
            (u64::MAX, "5124095576030 h 25 m"),
        ] {
            assert_eq!(length(ms), expected);
        }
    }

    #[test]
    fn an_axis_has_a_bounded_number_of_ticks() {
        for span in [0, 1, 7, 999, 42_300, 600_000, 86_400_000, 400 * 86_400_000] {
            let step = tick_step_ms(span, 10);
            assert!(span / step <= 10, "{span} ms, {step} ms");
        }
        assert_eq!(tick_step_ms(42_300, 10), 5000);
        assert_eq!(tick(65_000, 5000, 100_000), "65 s");
        assert_eq!(tick(65_000, 5000, 150_000), "1:05");
        assert_eq!(tick(1500, 500, 4000), "1.5 s");
    }
}
