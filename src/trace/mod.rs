//! Pure side: what work there was, read from the files that people have of it.
//!
//! A [`Workload`] comes from a job list in CSV, from the layout of the Microsoft ITP traces, from
//! the Standard Workload Format, or from the JSON lines that `sluice record` writes. Whatever is
//! wrong with a file is a [`Fault`] that names file, line, column, what was found and what is
//! allowed; all of them are reported at once, and a workload with a fault is not used.

mod demand;
mod fault;
mod itp;
mod jobs;
mod records;
mod swf;
mod table;
mod time;

use std::collections::BTreeSet;

use serde::Serialize;

pub use fault::{Fault, Faults};
pub use time::{DAY_MS, HOUR_MS, MINUTE_MS, clock_time, parse_clock, parse_duration};

/// One file, as given and as read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// What is in it.
    pub content: &'a str,
}

/// The layout of a job list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// CSV with the columns of docs/planning.md.
    Jobs,
    /// CSV of the Microsoft ITP traces: `job_id, submission_time, duration, num_gpu`.
    Itp,
    /// Standard Workload Format: 18 fields separated by blanks.
    Swf,
    /// JSON lines of `sluice record`.
    Records,
}

impl Format {
    /// Recognises a layout by the first line that says something.
    pub fn of(content: &str) -> Self {
        let line = content.lines().map(str::trim).find(|line| !line.is_empty());
        let line = line.unwrap_or_default();
        if line.starts_with('{') {
            Self::Records
        } else if line.starts_with(';') || swf::looks_like(line) {
            Self::Swf
        } else if line.contains("submission_time") {
            Self::Itp
        } else {
            Self::Jobs
        }
    }
}

/// A fact that a file may or may not contain, by the name of its column.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// How much a job matters.
    Priority,
    /// By when it is to end.
    Deadline,
    /// How long it was expected to run.
    ExpectedDuration,
    /// When it really started.
    ActualStart,
    /// When it really ended.
    ActualEnd,
    /// On which GPUs it ran, or which were reserved for a service.
    GpuIds,
    /// How it ended.
    Outcome,
    /// Whose it is.
    User,
}

impl Column {
    /// The name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::Deadline => "deadline",
            Self::ExpectedDuration => "expected_duration",
            Self::ActualStart => "actual_start",
            Self::ActualEnd => "actual_end",
            Self::GpuIds => "gpu_ids",
            Self::Outcome => "outcome",
            Self::User => "user",
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// By itself, with success.
    Completed,
    /// With failure.
    Failed,
    /// Somebody ended it.
    Cancelled,
    /// It still ran when the list was made.
    Running,
}

/// What really happened with a job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Actual {
    /// When it started.
    pub start_ms: Option<u64>,
    /// When it ended.
    pub end_ms: Option<u64>,
    /// On which GPUs.
    pub gpus: Vec<u32>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// One job that runs once, from start to end, without interruption.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Job {
    /// Its name.
    pub id: String,
    /// What kind of work it is.
    pub kind: String,
    /// Whose it is.
    pub user: Option<String>,
    /// How much it matters, from 1.
    pub priority: u32,
    /// When it arrived.
    pub arrival_ms: u64,
    /// By when it is to end.
    pub deadline_ms: Option<u64>,
    /// The fewest GPUs that it runs on, which is also what it is given.
    pub min_gpus: u32,
    /// The most GPUs that it could use.
    pub max_gpus: u32,
    /// How long it was expected to run on `min_gpus`.
    pub expected_ms: u64,
    /// What really happened.
    pub actual: Actual,
    /// Where it stands in the file.
    pub line: u64,
}

impl Job {
    /// How long it really ran, where that is known and it ended by itself.
    pub fn ran_ms(&self) -> Option<u64> {
        let (start, end) = (self.actual.start_ms?, self.actual.end_ms?);
        let whole = matches!(self.actual.outcome, None | Some(Outcome::Completed));
        whole.then(|| end.saturating_sub(start))
    }
}

/// A real-time service, whose demand for GPUs changes over the day.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Service {
    /// Its name.
    pub id: String,
    /// What kind of work it is.
    pub kind: String,
    /// How much it matters, from 1.
    pub priority: u32,
    /// From when it serves.
    pub arrival_ms: u64,
    /// Until when it serves.
    pub deadline_ms: Option<u64>,
    /// The floor: it holds that many even without demand.
    pub min_gpus: u32,
    /// The peak, which a scheduler without a forecast reserves all day.
    pub max_gpus: u32,
    /// GPUs in demand from a moment on, in ascending order of time.
    pub demand: Vec<(u64, u32)>,
    /// GPUs that were reserved for it.
    pub reserved: Vec<u32>,
    /// Where it stands in the file.
    pub line: u64,
}

/// What work there was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Workload {
    /// The layout that it was read from.
    pub format: Format,
    /// The moment that times count from, in milliseconds since 1970, where the file names dates.
    pub origin_ms: Option<u64>,
    /// What runs once.
    pub jobs: Vec<Job>,
    /// What serves requests.
    pub services: Vec<Service>,
    /// What the file tells for at least one job.
    pub columns: BTreeSet<Column>,
}

impl Workload {
    /// Reads a job list, and the demand of its services.
    pub fn read(jobs: Source<'_>, demand: Option<Source<'_>>) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let format = Format::of(jobs.content);
        let workload = match format {
            Format::Jobs => jobs::read(jobs, demand, &mut faults),
            Format::Itp => itp::read(jobs, &mut faults),
            Format::Swf => swf::read(jobs, &mut faults),
            Format::Records => records::read(jobs, &mut faults),
        };
        if let (true, Some(demand)) = (format != Format::Jobs, demand) {
            faults.add(demand.name, 1, "", "a demand file", "none: this layout has no services");
        }
        if workload.jobs.is_empty() && workload.services.is_empty() && faults.is_empty() {
            faults.add(jobs.name, 1, "", "no job at all", "at least one job or service");
        }
        if faults.is_empty() { Ok(workload) } else { Err(faults) }
    }

    /// The moment of the last arrival.
    pub fn last_arrival_ms(&self) -> u64 {
        self.jobs.iter().map(|job| job.arrival_ms).max().unwrap_or_default()
    }
}
