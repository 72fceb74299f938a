//! Pure side: jobs that waited or were late, and could have run while real-time demand was low.
//!
//! Jobs are moved one after another, the most important first, and each one moved is in the way of
//! the next: else one trough would be given to all of them.

use serde_json::json;

use super::history::History;
use super::{Answer, hours, missing};
use crate::plan::metrics;
use crate::policy::GpuSet;
use crate::sim::profile::Profile;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str =
    "4. Which jobs could have run during off-peak inference demand without hurting latency?";

struct Moved<'a> {
    job: &'a Job,
    start_ms: u64,
    saved_ms: u64,
    rescued: bool,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let mut needs = missing(history.workload, &[Column::ActualStart, Column::GpuIds]);
    if history.workload.services.is_empty() {
        needs.push("a service (expected_duration demand-curve) with its demand file".to_owned());
    }
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut runs: Vec<(&str, GpuSet, u64, u64)> =
        history.runs.iter().map(|r| (r.job.id.as_str(), r.gpus, r.start_ms, r.end_ms)).collect();
    let mut candidates: Vec<&Job> = history
        .workload
        .jobs
        .iter()
        .filter(|job| history.waited_until(job) > job.arrival_ms || late(job))
        .collect();
    candidates.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.arrival_ms, job.line));
    let mut moved = Vec::new();
    for job in candidates {
        let length_ms = job.ran_ms().unwrap_or(job.expected_ms).max(1);
        let mut profile = Profile::new(history.gpus, job.arrival_ms, &history.demand);
        for &(_, gpus, start, end) in runs.iter().filter(|r| r.0 != job.id && r.3 > job.arrival_ms)
        {
            profile.take(gpus, start.max(job.arrival_ms), end);
        }
        let found = profile.earliest(job.arrival_ms, job.min_gpus, length_ms);
        let Some((start_ms, gpus)) = found else { continue };
        let end_ms = start_ms + length_ms;
        let until = history.waited_until(job);
        let in_time = job.deadline_ms.is_none_or(|deadline| end_ms <= deadline);
        if start_ms >= until || !in_time {
            continue;
        }
        runs.retain(|run| run.0 != job.id);
        runs.push((&job.id, gpus, start_ms, end_ms));
        let rescued = late(job) || job.actual.start_ms.is_none();
        moved.push(Moved { job, start_ms, saved_ms: until - start_ms, rescued });
    }
    let rescued = moved.iter().filter(|moved| moved.rescued).count();
    let detail = |moved: &Moved<'_>| {
        let actual = moved.job.actual.start_ms.map_or_else(
            || "never started".to_owned(),
            |start| format!("started {}", clock_time(start)),
        );
        format!(
            "{} (priority {}, needs {}): could have started {}, {} earlier; {actual}{}",
            moved.job.id,
            moved.job.priority,
            moved.job.min_gpus,
            clock_time(moved.start_ms),
            hours(moved.saved_ms),
            if moved.rescued { ", and would have met its deadline" } else { "" },
        )
    };
    let figures = moved.iter().map(|moved| {
        json!({
            "job_id": moved.job.id,
            "start_min": moved.start_ms / 60_000,
            "earlier_hours": metrics::hours(moved.saved_ms),
            "would_have_been_in_time": moved.rescued,
        })
    });
    Answer {
        question: QUESTION,
        needs,
        summary: format!(
            "{} jobs, {rescued} of which were late or never ran; all of them together, beside what \
             ran, with demand met throughout",
            moved.len(),
        ),
        details: moved.iter().map(detail).collect(),
        figures: json!({ "jobs": figures.collect::<Vec<_>>() }),
    }
}

fn late(job: &Job) -> bool {
    match (job.actual.end_ms, job.deadline_ms) {
        (Some(end), Some(deadline)) => end > deadline,
        (None, Some(_)) => job.actual.start_ms.is_none(),
        _ => false,
    }
}
