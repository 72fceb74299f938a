//! Pure side: estimates that were wrong, and which of them mattered.
//!
//! A ratio alone does not say whether an error did harm. So the day is planned twice, online: with
//! the estimates as they were, and with those of one kind of work put right. What that changes in
//! the value done by the deadline is the consequence.

use std::collections::BTreeMap;

use serde_json::json;

use super::history::History;
use super::{Answer, lacking};
use crate::plan::build::{self, Frame};
use crate::plan::compare::{Effort, Name, play};
use crate::plan::metrics::{quantile, to_f64};
use crate::sim::Problem;
use crate::trace::{Column, DAY_MS, Format, Job, MINUTE_MS};

const QUESTION: &str = "5. Which estimates were wrong enough to make the schedule unreliable?";
/// A change of the value done that counts as harm.
const HARM_PERCENT: f64 = 2.0;

struct Group {
    jobs: usize,
    median: f64,
    p90: f64,
    bias: f64,
    /// Change of the value done by the deadline if these estimates had been right, in per cent.
    harm: Option<f64>,
}

pub(super) fn answer(history: &History<'_>, effort: &Effort) -> Answer {
    let workload = history.workload;
    let columns = [Column::ExpectedDuration, Column::ActualStart, Column::ActualEnd];
    let needs = lacking(history, &columns);
    if !needs.is_empty() {
        return Answer::cannot(QUESTION, needs);
    }
    let mut kinds: BTreeMap<String, Vec<&Job>> = BTreeMap::new();
    let mut censored = 0;
    for job in &workload.jobs {
        // An estimate is one for min_gpus; a run on more of them says nothing about it.
        let width = u32::try_from(job.actual.gpus.len()).unwrap_or(u32::MAX);
        if job.ran_ms().is_some() && (width == 0 || width == job.min_gpus) {
            kinds.entry(job.kind.clone()).or_default().push(job);
            if let Some(user) = &job.user {
                kinds.entry(format!("user {user}")).or_default().push(job);
            }
        } else {
            censored += 1;
        }
    }
    if kinds.is_empty() {
        let need = "at least one job that ran to its end, with actual_start and actual_end";
        return Answer::cannot(QUESTION, vec![need.to_owned()]);
    }
    let replay = Replay::new(history, effort);
    let mut rows: Vec<(String, Group)> = Vec::new();
    for (name, jobs) in kinds {
        let harm = replay.as_ref().ok().and_then(|replay| replay.harm(&jobs, effort));
        rows.push((name, group(&jobs, harm)));
    }
    let rank = |group: &Group| group.harm.map_or(0.0, f64::abs);
    rows.sort_by(|a, b| rank(&b.1).total_cmp(&rank(&a.1)).then_with(|| a.0.cmp(&b.0)));
    let harmful = rows.iter().filter(|(_, group)| rank(group) > HARM_PERCENT).count();
    let detail = |(name, group): &(String, Group)| {
        let harm = match (&replay, group.harm) {
            (_, Some(harm)) => {
                format!("right estimates would change the value done by {harm:+.1} %")
            }
            (Err(why), None) => format!("consequence unknown: {why}"),
            (Ok(_), None) => "consequence unknown: a plan gets nothing done that day".to_owned(),
        };
        format!(
            "{name} ({} runs): median {:.2} x the estimate, 90 % below {:.2} x, in sum {:.2} x; {harm}",
            group.jobs, group.median, group.p90, group.bias
        )
    };
    let figures = rows.iter().map(|(name, group)| {
        json!({
            "group": name,
            "runs": group.jobs,
            "median_ratio": group.median,
            "p90_ratio": group.p90,
            "sum_ratio": group.bias,
            "value_done_change_percent": group.harm,
        })
    });
    Answer {
        question: QUESTION,
        needs,
        summary: format!(
            "{harmful} of {} groups were wrong by enough to move the value done by more than \
             {HARM_PERCENT} %; {censored} jobs that did not run to their end on min_gpus are left out",
            rows.len(),
        ),
        details: rows.iter().map(detail).collect(),
        figures: json!({ "groups": figures.collect::<Vec<_>>(), "left_out": censored }),
    }
}

fn group(jobs: &[&Job], harm: Option<f64>) -> Group {
    let (mut ran_sum, mut expected_sum) = (0, 0);
    let mut permille: Vec<u64> = Vec::new();
    for job in jobs {
        let ran = job.ran_ms().unwrap_or_default();
        ran_sum += ran;
        expected_sum += job.expected_ms;
        permille.push(ran * 1_000 / job.expected_ms.max(1));
    }
    permille.sort_unstable();
    Group {
        jobs: jobs.len(),
        median: to_f64(quantile(&permille, 500)) / 1_000.0,
        p90: to_f64(quantile(&permille, 900)) / 1_000.0,
        bias: to_f64(ran_sum) / to_f64(expected_sum.max(1)),
        harm,
    }
}

/// The day, to be planned again.
struct Replay {
    problem: Problem,
    done: f64,
}

impl Replay {
    fn new(history: &History<'_>, effort: &Effort) -> Result<Self, String> {
        let workload = history.workload;
        let last = workload.jobs.iter().filter_map(|job| job.deadline_ms).max();
        let last = last.unwrap_or_default().max(workload.last_arrival_ms() + 1);
        // Live records are often of minutes, and their midnight is not their begin.
        let (step_ms, horizon_ms) = if workload.format == Format::Records {
            let span = history.end_ms.saturating_sub(workload.first_arrival_ms());
            let step = (span / 288).clamp(1_000, 15 * MINUTE_MS).next_multiple_of(1_000);
            (step, history.end_ms.max(1).next_multiple_of(step))
        } else {
            (15 * MINUTE_MS, last.next_multiple_of(DAY_MS))
        };
        let frame = Frame {
            gpus: history.gpus,
            nodes: history.nodes,
            step_ms: Some(step_ms),
            horizon_ms: Some(horizon_ms),
            ..Frame::default()
        };
        let problem = build::problem(workload, frame).map_err(|error| error.to_string())?;
        let played = play(&problem, Name::PlanOnline, effort).map_err(|error| error.to_string())?;
        Ok(Self { problem, done: played.metrics.value_done })
    }

    fn harm(&self, jobs: &[&Job], effort: &Effort) -> Option<f64> {
        let mut problem = self.problem.clone();
        for job in &mut problem.jobs {
            if jobs.iter().any(|right| right.id == job.name) {
                job.estimate_ms = job.run_ms;
                for shape in &mut job.wider {
                    shape.estimate_ms = shape.run_ms;
                }
            }
        }
        let done = play(&problem, Name::PlanOnline, effort).ok()?.metrics.value_done;
        (self.done > 0.0).then(|| (done / self.done - 1.0) * 100.0)
    }
}
