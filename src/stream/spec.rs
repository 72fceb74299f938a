//! Pure: what a stream of jobs is like, and the jobs that come of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::law::{Law, LawError, exponential, unit, whole};
use crate::plan::metrics::to_f64;
use crate::plan::search::Random;
use crate::sim::{Job, Problem};
use crate::trace::{HOUR_MS, Workload};

/// A stream as the command line describes it.
#[derive(Clone, PartialEq, Debug)]
pub enum Spec {
    /// Drawn from laws.
    Drawn(Drawn),
    /// The jobs of a recorded list.
    Recorded {
        /// The list.
        path: PathBuf,
        /// Whether those of several GPUs and not all are taken too.
        wide: bool,
        /// How many times as fast they arrive.
        faster: f64,
    },
}

/// A stream that is drawn from laws; arrivals are independent of one another.
#[derive(Clone, PartialEq, Debug)]
pub struct Drawn {
    /// How many jobs.
    pub jobs: usize,
    /// How fast they arrive.
    pub arrivals: Arrivals,
    /// How many of them are larges.
    pub larges: Larges,
    /// How long smalls run.
    pub small_run: Law,
    /// How long larges run.
    pub large_run: Law,
}

/// How fast jobs arrive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// So many per hour on average.
    PerHour(f64),
    /// As fast as makes their GPU-time this share of what the nodes have until the last arrival.
    Load(f64),
}

/// How many jobs are larges.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Larges {
    /// This share of the jobs.
    Jobs(f64),
    /// As many as makes their GPU-time this share of all, on average.
    Work(f64),
}

impl Default for Drawn {
    /// Load 0.8, half of the work in larges of two to six hours, smalls of one hour.
    fn default() -> Self {
        let law = |text: &str| text.parse::<Law>();
        let (Ok(small_run), Ok(large_run)) = (law("exp:1h:max=8h"), law("uniform:2h:6h")) else {
            unreachable!("both are legal, as the test of the defaults shows")
        };
        Self {
            jobs: 10_000,
            arrivals: Arrivals::Load(0.8),
            larges: Larges::Work(0.5),
            small_run,
            large_run,
        }
    }
}

/// A text that describes no stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// Not `KEY=VALUE`.
    #[error("{0:?} is not KEY=VALUE; {KEYS}")]
    Form(String),
    /// No such key.
    #[error("there is no key {0:?}; {KEYS}")]
    Key(String),
    /// A key twice, or two that say the same thing.
    #[error("{0} and {1} cannot stand together")]
    Twice(String, String),
    /// A value of another kind.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A law of run times.
    #[error("{0}: {1}")]
    Law(String, LawError),
}

/// The keys of a stream, for help and errors.
pub const KEYS: &str = "keys are jobs, rate or load, large or large-work, small-run, large-run; \
                        or trace, faster and wide";

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut drawn = Drawn::default();
        let (mut path, mut faster, mut wide) = (None, 1.0, false);
        let mut seen: Vec<String> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some(pair) => pair,
                None if part == "wide" => (part, ""),
                None => return Err(SpecError::Form(part.into())),
            };
            let alike: &[&str] = match key {
                "rate" | "load" => &["rate", "load"],
                "large" | "large-work" => &["large", "large-work"],
                "jobs" => &["jobs"],
                "small-run" => &["small-run"],
                "large-run" => &["large-run"],
                "trace" => &["trace"],
                "faster" => &["faster"],
                "wide" => &["wide"],
                _ => return Err(SpecError::Key(key.into())),
            };
            let recorded = |key: &str| matches!(key, "trace" | "faster" | "wide");
            let clash = seen
                .iter()
                .find(|other| alike.contains(&other.as_str()) || recorded(key) != recorded(other));
            if let Some(other) = clash {
                return Err(SpecError::Twice(other.clone(), key.into()));
            }
            seen.push(key.to_owned());
            match key {
                "trace" if value.is_empty() => {
                    return Err(wrong(key, value, "the path of a job list"));
                }
                "trace" => path = Some(PathBuf::from(value)),
                "wide" if !value.is_empty() => return Err(wrong(key, value, "no value")),
                "wide" => wide = true,
                "faster" => faster = number(key, value, 0.0, 1e6, "a number above 0, such as 6")?,
                _ => drawn.set(key, value)?,
            }
        }
        match path {
            Some(path) => Ok(Self::Recorded { path, wide, faster }),
            None => match seen.iter().find(|key| matches!(key.as_str(), "faster" | "wide")) {
                Some(key) => Err(wrong(key, "…", "to stand beside trace=FILE")),
                None => Ok(Self::Drawn(drawn)),
            },
        }
    }
}

fn wrong(key: &str, value: &str, expected: &'static str) -> SpecError {
    SpecError::Value { key: key.into(), value: value.into(), expected }
}

fn number(
    key: &str,
    value: &str,
    above: f64,
    most: f64,
    expected: &'static str,
) -> Result<f64, SpecError> {
    let number: Option<f64> = value.parse().ok().filter(|&number| number > above && number <= most);
    number.ok_or_else(|| wrong(key, value, expected))
}

impl Drawn {
    fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        const SHARE: &str = "a share from 0 to 1, such as 0.1";
        let share = |value: &str| {
            let share: Option<f64> = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| wrong(key, value, SHARE))
        };
        let law =
            |value: &str| value.parse::<Law>().map_err(|error| SpecError::Law(key.into(), error));
        match key {
            "jobs" => {
                let jobs = value.parse().ok().filter(|jobs| (1..=100_000_000).contains(jobs));
                let expected = "a whole number from 1 to 100000000";
                self.jobs = jobs.ok_or_else(|| wrong(key, value, expected))?;
            }
            "rate" => self.arrivals = Arrivals::PerHour(rate(value)?),
            "load" => {
                let load = number(key, value, 0.0, 100.0, "a number above 0, such as 0.8")?;
                self.arrivals = Arrivals::Load(load);
            }
            "large" => self.larges = Larges::Jobs(share(value)?),
            "large-work" => self.larges = Larges::Work(share(value)?),
            "small-run" => self.small_run = law(value)?,
            _ => self.large_run = law(value)?,
        }
        Ok(())
    }

    /// The jobs, for nodes of so many GPUs. The same seed gives the same jobs on every machine.
    /// What is drawn for one purpose leaves what is drawn for the others as it is.
    pub fn generate(&self, gpus: u32, nodes: usize, seed: u64) -> Problem {
        let source = |purpose: u64| Random::new(Random::new(seed).bits() ^ purpose);
        let (mut gaps, mut shapes) = (source(0x6761_7073), source(0x7368_6170));
        let (mut smalls, mut larges) = (source(0x736d_616c), source(0x6c61_7267));
        let share = self.large_share(gpus);
        let mut at = 0.0;
        let mut work_ms = 0.0;
        let mut arrivals = Vec::with_capacity(self.jobs);
        let mut jobs = Vec::with_capacity(self.jobs);
        for _ in 0..self.jobs {
            at += exponential(&mut gaps);
            arrivals.push(at);
            let large = unit(&mut shapes) < share;
            let run_ms = if large {
                self.large_run.draw(&mut larges)
            } else {
                self.small_run.draw(&mut smalls)
            };
            let width = if large { gpus } else { 1 };
            work_ms += to_f64(run_ms) * f64::from(width);
            jobs.push(job(width, run_ms));
        }
        let gap_ms = match self.arrivals {
            Arrivals::PerHour(rate) => to_f64(HOUR_MS) / rate,
            Arrivals::Load(load) => {
                let all = f64::from(gpus) * to_f64(u64::try_from(nodes).unwrap_or(u64::MAX));
                work_ms / (load * all) / at
            }
        };
        for (job, at) in jobs.iter_mut().zip(arrivals) {
            job.arrival_ms = whole(at * gap_ms);
        }
        problem(jobs, gpus, nodes)
    }

    fn large_share(&self, gpus: u32) -> f64 {
        match self.larges {
            Larges::Jobs(share) => share,
            Larges::Work(share) => {
                let small = self.small_run.mean_ms();
                let large = self.large_run.mean_ms() * f64::from(gpus);
                share * small / (share * small + (1.0 - share) * large)
            }
        }
    }
}

fn rate(value: &str) -> Result<f64, SpecError> {
    const EXPECTED: &str = "jobs per time, such as 0.5/s, 3/m, 12/h or 100/d";
    let parsed = value.split_once('/').and_then(|(count, unit)| {
        let count: f64 = count.parse().ok().filter(|&count| count > 0.0 && count <= 1e9)?;
        let per_hour = match unit {
            "s" => 3600.0,
            "m" | "min" => 60.0,
            "h" => 1.0,
            "d" => 1.0 / 24.0,
            _ => return None,
        };
        Some(count * per_hour)
    });
    parsed.ok_or_else(|| wrong("rate", value, EXPECTED))
}

/// Jobs of a stream have no names: there may be millions.
fn job(width: u32, run_ms: u64) -> Job {
    Job {
        name: String::new(),
        kind: String::new(),
        priority: 1,
        arrival_ms: 0,
        deadline_ms: None,
        width,
        estimate_ms: run_ms,
        run_ms,
        wider: Vec::new(),
    }
}

fn problem(jobs: Vec<Job>, gpus: u32, nodes: usize) -> Problem {
    Problem {
        gpus,
        nodes,
        step_ms: 1,
        // Work is run to its end, whenever that is.
        horizon_ms: u64::MAX / 4,
        churn_limit: gpus,
        jobs,
        services: Vec::new(),
        inherited: Vec::new(),
    }
}

/// The one-GPU and whole-node jobs of a list, with `wide` also those between, and how many others
/// were left out.
pub fn recorded(
    list: &Workload,
    faster: f64,
    wide: bool,
    gpus: u32,
    nodes: usize,
) -> (Problem, usize) {
    let fits = |width: u32| width == 1 || width == gpus || (wide && (1..gpus).contains(&width));
    let mut jobs = Vec::new();
    for one in list.jobs.iter().filter(|job| fits(job.min_gpus)) {
        let run_ms = one.ran_ms().unwrap_or(one.expected_ms).max(1);
        let arrival_ms = whole(to_f64(one.arrival_ms) / faster);
        jobs.push(Job { arrival_ms, ..job(one.min_gpus, run_ms) });
    }
    jobs.sort_by_key(|job| job.arrival_ms);
    let first_ms = jobs.first().map_or(0, |job| job.arrival_ms);
    for job in &mut jobs {
        job.arrival_ms -= first_ms;
    }
    let left_out = list.jobs.len() - jobs.len() + list.services.len();
    (problem(jobs, gpus, nodes), left_out)
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recorded { path, wide, faster } => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                write!(f, "trace={}", name.to_string_lossy())?;
                if (faster - 1.0).abs() > f64::EPSILON {
                    write!(f, ",faster={faster}")?;
                }
                if *wide { write!(f, ",wide") } else { Ok(()) }
            }
            Self::Drawn(drawn) => {
                match drawn.arrivals {
                    Arrivals::PerHour(rate) => write!(f, "rate={rate}/h"),
                    Arrivals::Load(load) => write!(f, "load={load}"),
                }?;
                match drawn.larges {
                    Larges::Jobs(share) => write!(f, ",large={share}"),
                    Larges::Work(share) => write!(f, ",large-work={share}"),
                }?;
                let Drawn { jobs, small_run, large_run, .. } = drawn;
                write!(f, ",small-run={small_run},large-run={large_run},jobs={jobs}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> Drawn {
        match text.parse() {
            Ok(Spec::Drawn(drawn)) => drawn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_stream_is_read_as_it_is_written() {
        let text = "rate=12/h,large=0.1,small-run=lognormal:1h:sigma=1:max=12h,\
                    large-run=uniform:2h:6h,jobs=100000";
        assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        assert_eq!("".parse(), Ok(Spec::Drawn(Drawn::default())));
        assert_eq!(drawn("rate=3/m"), drawn("rate=180/h"));
        let trace = "trace=data/a.csv, faster=6".parse::<Spec>().unwrap();
        assert_eq!(trace.to_string(), "trace=a.csv,faster=6");
        let wide = "wide,trace=data/a.csv".parse::<Spec>().unwrap();
        assert_eq!(wide.to_string(), "trace=a.csv,wide");
    }

    #[test]
    fn wrong_streams_say_what_is_wrong() {
        for (text, part) in [
            ("jobs", "\"jobs\" is not KEY=VALUE; keys are jobs"),
            ("size=3", "no key \"size\"; keys are jobs"),
            ("jobs=0", "jobs=0: expected a whole number"),
            ("jobs=10,jobs=20", "jobs and jobs cannot stand together"),
            ("rate=12/h,load=0.8", "rate and load cannot stand together"),
            ("large=0.1,large-work=0.1", "large and large-work cannot stand together"),
            ("rate=12", "such as 0.5/s"),
            ("rate=-1/h", "such as 0.5/s"),
            ("load=0", "a number above 0"),
            ("large=1.5", "a share from 0 to 1"),
            ("small-run=exp", "small-run: \"exp\" is no law"),
            ("trace=a.csv,load=0.5", "trace and load cannot stand together"),
            ("load=0.5,trace=a.csv", "load and trace cannot stand together"),
            ("faster=2", "to stand beside trace=FILE"),
            ("wide", "to stand beside trace=FILE"),
            ("trace=a.csv,wide=yes", "wide=yes: expected no value"),
            ("load=0.5,wide", "load and wide cannot stand together"),
            ("trace=", "the path of a job list"),
        ] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_load_is_met_exactly_and_the_shares_nearly() {
        let problem = drawn("jobs=20000,load=0.7,large-work=0.3").generate(8, 2, 5);
        let work = |width: u32| -> u64 {
            let jobs = problem.jobs.iter().filter(|job| job.width == width);
            jobs.map(|job| job.run_ms * u64::from(width)).sum()
        };
        let (smalls, larges) = (to_f64(work(1)), to_f64(work(8)));
        let span = problem.jobs.last().map_or(0.0, |job| to_f64(job.arrival_ms));
        assert!(((smalls + larges) / span / 16.0 - 0.7).abs() < 1e-6);
        assert!((larges / (smalls + larges) - 0.3).abs() < 0.03);
        assert!(problem.jobs.is_sorted_by_key(|job| job.arrival_ms));
    }

    #[test]
    fn the_same_seed_gives_the_same_jobs() {
        let spec = drawn("jobs=500");
        assert_eq!(spec.generate(8, 1, 3), spec.generate(8, 1, 3));
        assert_ne!(spec.generate(8, 1, 3), spec.generate(8, 1, 4));
        // The arrival law leaves run times as they are.
        let runs = |spec: &Drawn| -> Vec<u64> {
            spec.generate(8, 1, 3).jobs.iter().map(|job| job.run_ms).collect()
        };
        assert_eq!(runs(&spec), runs(&drawn("jobs=500,rate=1/h")));
    }
}
