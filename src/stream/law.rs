//! Pure: how long jobs run, drawn from a law with a seed.
//!
//! Logarithms and powers come from `libm`, which computes the same bits on every machine; those of
//! the system do not.

use std::fmt;
use std::str::FromStr;

use crate::plan::metrics::to_f64;
use crate::plan::search::Random;
use crate::trace::parse_duration;

/// A law of run times, cut off at a longest one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Law {
    form: Form,
    most_ms: Option<u64>,
}

/// Lengths in milliseconds. Means are those before the longest runs are cut.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Fixed { mean_ms: f64 },
    Uniform { least_ms: f64, most_ms: f64 },
    Exponential { mean_ms: f64 },
    Lognormal { mean_ms: f64, sigma: f64 },
    Pareto { mean_ms: f64, alpha: f64 },
}

/// What laws look like.
const FORMS: &str = "fixed:1h, uniform:30m:90m, exp:1h, lognormal:1h:sigma=1 or \
                         pareto:1h:alpha=1.5, each but the first two with :max=8h at will";

/// A text that is no law.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no law of run times: {problem}; write {FORMS}")]
pub struct LawError {
    text: String,
    problem: String,
}

impl FromStr for Law {
    type Err = LawError;

    fn from_str(text: &str) -> Result<Self, LawError> {
        parse(text).map_err(|problem| LawError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Law, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let length = |part: Option<&str>| {
        let part = part.ok_or("a length such as 1h is missing")?;
        let ms = parse_duration(part).filter(|&ms| ms > 0);
        ms.ok_or_else(|| format!("{part:?} is no length such as 90m, 1h30m or 2d"))
    };
    let first_ms = length(parts.next())?;
    let mean_ms = to_f64(first_ms);
    if name == "fixed" || name == "uniform" {
        let last_ms = if name == "fixed" { first_ms } else { length(parts.next())? };
        if last_ms < first_ms {
            return Err("the longest is shorter than the shortest".into());
        }
        if let Some(extra) = parts.next() {
            return Err(format!("{extra:?} is too much"));
        }
        let uniform = Form::Uniform { least_ms: mean_ms, most_ms: to_f64(last_ms) };
        let form = if name == "fixed" { Form::Fixed { mean_ms } } else { uniform };
        return Ok(Law { form, most_ms: None });
    }
    let (mut most_ms, mut sigma, mut alpha) = (None, None, None);
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match (name, key) {
            (_, "max") => most_ms = Some(length(Some(value))?),
            ("lognormal", "sigma") => sigma = Some(positive(key, value, 0.0, 4.0)?),
            // Nearer to 1 most of the mean lies in lengths that no stream is long enough to see.
            ("pareto", "alpha") => alpha = Some(positive(key, value, 1.05, 100.0)?),
            _ => return Err(format!("{part:?} means nothing here")),
        }
    }
    let form = match name {
        "exp" => Form::Exponential { mean_ms },
        "lognormal" => Form::Lognormal { mean_ms, sigma: sigma.unwrap_or(1.0) },
        "pareto" => Form::Pareto { mean_ms, alpha: alpha.unwrap_or(1.5) },
        _ => return Err(format!("{name:?} is unknown")),
    };
    Ok(Law { form, most_ms })
}

fn positive(key: &str, value: &str, above: f64, most: f64) -> Result<f64, String> {
    let number: Option<f64> = value.parse().ok().filter(|&number| number > above && number <= most);
    number.ok_or_else(|| format!("{key} is {value:?}, not a number above {above} up to {most}"))
}

/// A number in the middle of one of 2^53 equal parts between zero and one: neither of both.
pub(super) fn unit(random: &mut Random) -> f64 {
    (to_f64(random.bits() >> 11) + 0.5) / 9_007_199_254_740_992.0
}

/// A draw of an exponential law with mean one.
pub(super) fn exponential(random: &mut Random) -> f64 {
    -libm::log(unit(random))
}

impl Law {
    /// A run time in milliseconds, at least one.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let ms = match self.form {
            Form::Fixed { mean_ms } => mean_ms,
            Form::Uniform { least_ms, most_ms } => least_ms + (most_ms - least_ms) * unit(random),
            Form::Exponential { mean_ms } => mean_ms * exponential(random),
            Form::Lognormal { mean_ms, sigma } => {
                let median_ms = mean_ms * libm::exp(-sigma * sigma / 2.0);
                let radius = libm::sqrt(2.0 * exponential(random));
                let normal = radius * libm::cos(2.0 * std::f64::consts::PI * unit(random));
                median_ms * libm::exp(sigma * normal)
            }
            Form::Pareto { mean_ms, alpha } => {
                let least_ms = mean_ms * (alpha - 1.0) / alpha;
                least_ms * libm::pow(unit(random), -1.0 / alpha)
            }
        };
        whole(ms).clamp(1, self.most_ms.unwrap_or(u64::MAX))
    }

    /// The mean of what [`Law::draw`] gives, in milliseconds, to about half a per cent: taken from
    /// draws of their own, so that cut tails count as they are cut.
    pub fn mean_ms(&self) -> f64 {
        const DRAWS: u32 = 100_000;
        let mut random = Random::new(0x6d65_616e);
        let sum: f64 = (0..DRAWS).map(|_| to_f64(self.draw(&mut random))).sum();
        sum / f64::from(DRAWS)
    }
}

/// To the nearest whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what both hold exactly"
)]
pub(super) fn whole(value: f64) -> u64 {
    libm::round(value).clamp(0.0, 9e15) as u64
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |ms: f64| super::span(whole(ms));
        match self.form {
            Form::Fixed { mean_ms } => write!(f, "fixed:{}", span(mean_ms)),
            Form::Uniform { least_ms, most_ms } => {
                write!(f, "uniform:{}:{}", span(least_ms), span(most_ms))
            }
            Form::Exponential { mean_ms } => write!(f, "exp:{}", span(mean_ms)),
            Form::Lognormal { mean_ms, sigma } => {
                write!(f, "lognormal:{}:sigma={sigma}", span(mean_ms))
            }
            Form::Pareto { mean_ms, alpha } => write!(f, "pareto:{}:alpha={alpha}", span(mean_ms)),
        }?;
        self.most_ms.map_or(Ok(()), |most| write!(f, ":max={}", super::span(most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn law(text: &str) -> Law {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn means_are_as_asked_and_tails_are_cut() {
        for (text, mean_min, within) in [
            ("fixed:1h", 60.0, 0.001),
            ("uniform:30m:90m", 60.0, 0.01),
            ("exp:1h", 60.0, 0.02),
            // The part above eight means is worth e^-8 of a mean.
            ("exp:1h:max=8h", 60.0 * (1.0 - (-8.0_f64).exp()), 0.02),
            ("lognormal:1h:sigma=1", 60.0, 0.03),
            // m (1 - (x/c)^(a-1) / a) with x = m/3, c = 30 m, a = 1.5.
            ("pareto:1h:alpha=1.5:max=30h", 60.0 * (1.0 - (1.0_f64 / 90.0).sqrt() / 1.5), 0.03),
        ] {
            let mean = law(text).mean_ms() / 60_000.0;
            assert!((mean / mean_min - 1.0).abs() < within, "{text}: {mean} min");
        }
        let mut random = Random::new(1);
        let cut = law("exp:1h:max=2h");
        assert_eq!((0..1000).map(|_| cut.draw(&mut random)).max(), Some(7_200_000));
    }

    #[test]
    fn laws_are_read_as_they_are_written() {
        for text in ["fixed:1h", "uniform:30m:1h30m", "exp:1h:max=8h", "lognormal:2d:sigma=0.5"] {
            assert_eq!(law(text).to_string(), text);
        }
        assert_eq!(law("pareto:1h"), law("pareto:1h:alpha=1.5"));
    }

    #[test]
    fn wrong_laws_say_what_is_wrong() {
        for (text, part) in [
            ("", "length such as 1h is missing"),
            ("exp", "length such as 1h is missing"),
            ("exp:1", "no length such as"),
            ("exp:0h", "no length such as"),
            ("gauss:1h", "\"gauss\" is unknown"),
            ("exp:1h:sigma=1", "\"sigma=1\" means nothing here"),
            ("pareto:1h:alpha=1.01", "not a number above 1.05"),
            ("lognormal:1h:sigma=wide", "not a number above 0"),
            ("uniform:2h:1h", "shorter than the shortest"),
            ("fixed:1h:max=2h", "too much"),
        ] {
            let error = text.parse::<Law>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("uniform:30m:90m"), "{text}: {error}");
        }
    }
}
