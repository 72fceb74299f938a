//! Pure side: the job list in CSV, with the columns of docs/planning.md.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{Row, Table};
use super::time::{DURATION, MOMENT, Moment, parse_duration, parse_moment};
use super::{Actual, Column, DAY_MS, Faults, Format, Job, Outcome, Service, Source, Workload};
use super::{demand, fault::Fault};

const REQUIRED: [&str; 8] = [
    "job_id",
    "workload_type",
    "priority",
    "arrival_time",
    "deadline",
    "min_gpus",
    "max_gpus",
    "expected_duration",
];
const OPTIONAL: [&str; 5] = ["user", "actual_start", "actual_end", "gpu_ids", "outcome"];
/// What stands in place of a duration where a demand curve says when GPUs are needed.
const CURVE: &str = "demand-curve";

const PRIORITY: &str = "a whole number from 1 to 1000";
const GPUS: &str = "a whole number from 0 to 64";
const GPU_IDS: &str = "GPU numbers below 64 such as 0-3 or 0;2;5";
const OUTCOME: &str = "completed, failed, cancelled or running";

/// A row with its moments as written.
struct Draft {
    id: String,
    kind: String,
    user: Option<String>,
    priority: u32,
    arrival: Moment,
    deadline: Option<Moment>,
    min_gpus: u32,
    max_gpus: u32,
    /// `None` for a service.
    expected_ms: Option<u64>,
    start: Option<Moment>,
    end: Option<Moment>,
    gpus: Vec<u32>,
    outcome: Option<Outcome>,
    line: u64,
}

/// Reads a job list and its demand file.
pub(super) fn read(
    source: Source<'_>,
    demand: Option<Source<'_>>,
    faults: &mut Faults,
) -> Workload {
    let drafts = Table::read(source, &REQUIRED, &OPTIONAL, faults)
        .map(|table| table.rows().filter_map(|row| draft(&row, faults)).collect::<Vec<_>>())
        .unwrap_or_default();
    let mut seen = BTreeMap::new();
    for draft in &drafts {
        if let Some(first) = seen.insert(&draft.id, draft.line) {
            let found = format!("{:?} again (first in line {first})", draft.id);
            faults.add(source.name, draft.line, "job_id", found, "each job once");
        }
    }
    let steps = demand.map(|demand| demand::read(demand, faults)).unwrap_or_default();
    let origin_ms = origin(source, demand, &drafts, &steps, faults);
    let at = |moment: Moment| match moment {
        Moment::Relative(ms) => ms,
        Moment::Absolute(ms) => ms.saturating_sub(origin_ms.unwrap_or_default()),
    };
    let columns = columns(&drafts);
    let mut workload = Workload {
        format: Format::Jobs,
        origin_ms,
        jobs: Vec::new(),
        services: Vec::new(),
        columns,
    };
    let mut curves = demand::Curves::new(steps, at);
    for draft in drafts {
        order(&draft, source.name, at, faults);
        if let Some(expected_ms) = draft.expected_ms {
            workload.jobs.push(job(draft, expected_ms, at));
        } else {
            let service = service(draft, at, &mut curves, source.name, demand, faults);
            workload.services.push(service);
        }
    }
    if let Some(demand) = demand {
        curves.report_unused(demand.name, faults);
    }
    workload
}

fn draft(row: &Row<'_>, faults: &mut Faults) -> Option<Draft> {
    // Every field is looked at before the first fault gives up the row, so that all are reported.
    let id = row.need("job_id", "a name", faults, name);
    let kind = row.need("workload_type", "a name", faults, name);
    let priority = row.need("priority", PRIORITY, faults, |text| {
        text.parse().ok().filter(|priority| (1..=1000).contains(priority))
    });
    let arrival = row.need("arrival_time", MOMENT, faults, parse_moment);
    let deadline = row.may("deadline", MOMENT, faults, parse_moment);
    let expected = row.need(
        "expected_duration",
        &format!("{DURATION} and above zero, or {CURVE}"),
        faults,
        |text| match text {
            CURVE => Some(None),
            _ => parse_duration(text).filter(|&ms| ms > 0).map(Some),
        },
    );
    let min = row.need("min_gpus", GPUS, faults, gpus);
    let max = row.need("max_gpus", GPUS, faults, gpus);
    let start = row.may("actual_start", MOMENT, faults, parse_moment);
    let end = row.may("actual_end", MOMENT, faults, parse_moment);
    let ids = row.may("gpu_ids", GPU_IDS, faults, gpu_ids);
    let outcome = row.may("outcome", OUTCOME, faults, outcome);
    let user = row.get("user");
    let (min_gpus, max_gpus, expected_ms) = (min?, max?, expected?);
    if min_gpus > max_gpus {
        row.fault("min_gpus", &format!("at most max_gpus, which is {max_gpus}"), faults);
        return None;
    }
    if min_gpus == 0 && expected_ms.is_some() {
        row.fault("min_gpus", "1 or more for a job (0 only for a demand-curve)", faults);
        return None;
    }
    Some(Draft {
        id: id?,
        kind: kind?,
        user: (!user.is_empty()).then(|| user.to_owned()),
        priority: priority?,
        arrival: arrival?,
        deadline: deadline?,
        min_gpus,
        max_gpus,
        expected_ms,
        start: start?,
        end: end?,
        gpus: ids?.unwrap_or_default(),
        outcome: outcome?,
        line: row.line,
    })
}

/// Dates count from midnight (UTC) of the first day that is named; without dates there is no
/// origin. A list in which some moments have a date and others do not has no common clock.
fn origin(
    source: Source<'_>,
    demand: Option<Source<'_>>,
    drafts: &[Draft],
    steps: &[demand::Step],
    faults: &mut Faults,
) -> Option<u64> {
    let of_jobs = drafts.iter().flat_map(|d| {
        let moments = [Some(d.arrival), d.deadline, d.start, d.end];
        moments.into_iter().flatten().map(|moment| (source.name, d.line, moment))
    });
    let demand = demand.map_or("", |demand| demand.name);
    let of_steps = steps.iter().map(|step| (demand, step.line, step.time));
    let all: Vec<(&str, u64, Moment)> = of_jobs.chain(of_steps).collect();
    let dated = all.iter().filter_map(|(_, _, moment)| match moment {
        Moment::Absolute(ms) => Some(*ms),
        Moment::Relative(_) => None,
    });
    let first = dated.min()?;
    let dateless = all.iter().find(|(_, _, moment)| matches!(moment, Moment::Relative(_)));
    if let Some(&(file, line, _)) = dateless {
        faults.0.push(Fault {
            file: file.to_owned(),
            line,
            column: String::new(),
            found: "a time without a date, where other times have one".to_owned(),
            allowed: "dates everywhere or nowhere".to_owned(),
        });
    }
    Some(first / DAY_MS * DAY_MS)
}

fn columns(drafts: &[Draft]) -> BTreeSet<Column> {
    let mut columns = BTreeSet::from([Column::Priority, Column::ExpectedDuration]);
    for draft in drafts {
        let told = [
            (draft.deadline.is_some(), Column::Deadline),
            (draft.start.is_some(), Column::ActualStart),
            (draft.end.is_some(), Column::ActualEnd),
            (!draft.gpus.is_empty(), Column::GpuIds),
            (draft.outcome.is_some(), Column::Outcome),
            (draft.user.is_some(), Column::User),
        ];
        columns.extend(told.into_iter().filter(|(told, _)| *told).map(|(_, column)| column));
    }
    columns
}

fn order(draft: &Draft, file: &str, at: impl Fn(Moment) -> u64, faults: &mut Faults) {
    let arrival = at(draft.arrival);
    if draft.deadline.is_some_and(|deadline| at(deadline) <= arrival) {
        faults.add(file, draft.line, "deadline", "not after arrival_time", "a later time");
    }
    if draft.start.is_some_and(|start| at(start) < arrival) {
        faults.add(file, draft.line, "actual_start", "before arrival_time", "not before it");
    }
    match (draft.start, draft.end) {
        (Some(start), Some(end)) if at(end) < at(start) => {
            faults.add(file, draft.line, "actual_end", "before actual_start", "not before it");
        }
        (None, Some(_)) if draft.outcome != Some(Outcome::Cancelled) => {
            let allowed = "actual_start too, unless the job was cancelled while it waited";
            faults.add(file, draft.line, "actual_end", "an end without a start", allowed);
        }
        _ => {}
    }
}

fn job(draft: Draft, expected_ms: u64, at: impl Fn(Moment) -> u64) -> Job {
    Job {
        id: draft.id,
        kind: draft.kind,
        user: draft.user,
        priority: draft.priority,
        arrival_ms: at(draft.arrival),
        deadline_ms: draft.deadline.map(&at),
        min_gpus: draft.min_gpus,
        max_gpus: draft.max_gpus,
        expected_ms,
        actual: Actual {
            start_ms: draft.start.map(&at),
            end_ms: draft.end.map(&at),
            gpus: draft.gpus,
            outcome: draft.outcome,
        },
        line: draft.line,
    }
}

fn service(
    draft: Draft,
    at: impl Fn(Moment) -> u64,
    curves: &mut demand::Curves,
    file: &str,
    demand_file: Option<Source<'_>>,
    faults: &mut Faults,
) -> Service {
    let demand = curves.take(&draft.id, draft.max_gpus, demand_file, faults);
    if demand.is_empty() {
        let found = format!("{:?}, whose demand no file gives", draft.id);
        let allowed = "a service with rows in a demand file (job_id,time,gpus)";
        faults.add(file, draft.line, "expected_duration", found, allowed);
    }
    Service {
        arrival_ms: at(draft.arrival),
        deadline_ms: draft.deadline.map(at),
        id: draft.id,
        kind: draft.kind,
        priority: draft.priority,
        min_gpus: draft.min_gpus,
        max_gpus: draft.max_gpus,
        demand,
        reserved: draft.gpus,
        line: draft.line,
    }
}

fn name(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn gpus(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&gpus| gpus <= 64)
}

/// `0-3`, `0;2;5`, `0 1`, or a mixture; ascending, each once.
fn gpu_ids(text: &str) -> Option<Vec<u32>> {
    let mut ids = BTreeSet::new();
    for part in text.split([';', ' ', '+']).filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || to >= 64 || !(from..=to).all(|id| ids.insert(id)) {
            return None;
        }
    }
    (!ids.is_empty()).then(|| ids.into_iter().collect())
}

fn outcome(text: &str) -> Option<Outcome> {
    match text.to_ascii_lowercase().as_str() {
        "completed" => Some(Outcome::Completed),
        "failed" => Some(Outcome::Failed),
        "cancelled" => Some(Outcome::Cancelled),
        "running" => Some(Outcome::Running),
        _ => None,
    }
}
