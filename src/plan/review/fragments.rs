//! Pure side: jobs for which enough GPUs were free, and not beside one another.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::history::History;
use super::{Answer, hours, missing};
use crate::plan::metrics::{self, longest_run};
use crate::policy::GpuSet;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str =
    "2. Which jobs needed a contiguous block and missed it because capacity was fragmented?";

#[derive(Default)]
struct Missed<'a> {
    length_ms: u64,
    first_ms: Option<u64>,
    joiners: BTreeSet<(u64, &'a str)>,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let needs = missing(history.workload, &[Column::ActualStart, Column::GpuIds]);
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut by_job: BTreeMap<u64, (&Job, Missed<'_>)> = BTreeMap::new();
    let mut apart_ms = 0;
    for (from, to) in intervals(history) {
        let free = GpuSet::first(history.gpus).minus(history.taken(from)).minus(history.reserved);
        // Where no GPUs are named for services, they take part of what is free, wherever it is.
        let services = if history.reserved.is_empty() { history.demand.at(from) } else { 0 };
        let count = free.count().saturating_sub(services);
        let mut charged = false;
        for (place, job) in (0_u64..).zip(&history.workload.jobs) {
            let waits = job.arrival_ms <= from && from < history.waited_until(job);
            let width = job.min_gpus;
            if !waits || count < width || longest_run(free) >= width {
                continue;
            }
            let missed = &mut by_job.entry(place).or_insert((job, Missed::default())).1;
            missed.length_ms += to - from;
            missed.first_ms.get_or_insert(from);
            let running = history.runs.iter().filter(|r| r.start_ms <= from && from < r.end_ms);
            let joins = running.filter(|run| longest_run(free.union(run.gpus)) >= width);
            missed.joiners.extend(joins.map(|run| (run.end_ms, run.job.id.as_str())));
            charged = true;
        }
        if charged {
            apart_ms += (to - from) * u64::from(count);
        }
    }
    let mut rows: Vec<_> = by_job.into_values().collect();
    rows.sort_by_key(|(job, missed)| (std::cmp::Reverse(missed.length_ms), job.line));
    let detail = |(job, missed): &(&Job, Missed<'_>)| {
        let joiners: Vec<String> = missed
            .joiners
            .iter()
            .take(3)
            .map(|(end, name)| format!("{name} (ended {})", clock_time(*end)))
            .collect();
        format!(
            "{} (needs {}): {} from {} on; would have joined the free ones: {}",
            job.id,
            job.min_gpus,
            hours(missed.length_ms),
            clock_time(missed.first_ms.unwrap_or_default()),
            if joiners.is_empty() { "no single block".to_owned() } else { joiners.join(", ") },
        )
    };
    let figures = rows.iter().map(|(job, missed)| {
        json!({
            "job_id": job.id,
            "gpus": job.min_gpus,
            "hours": metrics::hours(missed.length_ms),
            "joined_by": missed.joiners.iter().map(|(_, name)| name).collect::<Vec<_>>(),
        })
    });
    let summary = if rows.is_empty() {
        "none: whenever enough GPUs were free for a job that waited, they were neighbours".into()
    } else {
        let many = if rows.len() == 1 { "1 job".into() } else { format!("{} jobs", rows.len()) };
        format!(
            "{many} missed a block; {} GPU-hours lay apart meanwhile",
            hours(apart_ms).trim_end_matches(" h")
        )
    };
    Answer {
        question: QUESTION,
        needs,
        summary,
        details: rows.iter().map(detail).collect(),
        figures: json!({ "apart_gpu_hours": metrics::hours(apart_ms), "jobs": figures.collect::<Vec<_>>() }),
    }
}

/// Stretches of time in which nothing arrives, starts, ends or changes its demand.
fn intervals(history: &History<'_>) -> Vec<(u64, u64)> {
    let mut moments: BTreeSet<u64> = history.demand.steps().iter().map(|&(at, _)| at).collect();
    moments.extend(history.runs.iter().flat_map(|run| [run.start_ms, run.end_ms]));
    for job in &history.workload.jobs {
        moments.extend([job.arrival_ms, history.waited_until(job)]);
    }
    let moments: Vec<u64> = moments.into_iter().filter(|at| *at <= history.end_ms).collect();
    moments.windows(2).map(|pair| (pair[0], pair[1])).collect()
}
