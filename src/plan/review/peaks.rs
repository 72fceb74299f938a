//! Pure side: GPUs that were reserved for the peak of real-time demand and idle in its troughs.

use serde_json::json;

use super::history::History;
use super::{Answer, hours};
use crate::plan::metrics;
use crate::trace::clock_time;

const QUESTION: &str =
    "1. Which GPUs were reserved for peak real-time demand but idle during troughs?";

/// A GPU, how long it was idle, and when.
type Row = (u32, u64, Vec<(u64, u64)>);

pub(super) fn answer(history: &History<'_>) -> Answer {
    if history.workload.services.is_empty() {
        let needs = "a service (expected_duration demand-curve) with its demand file";
        return Answer::cannot(QUESTION, vec![needs.to_owned()]);
    }
    let reserved: Vec<u32> = history.reserved.iter().collect();
    if reserved.is_empty() {
        // Nothing says what was kept; what keeping the peak would have cost can still be said.
        let peak = history.demand.peak(history.served_until_ms);
        let kept = u64::from(peak) * history.served_until_ms;
        let idle = kept.saturating_sub(history.demand.area(history.served_until_ms));
        let mut answer = Answer::cannot(QUESTION, vec!["column gpu_ids of the services".into()]);
        answer.details.push(format!(
            "keeping the peak of {peak} GPUs all day would leave {} of {} GPU-hours idle",
            hours(idle),
            hours(kept),
        ));
        answer.figures = json!({ "idle_gpu_hours_if_peak": metrics::hours(idle) });
        return answer;
    }
    let mut rows: Vec<Row> = Vec::new();
    for (order, gpu) in (0_u32..).zip(&reserved) {
        let intervals = below(history, order + 1);
        let idle = intervals.iter().map(|(from, to)| to - from).sum();
        rows.push((*gpu, idle, intervals));
    }
    let total: u64 = rows.iter().map(|row| row.1).sum();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.1), row.0));
    let detail = |(gpu, idle, intervals): &Row| {
        let longest = intervals.iter().max_by_key(|(from, to)| to - from);
        let longest = longest.map_or_else(String::new, |(from, to)| {
            format!(", longest {}–{}", clock_time(*from), clock_time(*to))
        });
        format!("GPU {gpu}: idle {}{longest}", hours(*idle))
    };
    let figures = rows.iter().filter(|row| row.1 > 0).map(|(gpu, idle, intervals)| {
        let minutes = intervals.iter().map(|(from, to)| [from / 60_000, to / 60_000]);
        json!({
            "gpu": gpu,
            "idle_hours": metrics::hours(*idle),
            "intervals_min": minutes.collect::<Vec<_>>(),
        })
    });
    Answer {
        question: QUESTION,
        needs: Vec::new(),
        summary: format!(
            "{} reserved GPUs were idle for {} GPU-hours of {}",
            reserved.len(),
            hours(total).trim_end_matches(" h"),
            hours(u64::try_from(reserved.len()).unwrap_or(0) * history.served_until_ms)
                .trim_end_matches(" h"),
        ),
        details: rows.iter().filter(|row| row.1 > 0).map(detail).collect(),
        figures: json!({ "idle_gpu_hours": metrics::hours(total), "gpus": figures.collect::<Vec<_>>() }),
    }
}

/// When fewer than so many GPUs were in demand: then the last of them was idle.
fn below(history: &History<'_>, count: u32) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < history.served_until_ms {
        let next = history
            .demand
            .next_change(at)
            .unwrap_or(history.served_until_ms)
            .min(history.served_until_ms);
        if history.demand.at(at) < count {
            match found.last_mut() {
                Some(last) if last.1 == at => last.1 = next,
                _ => found.push((at, next)),
            }
        }
        at = next;
    }
    found
}
