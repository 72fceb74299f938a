//! Pure side: low-priority work that started before higher-priority work arrived and then stood in
//! its way.

use serde_json::json;

use super::history::{History, Ran};
use super::{Answer, hours, missing};
use crate::plan::metrics::{self, longest_run};
use crate::policy::GpuSet;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str = "3. Which low-priority jobs started before higher-priority work arrived?";

struct Pair<'a> {
    low: Ran<'a>,
    high: &'a Job,
    waited_ms: u64,
    avoidable: bool,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let columns = [Column::Priority, Column::ActualStart, Column::GpuIds];
    let needs = missing(history.workload, &columns);
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for high in &history.workload.jobs {
        let (from, until) = (high.arrival_ms, history.waited_until(high));
        if until <= from {
            continue;
        }
        let free = GpuSet::first(history.gpus).minus(history.taken(from)).minus(history.reserved);
        let before = history.runs.iter().filter(|low| {
            low.job.priority < high.priority && low.start_ms < from && from < low.end_ms
        });
        for &low in before {
            // Without it the block would have been there, with what was free.
            if longest_run(free.union(low.gpus)) < high.min_gpus
                || longest_run(free) >= high.min_gpus
            {
                continue;
            }
            let waited_ms = until.min(low.end_ms) - from;
            // Could it have let the other go first and still have ended in time?
            let after = (from + high.expected_ms).saturating_add(low.job.expected_ms);
            let avoidable = low.job.deadline_ms.is_none_or(|deadline| after <= deadline);
            pairs.push(Pair { low, high, waited_ms, avoidable });
        }
    }
    pairs.sort_by_key(|pair| {
        let weight = pair.waited_ms * u64::from(pair.high.priority - pair.low.job.priority);
        (std::cmp::Reverse(weight), pair.high.line, pair.low.job.line)
    });
    let avoidable = pairs.iter().filter(|pair| pair.avoidable).count();
    let detail = |pair: &Pair<'_>| {
        let Pair { low, high, waited_ms, avoidable } = pair;
        format!(
            "{} (priority {}) from {} held up {} (priority {}, arrived {}) for {}; {}",
            low.job.id,
            low.job.priority,
            clock_time(low.start_ms),
            high.id,
            high.priority,
            clock_time(high.arrival_ms),
            hours(*waited_ms),
            if *avoidable {
                "avoidable, had the arrival been forecast: it had the slack to wait"
            } else {
                "not avoidable: waiting would have cost its own deadline"
            },
        )
    };
    let figures = pairs.iter().map(|pair| {
        json!({
            "low": pair.low.job.id,
            "high": pair.high.id,
            "wait_hours": metrics::hours(pair.waited_ms),
            "avoidable": pair.avoidable,
        })
    });
    let summary = match pairs.len() {
        0 => "none that stood in the way of work that mattered more".to_owned(),
        all => format!("{all} pairs, of which {avoidable} could have been avoided with a forecast"),
    };
    Answer {
        question: QUESTION,
        needs,
        summary,
        details: pairs.iter().map(detail).collect(),
        figures: json!({ "pairs": figures.collect::<Vec<_>>() }),
    }
}
