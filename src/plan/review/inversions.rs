//! Pure side: low-priority work that started before higher-priority work arrived and then stood in
//! its way.

use std::cmp::Reverse;

use serde_json::json;

use super::history::{History, Now, Ran};
use super::{Answer, hours, lacking};
use crate::plan::metrics::{self, longest_run};
use crate::policy::GpuSet;
use crate::trace::{Column, Job, clock_time};

const QUESTION: &str = "3. Which low-priority jobs started before higher-priority work arrived?";

struct Pair<'a> {
    low: Ran<'a>,
    high: &'a Job,
    waited_ms: u64,
    avoidable: bool,
    /// Whether it stood in the way only together with others of low priority.
    together: bool,
}

pub(super) fn answer(history: &History<'_>) -> Answer {
    let columns = [Column::Priority, Column::ActualStart, Column::GpuIds];
    let needs = lacking(history, &columns);
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    history.sweep(|now| {
        for &job in now.arrived {
            pairs.extend(in_the_way(history, now, &history.workload.jobs[job]));
        }
    });
    pairs.sort_by_key(|pair| {
        let more = u64::from(pair.high.priority - pair.low.job.priority);
        (Reverse(pair.waited_ms * more), pair.high.line, pair.low.job.line)
    });
    let avoidable = pairs.iter().filter(|pair| pair.avoidable).count();
    let figures = pairs.iter().map(|pair| {
        json!({
            "low": pair.low.job.id,
            "high": pair.high.id,
            "wait_hours": metrics::hours(pair.waited_ms),
            "avoidable": pair.avoidable,
            "together": pair.together,
        })
    });
    let summary = match pairs.len() {
        0 => "none that stood in the way of work that mattered more".to_owned(),
        1 => format!("1 pair, {avoidable} of which could have been avoided with a forecast"),
        all => format!("{all} pairs, {avoidable} of which could have been avoided with a forecast"),
    };
    Answer {
        question: QUESTION,
        needs,
        summary,
        details: pairs.iter().map(detail).collect(),
        figures: json!({ "pairs": figures.collect::<Vec<_>>() }),
    }
}

fn detail(pair: &Pair<'_>) -> String {
    let Pair { low, high, waited_ms, avoidable, together } = pair;
    format!(
        "{} (priority {}) from {} held up {} (priority {}, arrived {}) for {}{}; {}",
        low.job.id,
        low.job.priority,
        clock_time(low.start_ms),
        high.id,
        high.priority,
        clock_time(high.arrival_ms),
        hours(*waited_ms),
        if *together { ", together with others" } else { "" },
        if *avoidable {
            "avoidable, had the arrival been forecast: it had the slack to wait"
        } else {
            "not avoidable: waiting would have cost its own deadline"
        },
    )
}

/// Whom a job that arrives now and waits finds in its way.
fn in_the_way<'a>(history: &History<'a>, now: &Now<'_>, high: &'a Job) -> Vec<Pair<'a>> {
    let (from, until) = (high.arrival_ms, history.waited_until(high));
    let room = |set: GpuSet, taken: u32| {
        set.count().saturating_sub(taken) >= high.min_gpus && longest_run(set) >= high.min_gpus
    };
    let free: Vec<(GpuSet, u32)> = (0..history.nodes)
        .map(|node| (history.free(node, now.running), history.elastic(node, from)))
        .collect();
    // Something else than running work kept it waiting.
    if free.iter().any(|&(set, taken)| room(set, taken)) {
        return Vec::new();
    }
    let lower: Vec<Ran<'a>> = now
        .running
        .iter()
        .map(|&at| history.runs[at])
        .filter(|low| low.job.priority < high.priority && low.start_ms < from)
        .filter(|low| low.node < history.nodes)
        .collect();
    let alone = |low: &&Ran<'a>| {
        let (set, taken) = free[low.node];
        room(set.union(low.gpus), taken)
    };
    let mut found: Vec<Ran<'a>> = lower.iter().filter(alone).copied().collect();
    let together = found.is_empty();
    if together {
        let all = |node: usize| {
            let on_it = lower.iter().filter(|low| low.node == node);
            let set = on_it.fold(free[node].0, |set, low| set.union(low.gpus));
            room(set, free[node].1)
        };
        found = lower.iter().filter(|low| all(low.node)).copied().collect();
    }
    let pair = |low: Ran<'a>| {
        // Could it have let the other go first and still have ended in time?
        let after = (from + high.expected_ms).saturating_add(low.job.expected_ms);
        let avoidable = low.job.deadline_ms.is_none_or(|deadline| after <= deadline);
        Pair { low, high, waited_ms: until.min(low.end_ms) - from, avoidable, together }
    };
    found.into_iter().map(pair).collect()
}
