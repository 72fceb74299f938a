//! Pure side: jobs for which enough GPUs were free, and not beside one another.
//!
//! Not counted are times at which too few were free in all. What was free on several nodes together
//! and on none of them alone is told apart from what was free on one node with gaps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::history::{History, Now};
use super::{Answer, hours, lacking};
use crate::plan::metrics::{self, longest_run};
use crate::policy::GpuSet;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str =
    "2. Which jobs needed a contiguous block and missed it because capacity was fragmented?";

#[derive(Default)]
struct Missed<'a> {
    length_ms: u64,
    /// Of this, when no node had enough alone.
    scattered_ms: u64,
    first_ms: Option<u64>,
    joiners: BTreeSet<(u64, &'a str)>,
}

/// What is free at one time.
struct Free {
    by_node: Vec<(GpuSet, u32)>,
    total: u32,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let needs = lacking(history, &[Column::ActualStart, Column::GpuIds]);
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut by_job: BTreeMap<usize, Missed<'_>> = BTreeMap::new();
    let mut apart_ms = 0;
    history.sweep(|now| apart_ms += charge(history, now, &mut by_job));
    let mut rows: Vec<(&Job, Missed<'_>)> =
        by_job.into_iter().map(|(place, missed)| (&history.workload.jobs[place], missed)).collect();
    rows.sort_by_key(|(job, missed)| (Reverse(missed.length_ms), job.line));
    let figures = rows.iter().map(|(job, missed)| {
        json!({
            "job_id": job.id,
            "gpus": job.min_gpus,
            "hours": metrics::hours(missed.length_ms),
            "hours_over_several_nodes": metrics::hours(missed.scattered_ms),
            "joined_by": missed.joiners.iter().map(|(_, name)| name).collect::<Vec<_>>(),
        })
    });
    let summary = if rows.is_empty() {
        "none: whenever enough GPUs were free for a job that waited, they were neighbours".into()
    } else {
        let many = if rows.len() == 1 { "1 job".into() } else { format!("{} jobs", rows.len()) };
        let apart = metrics::hours(apart_ms);
        format!("{many} missed a block; {apart:.1} GPU-hours lay apart meanwhile")
    };
    Answer {
        question: QUESTION,
        needs,
        summary,
        details: rows.iter().map(|(job, missed)| detail(job, missed)).collect(),
        figures: json!({
            "apart_gpu_hours": metrics::hours(apart_ms),
            "jobs": figures.collect::<Vec<_>>(),
        }),
    }
}

fn detail(job: &Job, missed: &Missed<'_>) -> String {
    let joiners = missed.joiners.iter().take(3);
    let mut names: Vec<String> =
        joiners.map(|(end, name)| format!("{name} (until {})", clock_time(*end))).collect();
    if let more @ 1.. = missed.joiners.len().saturating_sub(names.len()) {
        names.push(format!("{more} more"));
    }
    let scattered = if missed.scattered_ms > 0 {
        format!(", {} of it over several nodes", hours(missed.scattered_ms))
    } else {
        String::new()
    };
    format!(
        "{} (needs {}): {} from {} on{scattered}; would have joined the free ones: {}",
        job.id,
        job.min_gpus,
        hours(missed.length_ms),
        clock_time(missed.first_ms.unwrap_or_default()),
        if names.is_empty() { "no single one".to_owned() } else { names.join(", ") },
    )
}

/// Charges one stretch of time to the jobs that miss a block in it. Returns GPU-milliseconds that
/// lie apart.
fn charge<'a>(
    history: &History<'a>,
    now: &Now<'_>,
    by_job: &mut BTreeMap<usize, Missed<'a>>,
) -> u64 {
    // One GPU is a block by itself.
    let wide = now.waiting.range((2, 0)..);
    let widths: BTreeSet<u32> = wide.map(|(width, _)| *width).collect();
    if widths.is_empty() {
        return 0;
    }
    let free = free(history, now);
    let length_ms = now.to_ms - now.from_ms;
    let mut charged = false;
    for width in widths.into_iter().take_while(|width| *width <= free.total.min(history.gpus)) {
        let fits = |&(set, spare): &(GpuSet, u32)| spare >= width && longest_run(set) >= width;
        if free.by_node.iter().any(fits) {
            continue;
        }
        let scattered = free.by_node.iter().all(|(_, spare)| *spare < width);
        let running = now.running.iter().map(|&at| &history.runs[at]);
        let joins = running.filter(|run| {
            free.by_node.get(run.node).is_some_and(|(set, spare)| {
                spare + run.gpus.count() >= width && longest_run(set.union(run.gpus)) >= width
            })
        });
        let joiners: Vec<(u64, &str)> =
            joins.map(|run| (run.end_ms, run.job.id.as_str())).collect();
        for &(_, job) in now.waiting.range((width, 0)..=(width, usize::MAX)) {
            let missed = by_job.entry(job).or_default();
            missed.length_ms += length_ms;
            missed.scattered_ms += if scattered { length_ms } else { 0 };
            missed.first_ms.get_or_insert(now.from_ms);
            missed.joiners.extend(&joiners);
            charged = true;
        }
    }
    if charged { length_ms * u64::from(free.total) } else { 0 }
}

fn free(history: &History<'_>, now: &Now<'_>) -> Free {
    let of = |node: usize| {
        let set = history.free(node, now.running);
        (set, set.count().saturating_sub(history.elastic(node, now.from_ms)))
    };
    let by_node: Vec<(GpuSet, u32)> = (0..history.nodes).map(of).collect();
    let total = by_node.iter().map(|(_, spare)| spare).sum();
    Free { by_node, total }
}
