//! Pure side: why each job was started where and when it was, and what that start was worth, term
//! by term, from what was known at that moment. The same for every policy.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::planner::{end_by, steps};
use super::score::{Fragmentation, Score, UNIT, Weights, overrun_permille, staleness};
use super::search::Control;
use crate::policy::GpuSet;
use crate::sim::queues::expected_end;
use crate::sim::{Curve, Moment, Policy, Problem, Running, Start, State};

/// Why a job was started where and when it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Nobody who arrived before it waits.
    InTurn,
    /// It passes somebody who arrived before it and waits on.
    Passes,
    /// The best order found has it start now.
    Planned,
    /// EASY backfill was better than the best order found, and starts it now.
    Easy,
    /// It has waited longer than the patience.
    Patience,
    /// It cannot end in time, and runs where nothing is planned that can.
    Fill,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InTurn => "in-turn",
            Self::Passes => "passes",
            Self::Planned => "planned",
            Self::Easy => "easy",
            Self::Patience => "patience",
            Self::Fill => "fill",
        })
    }
}

/// One start, explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Explanation {
    /// The job.
    pub job: usize,
    /// When.
    pub start_ms: u64,
    /// Why.
    pub reason: Reason,
    /// What it is worth.
    pub score: Score,
}

/// Stands between the engine and a policy, and writes down what each start was worth and how far
/// the play is.
pub(super) struct Explained<'a> {
    policy: &'a mut dyn Policy,
    weights: Weights,
    control: Option<&'a Control>,
    /// Who waits, by arrival; `None` where there is too much work to explain each start.
    waiting: Option<BTreeSet<(u64, usize)>>,
    target: Option<Curve>,
    explanations: Vec<Explanation>,
}

impl<'a> Explained<'a> {
    /// Watches a policy; `each` asks for an explanation of each start.
    pub(super) fn new(
        policy: &'a mut dyn Policy,
        weights: Weights,
        control: Option<&'a Control>,
        each: bool,
    ) -> Self {
        let waiting = each.then(BTreeSet::new);
        Self { policy, weights, control, waiting, target: None, explanations: Vec::new() }
    }

    /// One for each start, in order.
    pub(super) fn finish(self) -> Vec<Explanation> {
        self.explanations
    }

    fn explain(&mut self, moment: &Moment<'_>, starts: &[Start]) {
        let Some(waiting) = &mut self.waiting else { return };
        let problem = moment.problem;
        let key = |job: usize| (problem.jobs[job].arrival_ms, job);
        waiting.extend(moment.arrived.iter().map(|&job| key(job)));
        if starts.is_empty() {
            return;
        }
        for start in starts {
            waiting.remove(&key(start.job));
        }
        for job in self.policy.rejected() {
            waiting.remove(&key(*job));
        }
        let first = waiting.first().copied();
        let pending = waiting.iter().map(|&(_, job)| &problem.jobs[job]);
        let pending =
            Fragmentation::new(problem.gpus, pending.map(|job| (job.width, job.priority)));
        let target = self.target.get_or_insert_with(|| problem.target());
        let mut state = moment.state.clone();
        for &start in starts {
            let seen = Moment { state: &state, ..*moment };
            let score = score(&seen, start, target, &self.weights, &pending);
            let passes = first.is_some_and(|first| first < key(start.job));
            let reason = if passes { Reason::Passes } else { Reason::InTurn };
            let start_ms = moment.now_ms;
            self.explanations.push(Explanation { job: start.job, start_ms, reason, score });
            begin(&mut state, problem, start, start_ms);
        }
    }
}

impl Policy for Explained<'_> {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        if let Some(control) = self.control {
            control.at(moment.now_ms);
        }
        let starts = self.policy.decide(moment);
        self.explain(&moment, &starts);
        starts
    }

    fn wake_ms(&self, now_ms: u64) -> Option<u64> {
        self.policy.wake_ms(now_ms)
    }

    fn rejected(&self) -> &[usize] {
        self.policy.rejected()
    }
}

/// The state after a start, for the next one of the same moment.
fn begin(state: &mut State, problem: &Problem, start: Start, now_ms: u64) {
    let Start { job, node, gpus } = start;
    if let Some(taken) = state.taken.get_mut(node) {
        *taken = taken.union(gpus);
    }
    let facts = &problem.jobs[job];
    let shape = facts.shape(gpus.count()).unwrap_or(facts.narrow());
    let expected_end_ms = now_ms + shape.estimate_ms;
    state.running.insert(job, Running { node, gpus, start_ms: now_ms, expected_end_ms });
}

/// What starting a job now is worth. `pending` tells what free GPUs are worth to those who wait on.
fn score(
    moment: &Moment<'_>,
    start: Start,
    target: &Curve,
    weights: &Weights,
    pending: &Fragmentation,
) -> Score {
    let Moment { now_ms, problem, state, .. } = *moment;
    let Start { job, node, gpus } = start;
    let facts = &problem.jobs[job];
    let shape = facts.shape(gpus.count()).unwrap_or(facts.narrow());
    let length = steps(shape.estimate_ms, problem.step_ms);
    let asked = steps(facts.estimate_ms, problem.step_ms);
    let before_horizon = length.min(steps(problem.horizon_ms - now_ms, problem.step_ms));
    let whole = UNIT * i64::from(facts.priority) * i64::from(facts.width) * i64::from(asked);
    let slack_ms = end_by(problem, facts).checked_sub(now_ms.saturating_add(shape.estimate_ms));
    let mut useful_work = whole;
    let mut deadline_risk = 0;
    if let Some(slack_ms) = slack_ms {
        let slack = u64::from(steps(slack_ms, problem.step_ms));
        let error = weights.estimate_error_permille;
        deadline_risk = whole / 1_000 * overrun_permille(slack, u64::from(length), error);
    } else {
        let done = whole / i64::from(length.max(1)) * i64::from(before_horizon);
        useful_work = done * weights.late_permille / 1_000;
    }
    let waited = steps(now_ms.saturating_sub(facts.arrival_ms), problem.step_ms);
    let staleness = staleness(facts.priority, facts.width, problem.steps(), weights);
    let taken = state.taken.get(node).copied().unwrap_or_default();
    let fragmentation = i64::from(pending.of(taken.union(gpus).0)) - i64::from(pending.of(taken.0));
    // Services sit at the upper end of what jobs leave.
    let free = GpuSet::first(problem.gpus).minus(taken);
    let services = free.highest(target.at(now_ms).min(free.count())).unwrap_or_default();
    let moved = i64::from(services.intersection(gpus).count());
    let unmet = unmet(moment, start, target, before_horizon);
    let highest = problem.jobs.iter().map(|job| job.priority);
    let highest = highest.chain(problem.services.iter().map(|service| service.priority)).max();
    let heavy = UNIT * weights.shortfall * i64::from(highest.unwrap_or(1));
    Score {
        useful_work,
        realtime_shortfall: heavy * i64::from(unmet),
        churn: weights.churn * moved,
        fragmentation,
        deadline_risk,
        staleness_risk: staleness * i64::from(waited),
    }
}

/// GPU-steps of the forecast that this start alone leaves unmet: what runs already takes its part
/// with or without it.
fn unmet(moment: &Moment<'_>, start: Start, target: &Curve, length: u32) -> u32 {
    let Moment { now_ms, problem, state, .. } = *moment;
    if target.steps().is_empty() {
        return 0;
    }
    let width = start.gpus.count();
    let ends: Vec<(u64, u32)> = state
        .running
        .values()
        .filter(|running| running.node == start.node)
        .map(|running| (expected_end(running, now_ms, problem.step_ms), running.gpus.count()))
        .collect();
    (0..length)
        .map(|step| {
            let at = now_ms + u64::from(step) * problem.step_ms;
            let used: u32 = ends.iter().filter(|(end, _)| *end > at).map(|(_, gpus)| gpus).sum();
            let left = problem.gpus.saturating_sub(used);
            let wanted = target.at(at);
            wanted.saturating_sub(left.saturating_sub(width)) - wanted.saturating_sub(left)
        })
        .sum()
}
