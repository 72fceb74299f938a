//! Pure: the enforced limit of each job's run time, which is all that a contender may know of it.

use std::fmt;
use std::str::FromStr;

use crate::policy::Shape;
use crate::sim::{Job, Problem};

/// How limits are set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limits {
    /// So many thousandths of the run time: 1000 is a user who knows it exactly.
    Times(u32),
    /// One limit for each shape, the longest run of it: nobody says anything.
    Class,
}

/// A text that says nothing of limits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} says nothing of limits: write exact, class, or a factor from x1 to x100 such as x1.5"
)]
pub struct LimitsError(String);

impl FromStr for Limits {
    type Err = LimitsError;

    fn from_str(text: &str) -> Result<Self, LimitsError> {
        let factor = || {
            let (whole, part) =
                text.strip_prefix('x')?.split_once('.').unwrap_or((&text[1..], "0"));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let short = digits(whole) && digits(part) && whole.len() <= 3 && part.len() <= 3;
            let whole: u32 = whole.parse().ok().filter(|_| short)?;
            let part: u32 = format!("{part:0<3}").parse().ok()?;
            Some(Self::Times(whole * 1000 + part)).filter(|_| (1..=100).contains(&whole))
        };
        match text {
            "exact" => Ok(Self::Times(1000)),
            "class" => Ok(Self::Class),
            _ => factor().ok_or_else(|| LimitsError(text.to_owned())),
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class => f.pad("class"),
            Self::Times(1000) => f.pad("exact"),
            Self::Times(factor) => f.pad(&format!("x{}", f64::from(*factor) / 1000.0)),
        }
    }
}

/// The longest limit of each shape, or zero where no job has that shape. Wide ones count as smalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Longest {
    /// S: of smalls.
    pub small_ms: u64,
    /// L: of larges.
    pub large_ms: u64,
}

impl Longest {
    /// Of the limits that the jobs have.
    pub fn of(problem: &Problem) -> Self {
        let mut longest = Self::default();
        for job in &problem.jobs {
            let known = longest.of_mut(shape(problem, job));
            *known = job.estimate_ms.max(*known);
        }
        longest
    }

    fn of_mut(&mut self, shape: Shape) -> &mut u64 {
        if shape == Shape::Large { &mut self.large_ms } else { &mut self.small_ms }
    }
}

/// The shape of a job of a stream.
pub(super) fn shape(problem: &Problem, job: &Job) -> Shape {
    match job.width {
        width if width == problem.gpus => Shape::Large,
        1 => Shape::Small,
        width => Shape::Wide(width),
    }
}

impl Limits {
    /// Gives each job its limit.
    pub fn apply(self, problem: &mut Problem) {
        for job in &mut problem.jobs {
            job.estimate_ms = match self {
                Self::Times(factor) => (job.run_ms * u64::from(factor)).div_ceil(1000),
                Self::Class => job.run_ms,
            };
        }
        if self == Self::Class {
            let mut longest = Longest::of(problem);
            let gpus = problem.gpus;
            for job in &mut problem.jobs {
                let shape = if job.width == gpus { Shape::Large } else { Shape::Small };
                job.estimate_ms = *longest.of_mut(shape);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        for (text, limits) in [
            ("exact", Limits::Times(1000)),
            ("x1.5", Limits::Times(1500)),
            ("x3", Limits::Times(3000)),
            ("x1.05", Limits::Times(1050)),
            ("class", Limits::Class),
        ] {
            assert_eq!(text.parse(), Ok(limits));
            assert_eq!(limits.to_string(), text);
        }
        for text in ["", "1.5", "x", "x0.5", "x1.", "x1000", "x+1", "none"] {
            assert!(text.parse::<Limits>().is_err(), "{text}");
        }
    }
}
