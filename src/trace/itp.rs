//! Pure side: the layout of the Microsoft ITP traces, `job_id, submission_time, duration, num_gpu`
//! with times in seconds, and that of their 195-job list, which has generated deadlines.

use std::collections::{BTreeMap, BTreeSet};

use super::table::Table;
use super::time::LONGEST_MS;
use super::{Actual, Column, Faults, Format, Job, Source, Workload};

const SECONDS: &str = "a whole number of seconds up to 10000 days";

/// Reads such a list. Times count from the first submission's midnight, taking second 0 as one.
pub(super) fn read(source: Source<'_>, faults: &mut Faults) -> Workload {
    let required = ["job_id", "submission_time", "duration", "num_gpu"];
    let optional = ["num_iteration", "model_name", "deadline", "batch_size"];
    let table = Table::read(source, &required, &optional, faults);
    let mut columns = BTreeSet::new();
    let mut jobs = Vec::new();
    let mut seen = BTreeMap::new();
    for row in table.iter().flat_map(Table::rows) {
        let id = row
            .need("job_id", "a name", faults, |text| (!text.is_empty()).then(|| text.to_owned()));
        let arrival = row.need("submission_time", SECONDS, faults, seconds);
        let duration = row.need("duration", SECONDS, faults, seconds);
        let gpus = row.need("num_gpu", "a whole number from 1 to 100000", faults, |text| {
            text.parse::<u32>().ok().filter(|gpus| (1..=super::GPUS_MAX).contains(gpus))
        });
        let deadline = row.may("deadline", SECONDS, faults, seconds);
        let (Some(id), Some(arrival_ms), Some(run_ms), Some(gpus), Some(deadline_ms)) =
            (id, arrival, duration, gpus, deadline)
        else {
            continue;
        };
        if let Some(first) = seen.insert(id.clone(), row.line) {
            let found = format!("{id:?} again (before in line {first})");
            faults.add(source.name, row.line, "job_id", found, "each job once");
        }
        if deadline_ms.is_some() {
            columns.insert(Column::Deadline);
        }
        let model = row.get("model_name");
        jobs.push(Job {
            id,
            kind: if model.is_empty() { "training" } else { model }.to_owned(),
            user: None,
            priority: 1,
            arrival_ms,
            deadline_ms,
            min_gpus: gpus,
            max_gpus: gpus,
            expected_ms: run_ms,
            actual: Actual::default(),
            line: row.line,
        });
    }
    let first = jobs.iter().map(|job| job.arrival_ms).min().unwrap_or_default();
    let origin = first / super::DAY_MS * super::DAY_MS;
    for job in &mut jobs {
        job.arrival_ms -= origin;
        job.deadline_ms = job.deadline_ms.map(|deadline| deadline.saturating_sub(origin));
    }
    Workload { format: Format::Itp, jobs, columns, ..Workload::default() }
}

fn seconds(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1_000).filter(|&ms| ms <= LONGEST_MS)
}
