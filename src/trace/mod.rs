//! Pure side: what work there was, read from the files that people have of it.
//!
//! A [`Workload`] comes from a job list in CSV, from the layout of the Microsoft ITP traces, from
//! the Standard Workload Format, or from the JSON lines that `sluice record` writes. Whatever is
//! wrong with a file is a [`Fault`] that names file, line, column, what was found and what is
//! allowed; all of them are reported at once, and a workload with a fault is not used.

mod decisions;
mod demand;
mod fault;
mod itp;
mod jobs;
mod join;
mod records;
mod swf;
mod table;
mod time;

use std::collections::BTreeSet;

use serde::Serialize;

pub use fault::{Fault, Faults};
pub use time::{
    DAY_MS, HOUR_MS, MINUTE_MS, clock_time, parse_clock, parse_duration, parse_instant,
};

/// No job of a trace asks for more.
const GPUS_MAX: u32 = 100_000;

/// One file, as given and as read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// What is in it.
    pub content: &'a str,
}

/// The layout of a job list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// CSV with the columns of docs/planning.md.
    #[default]
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
        let lines = content.trim_start_matches('\u{feff}').lines().map(str::trim);
        let line = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
        let line = line.unwrap_or_default();
        if line.starts_with('{') {
            Self::Records
        } else if line.starts_with(';') || swf::looks_like(line) {
            Self::Swf
        } else if line.to_ascii_lowercase().contains("submission_time") {
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
    /// On which node it ran.
    Node,
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
            Self::Node => "node",
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
    /// On which node, by its place in [`Workload::nodes`]; zero where no node is named.
    pub node: usize,
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
    /// GPUs that were reserved for it, where that is known.
    pub reserved: Option<Vec<u32>>,
    /// Where it stands in the file.
    pub line: u64,
}

/// A node that a file names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// How many GPUs it has, where the file says so.
    pub gpus: Option<u32>,
}

/// What work there was.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
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
    /// The nodes that it names, by name.
    pub nodes: Vec<Node>,
    /// The end of what is recorded, where the file is a record of what happened.
    pub end_ms: Option<u64>,
    /// What is no fault and should be known: what was left out, and what was assumed.
    pub remarks: Vec<Fault>,
}

impl Workload {
    /// Reads a job list, and the demand of its services.
    pub fn read(jobs: Source<'_>, demand: Option<Source<'_>>) -> Result<Self, Faults> {
        Self::read_all(jobs, demand, None)
    }

    /// Reads a job list, the demand of its services, and the records of what became of it.
    pub fn read_all(
        jobs: Source<'_>,
        demand: Option<Source<'_>>,
        records: Option<Source<'_>>,
    ) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let content = jobs.content.trim_start_matches('\u{feff}');
        let jobs = Source { content, ..jobs };
        let format = Format::of(content);
        let mut workload = match format {
            Format::Jobs => jobs::read(jobs, demand, &mut faults),
            Format::Itp => itp::read(jobs, &mut faults),
            Format::Swf => swf::read(jobs, &mut faults),
            Format::Records => records::read(jobs, &mut faults),
        };
        if let (true, Some(demand)) = (format != Format::Jobs, demand) {
            faults.add(demand.name, 1, "", "a demand file", "none: this layout has no services");
        }
        if let Some(records) = records {
            if format == Format::Jobs {
                let history = records::read(records, &mut faults);
                join::join(&mut workload, history, records.name, &mut faults);
            } else {
                faults.add(records.name, 1, "", "records", "none beside such a list, only CSV");
            }
        }
        if workload.jobs.is_empty() && workload.services.is_empty() && faults.is_empty() {
            faults.add(jobs.name, 1, "", "no job at all", "at least one job or service");
        }
        if faults.is_empty() { Ok(workload) } else { Err(faults) }
    }

    /// The moment of the first arrival.
    pub fn first_arrival_ms(&self) -> u64 {
        self.jobs.iter().map(|job| job.arrival_ms).min().unwrap_or_default()
    }

    /// The moment of the last arrival.
    pub fn last_arrival_ms(&self) -> u64 {
        self.jobs.iter().map(|job| job.arrival_ms).max().unwrap_or_default()
    }
}
