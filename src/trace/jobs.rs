//! Pure side: the job list in CSV, with the columns of docs/planning.md.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{Row, Table};
use super::time::{DURATION, MOMENT, Moment, parse_duration, parse_moment};
use super::{
    Actual, Column, DAY_MS, Faults, Format, Job, Node, Outcome, Service, Source, Workload,
};
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
const OPTIONAL: [&str; 6] = ["user", "actual_start", "actual_end", "node", "gpu_ids", "outcome"];
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
    node: Option<String>,
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
    let table = Table::read(source, &REQUIRED, &OPTIONAL, faults);
    let rows = || table.iter().flat_map(Table::rows);
    let drafts: Vec<Draft> = rows().filter_map(|row| draft(&row, faults)).collect();
    let mut seen = BTreeMap::new();
    for row in rows() {
        let id = row.get("job_id");
        if let Some(first) = seen.insert(id.to_owned(), row.line).filter(|_| !id.is_empty()) {
            let found = format!("{id:?} again (before in line {first})");
            faults.add(source.name, row.line, "job_id", found, "each job once");
        }
    }
    let steps = demand.map(|demand| demand::read(demand, faults)).unwrap_or_default();
    let origin_ms = origin(source, demand, &drafts, &steps, faults);
    let at = |moment: Moment| match moment {
        Moment::Relative(ms) => ms,
        Moment::Absolute(ms) => ms.saturating_sub(origin_ms.unwrap_or_default()),
    };
    let nodes: BTreeSet<String> = drafts.iter().filter_map(|draft| draft.node.clone()).collect();
    let mut workload = Workload {
        format: Format::Jobs,
        origin_ms,
        columns: columns(&drafts),
        nodes: nodes.into_iter().map(|name| Node { name, gpus: None }).collect(),
        ..Workload::default()
    };
    let mut curves = demand::Curves::new(steps, at);
    for draft in drafts {
        if let Some(expected_ms) = draft.expected_ms {
            let node =
                workload.nodes.iter().position(|node| Some(&node.name) == draft.node.as_ref());
            workload.jobs.push(job(draft, expected_ms, node, at));
        } else {
            let service = service(draft, at, &mut curves, source.name, demand, faults);
            workload.services.push(service);
        }
    }
    if let Some(demand) = demand {
        // The demand of a service whose own row is at fault belongs to somebody all the same.
        let services = rows().filter(|row| row.get("expected_duration") == CURVE);
        let services = services.map(|row| row.get("job_id").to_owned()).collect();
        curves.report_unused(demand.name, &services, faults);
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
    let node = row.get("node");
    let ids = row.may("gpu_ids", GPU_IDS, faults, gpu_ids);
    let outcome = row.may("outcome", OUTCOME, faults, outcome);
    let user = row.get("user");
    order(row, [arrival, deadline.flatten(), start.flatten(), end.flatten()], faults);
    width(row, (min, max), expected, faults);
    record(row, ids.as_ref().and_then(Option::as_ref), (min, max), faults);
    let (min_gpus, max_gpus, expected_ms) = (min?, max?, expected?);
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
        node: (!node.is_empty()).then(|| node.to_owned()),
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
            (draft.node.is_some(), Column::Node),
            (!draft.gpus.is_empty(), Column::GpuIds),
            (draft.outcome.is_some(), Column::Outcome),
            (draft.user.is_some(), Column::User),
        ];
        columns.extend(told.into_iter().filter(|(told, _)| *told).map(|(_, column)| column));
    }
    columns
}

/// Whether one moment is known to be before another. A moment with a date and one without have no
/// order; that they stand in one list is a fault of its own.
fn before(one: Moment, other: Moment) -> bool {
    match (one, other) {
        (Moment::Relative(one), Moment::Relative(other))
        | (Moment::Absolute(one), Moment::Absolute(other)) => one < other,
        _ => false,
    }
}

/// Arrival, deadline, start and end must follow one another.
fn order(row: &Row<'_>, [arrival, deadline, start, end]: [Option<Moment>; 4], faults: &mut Faults) {
    let both = |one: Option<Moment>, other: Option<Moment>| one.zip(other);
    if both(deadline, arrival).is_some_and(|(by, from)| before(by, from) || by == from) {
        let allowed = format!("a time after arrival_time, which is {}", row.get("arrival_time"));
        row.fault("deadline", &allowed, faults);
    }
    if both(start, arrival).is_some_and(|(start, arrival)| before(start, arrival)) {
        let allowed = format!("no time before arrival_time, which is {}", row.get("arrival_time"));
        row.fault("actual_start", &allowed, faults);
    }
    if both(end, start).is_some_and(|(end, start)| before(end, start)) {
        let allowed = format!("no time before actual_start, which is {}", row.get("actual_start"));
        row.fault("actual_end", &allowed, faults);
    }
}

/// A job has at least one GPU, and nobody more at the least than at the most.
#[expect(clippy::option_option, reason = "unread, a service and a job are three cases")]
fn width(
    row: &Row<'_>,
    (min, max): (Option<u32>, Option<u32>),
    expected: Option<Option<u64>>,
    faults: &mut Faults,
) {
    if let Some((min, max)) = min.zip(max).filter(|(min, max)| min > max) {
        let allowed = format!("at most max_gpus, which is {max} (and not {min})");
        row.fault("min_gpus", &allowed, faults);
    }
    if min == Some(0) && matches!(expected, Some(Some(_))) {
        row.fault("min_gpus", "1 or more for a job (0 only for a demand-curve)", faults);
    }
}

/// What really happened must not contradict itself.
fn record(
    row: &Row<'_>,
    gpus: Option<&Vec<u32>>,
    (min, max): (Option<u32>, Option<u32>),
    faults: &mut Faults,
) {
    if row.get("expected_duration") == CURVE {
        // A service is not started or ended; its GPUs are those that are kept for it, on the node
        // that is first by name.
        for column in ["actual_start", "actual_end", "node", "outcome"] {
            if !row.get(column).is_empty() {
                row.fault(column, "nothing for a demand-curve", faults);
            }
        }
        return;
    }
    let outcome = row.get("outcome").to_ascii_lowercase();
    let (start, end) = (row.get("actual_start"), row.get("actual_end"));
    if start.is_empty() && !end.is_empty() && outcome != "cancelled" {
        let allowed = "actual_start too, unless the job was cancelled while it waited";
        row.fault("actual_end", allowed, faults);
    }
    if outcome == "running" && !end.is_empty() {
        row.fault("actual_end", "nothing while the job is running", faults);
    }
    let Some(gpus) = gpus else { return };
    if start.is_empty() {
        row.fault("gpu_ids", "nothing without actual_start", faults);
    }
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    if let Some((min, max)) = min.zip(max).filter(|(min, max)| !(*min..=*max).contains(&count)) {
        let allowed = format!("{min} to {max} GPUs, as min_gpus and max_gpus say");
        row.fault("gpu_ids", &allowed, faults);
    }
}

fn job(draft: Draft, expected_ms: u64, node: Option<usize>, at: impl Fn(Moment) -> u64) -> Job {
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
            node: node.unwrap_or_default(),
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
        reserved: Some(draft.gpus).filter(|gpus| !gpus.is_empty()),
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
