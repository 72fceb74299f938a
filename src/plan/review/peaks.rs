//! Pure side: GPUs that were reserved for the peak of real-time demand and idle in its troughs.
//!
//! Requests are taken to go to the lowest of a service's GPUs first, so that what is idle is idle
//! on the upper ones. A GPU on which a job ran meanwhile was not idle.

use std::cmp::Reverse;

use serde_json::json;

use super::history::{History, Serving};
use super::{Answer, hours};
use crate::plan::metrics;
use crate::trace::clock_time;

const QUESTION: &str =
    "1. Which GPUs were reserved for peak real-time demand but idle during troughs?";

/// A GPU of a service, and when it was idle.
struct Row<'a> {
    service: &'a str,
    gpu: u32,
    idle_ms: u64,
    intervals: Vec<(u64, u64)>,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    if history.services.is_empty() {
        let needs = "a service (expected_duration demand-curve) with its demand file";
        return Answer::cannot(QUESTION, vec![needs.to_owned()]);
    }
    let unknown: Vec<&Serving<'_>> =
        history.services.iter().filter(|serving| serving.reserved.is_none()).collect();
    if !unknown.is_empty() {
        return if_peak(&unknown);
    }
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut kept_ms = 0;
    for serving in &history.services {
        let reserved = serving.reserved.unwrap_or_default();
        kept_ms += u64::from(reserved.count()) * (serving.until_ms - serving.from_ms);
        for (order, gpu) in (0_u32..).zip(reserved.iter()) {
            let intervals = without_jobs(history, gpu, below(serving, order + 1));
            let idle_ms = intervals.iter().map(|(from, to)| to - from).sum();
            rows.push(Row { service: &serving.service.id, gpu, idle_ms, intervals });
        }
    }
    let total: u64 = rows.iter().map(|row| row.idle_ms).sum();
    let reserved = rows.len();
    rows.retain(|row| row.idle_ms > 0);
    rows.sort_by_key(|row| (Reverse(row.idle_ms), row.gpu));
    let figures = rows.iter().map(|row| {
        let minutes = row.intervals.iter().map(|(from, to)| [from / 60_000, to / 60_000]);
        json!({
            "service": row.service,
            "gpu": row.gpu,
            "idle_hours": metrics::hours(row.idle_ms),
            "intervals_min": minutes.collect::<Vec<_>>(),
        })
    });
    let summary = if reserved == 0 {
        "none: no GPU was reserved, services were given what they needed".to_owned()
    } else {
        format!(
            "{} of {reserved} reserved GPUs were idle at times: {:.1} GPU-hours of {:.1}",
            rows.len(),
            metrics::hours(total),
            metrics::hours(kept_ms),
        )
    };
    Answer {
        question: QUESTION,
        needs: Vec::new(),
        summary,
        details: rows.iter().map(detail).collect(),
        figures: json!({
            "idle_gpu_hours": metrics::hours(total),
            "gpus": figures.collect::<Vec<_>>(),
        }),
    }
}

/// Nothing says what was kept; what keeping the peak would have cost can still be said.
fn if_peak(services: &[&Serving<'_>]) -> Answer {
    let names: Vec<&str> = services.iter().map(|serving| serving.service.id.as_str()).collect();
    let needs = format!("column gpu_ids of the services ({})", names.join(", "));
    let mut answer = Answer::cannot(QUESTION, vec![needs]);
    let mut total = 0;
    for serving in services {
        let peak = serving.demand.peak(serving.until_ms);
        let kept = u64::from(peak) * (serving.until_ms - serving.from_ms);
        let idle = kept.saturating_sub(serving.demand.area(serving.until_ms));
        total += idle;
        answer.details.push(format!(
            "{}: keeping its peak of {peak} GPUs all the time would leave {:.1} of {:.1} GPU-hours \
             idle",
            serving.service.id,
            metrics::hours(idle),
            metrics::hours(kept),
        ));
    }
    answer.figures = json!({ "idle_gpu_hours_if_peak": metrics::hours(total) });
    answer
}

fn detail(row: &Row<'_>) -> String {
    let longest = row.intervals.iter().max_by_key(|(from, to)| (to - from, Reverse(*from)));
    let longest = longest.map_or_else(String::new, |(from, to)| {
        format!(", longest {}–{}", clock_time(*from), clock_time(*to))
    });
    let Row { gpu, service, idle_ms, .. } = row;
    format!("GPU {gpu} ({service}): idle {}{longest}", hours(*idle_ms))
}

/// When fewer than so many GPUs were in demand: then the last of them was idle.
fn below(serving: &Serving<'_>, count: u32) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = serving.from_ms;
    while at < serving.until_ms {
        let next = serving.demand.next_change(at).unwrap_or(serving.until_ms);
        let next = next.min(serving.until_ms);
        if serving.demand.at(at) < count {
            match found.last_mut() {
                Some(last) if last.1 == at => last.1 = next,
                _ => found.push((at, next)),
            }
        }
        at = next;
    }
    found
}

/// Takes out of some intervals those in which a job ran on the GPU.
fn without_jobs(history: &History<'_>, gpu: u32, intervals: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let runs = history.runs.iter().filter(|run| run.node == 0 && run.gpus.iter().any(|g| g == gpu));
    runs.fold(intervals, |intervals, run| {
        let cut = |(from, to): (u64, u64)| {
            let parts = [(from, to.min(run.start_ms)), (from.max(run.end_ms), to)];
            parts.into_iter().filter(|(from, to)| from < to)
        };
        intervals.into_iter().flat_map(cut).collect()
    })
}
