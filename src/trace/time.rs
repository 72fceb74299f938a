//! Pure side: points in time and lengths of time as people write them in a spreadsheet.

/// Milliseconds of a minute.
pub const MINUTE_MS: u64 = 60_000;
/// Milliseconds of an hour.
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Milliseconds of a day.
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// What a point in time may look like, for messages.
pub(super) const MOMENT: &str = "a time such as 08:30, 24:00, D+1 08:00, or 2026-11-30T08:30:00Z";
/// What a length of time may look like, for messages.
pub(super) const DURATION: &str =
    "a duration up to 10000d, such as 5h, 390m, 1h30m, 2d, 90s or PT1H30M";
/// No span is longer: GPU-milliseconds of a whole list then stay far below what a figure can hold.
pub(super) const LONGEST_MS: u64 = 10_000 * DAY_MS;

/// A point in time, as it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Moment {
    /// Since midnight of the first day of the list.
    Relative(u64),
    /// Since 1970-01-01 UTC.
    Absolute(u64),
}

/// Reads a point in time.
pub(super) fn parse_moment(text: &str) -> Option<Moment> {
    if let Some(absolute) = iso(text) {
        return Some(Moment::Absolute(absolute));
    }
    let (days, clock) = match text.strip_prefix("D+").or_else(|| text.strip_prefix("d+")) {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "00:00")),
        None => ("0", text),
    };
    let ms = number(days, 5)? * DAY_MS + time_of_day(clock)?;
    (ms <= LONGEST_MS).then_some(Moment::Relative(ms))
}

/// Reads a point in time without a date: `09:00`, `D+1 08:00`.
pub fn parse_clock(text: &str) -> Option<u64> {
    match parse_moment(text)? {
        Moment::Relative(ms) => Some(ms),
        Moment::Absolute(_) => None,
    }
}

/// Reads a point in time with a date, as milliseconds since 1970: `2026-11-30T08:30:00Z`.
pub fn parse_instant(text: &str) -> Option<u64> {
    match parse_moment(text)? {
        Moment::Absolute(ms) => Some(ms),
        Moment::Relative(_) => None,
    }
}

/// Hours and minutes, and seconds if any; hours up to 24, and 24 only as the end of the day.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hours, minutes) = (number(parts.next()?, 2)?, exactly_two(parts.next()?)?);
    let seconds = parts.next().map_or(Some(0), exactly_two)?;
    let in_day = hours < 24 && minutes < 60 && seconds < 60;
    let end_of_day = hours == 24 && minutes == 0 && seconds == 0;
    ((in_day || end_of_day) && parts.next().is_none())
        .then_some(hours * HOUR_MS + minutes * MINUTE_MS + seconds * 1_000)
}

/// `2026-11-30T08:30[:00[.250]][Z|+01[:00]|+0100]`, with a blank allowed for the T.
pub(super) fn iso(text: &str) -> Option<u64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if year.len() != 4 || parts.next().is_some() {
        return None;
    }
    let days = days_since_1970(number(year, 4)?, exactly_two(month)?, exactly_two(day)?)?;
    let (clock, zone_ms) = match rest.find(['Z', 'z', '+', '-']) {
        Some(at) => (&rest[..at], zone(&rest[at..])?),
        None => (rest, 0),
    };
    let (clock, fraction_ms) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, milliseconds(fraction)?),
        None => (clock, 0),
    };
    let local_ms = i64::try_from(days * DAY_MS + time_of_day(clock)? + fraction_ms).ok()?;
    u64::try_from(local_ms - zone_ms).ok()
}

/// How far a zone's clocks are ahead.
fn zone(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1)? {
        ("Z" | "z", "") => return Some(0),
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(parts) => parts,
        None => (digits.get(..2)?, digits.get(2..).filter(|rest| !rest.is_empty()).unwrap_or("00")),
    };
    let (hours, minutes) = (exactly_two(hours)?, exactly_two(minutes)?);
    let ahead_ms = hours * HOUR_MS + minutes * MINUTE_MS;
    (hours <= 23 && minutes <= 59).then(|| Some(sign * i64::try_from(ahead_ms).ok()?))?
}

fn milliseconds(fraction: &str) -> Option<u64> {
    let digits = fraction.get(..fraction.len().min(3))?;
    number(fraction, 9)?;
    Some(number(digits, 3)? * 10_u64.pow(3 - u32::try_from(digits.len()).ok()?))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    const LENGTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    let length = LENGTHS.get(month)? + u64::from(leap && month == 1);
    if year < 1970 || day == 0 || day > length {
        return None;
    }
    let before = year - 1;
    let days = |years: u64| 365 * years + years / 4 - years / 100 + years / 400;
    let in_year: u64 = LENGTHS[..month].iter().sum();
    Some(days(before) - days(1969) + in_year + u64::from(leap && month > 1) + day - 1)
}

/// Reads a length of time: numbers with the units w, d, h, m and s, or ISO 8601 (`PT1H30M`), where
/// what is below a day stands behind a `T`, so that `P30M`, thirty months, is no duration here.
pub fn parse_duration(text: &str) -> Option<u64> {
    const DAYS: [(char, u64); 2] = [('w', 7 * DAY_MS), ('d', DAY_MS)];
    const CLOCK: [(char, u64); 3] = [('h', HOUR_MS), ('m', MINUTE_MS), ('s', 1_000)];
    let lower = text.to_ascii_lowercase();
    let total_ms = match lower.strip_prefix('p') {
        None => units(&lower, &[DAYS.as_slice(), &CLOCK].concat())?,
        Some(rest) => match rest.split_once('t') {
            None => units(rest, &DAYS)?,
            Some(("", clock)) => units(clock, &CLOCK)?,
            Some((days, clock)) => units(days, &DAYS)?.checked_add(units(clock, &CLOCK)?)?,
        },
    };
    (total_ms <= LONGEST_MS).then_some(total_ms)
}

/// At least one number, each with its unit; units go from long to short, each once: `30m1h` and
/// `1h2h` are slips, not durations.
fn units(text: &str, known: &[(char, u64)]) -> Option<u64> {
    let (mut rest, mut known, mut total_ms) = (text, known, 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let letter = rest[digits..].chars().next()?;
        let place = known.iter().position(|(unit, _)| *unit == letter)?;
        total_ms = total_ms.checked_add(scaled(&rest[..digits], known[place].1)?)?;
        known = &known[place + 1..];
        rest = &rest[digits + letter.len_utf8()..];
    }
    Some(total_ms)
}

/// A decimal number of a unit, exactly, to the millisecond.
fn scaled(count: &str, unit_ms: u64) -> Option<u64> {
    let (whole, fraction) = count.split_once('.').unwrap_or((count, ""));
    let whole_ms = number(whole, 12)?.checked_mul(unit_ms)?;
    if fraction.is_empty() {
        return (!count.ends_with('.')).then_some(whole_ms);
    }
    let scale = 10_u64.pow(u32::try_from(fraction.len()).ok()?.min(9));
    Some(whole_ms + number(fraction, 9)? * unit_ms / scale)
}

fn exactly_two(text: &str) -> Option<u64> {
    if text.len() == 2 { number(text, 2) } else { None }
}

fn number(text: &str, most_digits: usize) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= most_digits;
    (plain && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// A point in time as a spreadsheet would show it: `08:30`, `D+1 08:30`, `08:30:05`.
pub fn clock_time(ms: u64) -> String {
    let (day, rest) = (ms / DAY_MS, ms % DAY_MS);
    let (hours, minutes, seconds) = (rest / HOUR_MS, rest / MINUTE_MS % 60, rest / 1_000 % 60);
    // The end of the first day is 24:00: that is how deadlines are written.
    let (day, hours) = if day == 1 && rest == 0 { (0, 24) } else { (day, hours) };
    let prefix = if day == 0 { String::new() } else { format!("D+{day} ") };
    let suffix = if seconds == 0 { String::new() } else { format!(":{seconds:02}") };
    format!("{prefix}{hours:02}:{minutes:02}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_in_every_form() {
        let relative = |text| match parse_moment(text) {
            Some(Moment::Relative(ms)) => Some(ms),
            _ => None,
        };
        assert_eq!(relative("02:10"), Some(130 * MINUTE_MS));
        assert_eq!(relative("2:10"), Some(130 * MINUTE_MS));
        assert_eq!(relative("24:00"), Some(DAY_MS));
        assert_eq!(relative("D+1 08:00"), Some(DAY_MS + 8 * HOUR_MS));
        assert_eq!(relative("D+2"), Some(2 * DAY_MS));
        for wrong in
            ["24:01", "25:00", "12:60", "12", "12:5", "-1:00", "noon", "", "D+x 08:00", "D+10001"]
        {
            assert_eq!(parse_moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn iso_moments_count_from_1970() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00Z", 951_782_400),
            ("2024-03-01T00:00:00", 1_709_251_200),
            ("2026-11-30T23:59:59Z", 1_796_083_199),
            ("2026-12-01T00:59:59+01:00", 1_796_083_199),
            ("2026-12-01T00:59:59+0100", 1_796_083_199),
            ("2026-11-30t18:59:59-05", 1_796_083_199),
            ("2100-03-01 00:00", 4_107_542_400),
        ] {
            assert_eq!(parse_moment(text), Some(Moment::Absolute(seconds * 1000)), "{text}");
        }
        assert_eq!(
            parse_moment("2026-11-30T00:00:00.25Z").map(|m| match m {
                Moment::Absolute(ms) | Moment::Relative(ms) => ms % 1000,
            }),
            Some(250)
        );
        for wrong in [
            "2026-02-29T00:00Z",
            "2026-13-01T00:00Z",
            "26-01-01T00:00Z",
            "2026-01-01",
            "2026-01-01T00:00Z01:00",
            "2026-01-01T00:00+24:00",
            "2026-01-01T00:00+1",
            "2026-01-01T00:00+",
            "2026-01-01T00:00\u{20ac}",
            "1970-01-01T00:00+01:00",
        ] {
            assert_eq!(parse_moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_in_every_form() {
        for (text, minutes) in [
            ("5h", 300),
            ("390m", 390),
            ("1h30m", 90),
            ("1.5h", 90),
            ("2d", 2880),
            ("PT1H30M", 90),
            ("P1DT2H", 26 * 60),
            ("120s", 2),
            ("1w", 7 * 1440),
            ("P2W", 14 * 1440),
            ("P1D", 1440),
            ("pt90m", 90),
            ("PT0.5H", 30),
            ("10000d", 14_400_000),
        ] {
            assert_eq!(parse_duration(text), Some(minutes * MINUTE_MS), "{text}");
        }
        for wrong in [
            "",
            "5",
            "h",
            "30m1h",
            "1h2h",
            "5 h",
            "1.h",
            ".5h",
            "1e3s",
            "99999999999999d",
            "10001d",
            "240001h",
            "P",
            "PT",
            "P1DT",
            "P30M",
            "P1H",
            "PT1D",
            "PTT1H",
            "PT1HT1M",
            "1hT1m",
            "1h30",
            "-5h",
            "5\u{20ac}",
            "1.2.3h",
        ] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments_read_back_as_written() {
        for text in ["00:00", "08:30", "24:00", "D+1 08:00", "D+2 00:00", "08:30:05"] {
            let Some(Moment::Relative(ms)) = parse_moment(text) else { panic!("{text}") };
            assert_eq!(clock_time(ms), text);
        }
    }
}
