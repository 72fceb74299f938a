//! Pure side: the planner as a policy: plans with the kernel, starts what is due, and plans again
//! when something happens that the plan did not know.
//!
//! 1. What runs is inherited; services keep their forecast.
//! 2. A job that has waited longer than the patience gets the earliest place there is, for good.
//! 3. The best order found is a plan that may be revoked; only what is due now starts.
//! 4. If EASY backfill would do better from here, its schedule is the plan.
//! 5. What is left over may start where it touches neither the plan nor the services: work that
//!    cannot end in time in any case, but runs instead of idling.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::explain::Reason;
use super::guard::easy;
use super::kernel::{Kernel, Slot, Task};
use super::score::Weights;
use super::search::{Budget, Control, search};
use crate::policy::GpuSet;
use crate::sim::profile::Profile;
use crate::sim::queues::expected_end;
use crate::sim::{Curve, Moment, Policy, Problem, Run, Start};

/// What a planner may do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether it knows all arrivals beforehand.
    pub clairvoyant: bool,
    /// Schedules that it may try each time that it plans.
    pub schedules: u32,
    /// Seed of the search.
    pub seed: u64,
    /// What the terms of the score weigh.
    pub weights: Weights,
    /// A job that has waited longer gets the earliest place there is.
    pub patience_ms: u64,
    /// Whoever watches the search.
    pub control: Option<Arc<Control>>,
}

impl Settings {
    /// Sees no future arrival; plans again within tens of milliseconds.
    pub fn online(seed: u64) -> Self {
        Self {
            clairvoyant: false,
            schedules: 4_000,
            seed,
            weights: Weights::default(),
            patience_ms: crate::trace::DAY_MS,
            control: None,
        }
    }

    /// Knows every arrival, and plans once, for a second or two.
    pub fn offline(seed: u64) -> Self {
        Self { clairvoyant: true, schedules: 200_000, ..Self::online(seed) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    start_ms: u64,
    gpus: GpuSet,
    reason: Reason,
}

/// A planner.
#[derive(Debug)]
pub struct Planner {
    settings: Settings,
    target: Option<Curve>,
    waiting: BTreeSet<usize>,
    plan: BTreeMap<usize, Place>,
    /// The order of the last plan, which the next one begins from.
    order: Vec<usize>,
    planned: bool,
    /// When what was started is expected to end.
    expected: BTreeMap<usize, u64>,
    /// What was started, and whatever has ended.
    started: BTreeSet<usize>,
    rejected: Vec<usize>,
    reasons: BTreeMap<usize, Reason>,
    /// Schedules tried in all, and times planned.
    tried: u64,
    plans: u64,
}

impl Planner {
    /// A planner that has seen nothing.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            target: None,
            waiting: BTreeSet::new(),
            plan: BTreeMap::new(),
            order: Vec::new(),
            planned: false,
            expected: BTreeMap::new(),
            started: BTreeSet::new(),
            rejected: Vec::new(),
            reasons: BTreeMap::new(),
            tried: 0,
            plans: 0,
        }
    }

    /// Why each job was started.
    pub fn reasons(&self) -> &BTreeMap<usize, Reason> {
        &self.reasons
    }

    /// Schedules tried in all.
    pub fn tried(&self) -> u64 {
        self.tried
    }

    fn replan(&mut self, moment: &Moment<'_>, target: &Curve) {
        let problem = moment.problem;
        self.plan.clear();
        let mut profile = occupied(moment, target);
        self.place_impatient(moment, &mut profile);
        let known: Vec<usize> = if self.settings.clairvoyant {
            let open = |job: &usize| {
                let begun = self.started.contains(job) || moment.state.running.contains_key(job);
                !begun && !self.plan.contains_key(job) && !self.rejected.contains(job)
            };
            (0..problem.jobs.len()).filter(open).collect()
        } else {
            self.waiting.iter().copied().filter(|job| !self.plan.contains_key(job)).collect()
        };
        let known: Vec<usize> = known
            .into_iter()
            .filter(|&job| last_end(problem, job, moment.now_ms).is_some())
            .collect();
        self.plans += 1;
        if known.is_empty() {
            return;
        }
        let mut kernel = self.kernel(moment, target, &known);
        let seed = self.settings.seed.wrapping_add(self.plans);
        let schedules = self.settings.schedules;
        let control = self.settings.control.as_deref();
        let first = self.first_order(&known);
        let found = search(&mut kernel, &first, Budget { schedules, seed, control });
        self.tried += u64::from(found.tried);
        let worth_of = |at: usize, start_ms: u64| {
            let step = steps(start_ms.saturating_sub(moment.now_ms), problem.step_ms);
            kernel.worth(at, step)
        };
        // Where promises were given already, EASY would not know of them.
        let easy = if self.plan.is_empty() { easy(moment, &known) } else { Vec::new() };
        let easy_worth: i64 = easy.iter().map(|run| worth_of(run.job, run.start_ms)).sum();
        if easy_worth > found.worth {
            self.plan.extend(easy.into_iter().map(|run| {
                let Run { job, gpus, start_ms, .. } = run;
                (known[job], Place { start_ms, gpus, reason: Reason::Easy })
            }));
        } else {
            for (&job, slot) in known.iter().zip(&found.slots).filter(|(_, s)| s.is_placed()) {
                let Slot { start, gpus } = *slot;
                let start_ms = moment.now_ms + u64::from(start) * problem.step_ms;
                self.plan.insert(job, Place { start_ms, gpus, reason: Reason::Planned });
            }
        }
        self.order = found.order.iter().map(|&at| known[usize::from(at)]).collect();
    }

    /// Jobs that have waited too long get the earliest place, in order of arrival.
    fn place_impatient(&mut self, moment: &Moment<'_>, profile: &mut Profile) {
        for &job in &self.waiting {
            let facts = &moment.problem.jobs[job];
            if moment.now_ms.saturating_sub(facts.arrival_ms) < self.settings.patience_ms {
                continue;
            }
            let found = profile.earliest(moment.now_ms, facts.width, facts.estimate_ms);
            if let Some((start_ms, gpus)) = found {
                profile.take(gpus, start_ms, start_ms.saturating_add(facts.estimate_ms));
                self.plan.insert(job, Place { start_ms, gpus, reason: Reason::Patience });
            }
        }
    }

    fn kernel(&self, moment: &Moment<'_>, target: &Curve, known: &[usize]) -> Kernel {
        let Moment { now_ms, problem, state, .. } = *moment;
        let step_ms = problem.step_ms;
        let kept: Vec<u32> = (now_ms..problem.horizon_ms)
            .step_by(usize::try_from(step_ms).unwrap_or(usize::MAX))
            .map(|at| target.at(at))
            .collect();
        let task = |&job: &usize| {
            let facts = &problem.jobs[job];
            let end_ms = last_end(problem, job, now_ms).unwrap_or(now_ms);
            Task {
                release: steps(facts.arrival_ms.saturating_sub(now_ms), step_ms),
                end_by: steps(end_ms - now_ms, step_ms),
                width: facts.width,
                length: steps(facts.estimate_ms, step_ms),
                priority: facts.priority,
                waited: steps(now_ms.saturating_sub(facts.arrival_ms), step_ms),
            }
        };
        let tasks = known.iter().map(task).collect();
        let mut kernel = Kernel::new(problem.gpus, &kept, tasks, self.settings.weights);
        for running in state.running.values() {
            let end = expected_end(running, now_ms, step_ms);
            kernel.take(running.gpus, 0, steps(end - now_ms, step_ms));
        }
        for (&job, place) in &self.plan {
            let from = steps(place.start_ms - now_ms, step_ms);
            let length = steps(problem.jobs[job].estimate_ms, step_ms);
            kernel.take(place.gpus, from, from.saturating_add(length));
        }
        kernel
    }

    /// The last order without those that are gone, then whoever is new, by arrival.
    fn first_order(&self, known: &[usize]) -> Vec<u16> {
        let place = |job: &usize| known.binary_search(job).ok();
        let mut order: Vec<usize> = self.order.iter().filter_map(place).collect();
        let mut seen = vec![false; known.len()];
        for &at in &order {
            seen[at] = true;
        }
        order.extend((0..known.len()).filter(|&at| !seen[at]));
        order.into_iter().filter_map(|at| u16::try_from(at).ok()).collect()
    }

    fn due(&self, moment: &Moment<'_>) -> Vec<(usize, Place)> {
        let now = moment.now_ms;
        let due = self.plan.iter().filter(|(_, place)| place.start_ms <= now);
        due.map(|(&job, &place)| (job, place)).collect()
    }

    /// Starts what cannot end in time wherever nothing else is planned, by priority.
    fn fill(
        &self,
        moment: &Moment<'_>,
        target: &Curve,
        started: &[(usize, Place)],
    ) -> Vec<(usize, Place)> {
        let Moment { now_ms, problem, .. } = *moment;
        // Whatever the plan has no room for would have been planned if it could end in time.
        let unplanned = |job: &usize| !self.plan.contains_key(job);
        let mut open: Vec<usize> = self.waiting.iter().copied().filter(unplanned).collect();
        if open.is_empty() {
            return Vec::new();
        }
        open.sort_by_key(|&job| (std::cmp::Reverse(problem.jobs[job].priority), job));
        let mut profile = occupied(moment, target);
        let planned = self.plan.iter().map(|(&job, &place)| (job, place));
        for (job, place) in planned.chain(started.iter().copied()) {
            let end = place.start_ms.saturating_add(problem.jobs[job].estimate_ms);
            profile.take(place.gpus, place.start_ms, end);
        }
        let mut starts = Vec::new();
        for job in open {
            let facts = &problem.jobs[job];
            if let Some(gpus) = profile.fit(now_ms, facts.width, facts.estimate_ms) {
                profile.take(gpus, now_ms, now_ms.saturating_add(facts.estimate_ms));
                starts.push((job, Place { start_ms: now_ms, gpus, reason: Reason::Fill }));
            }
        }
        starts
    }

    /// Whether something ran shorter or longer than it was expected to.
    fn surprised(&mut self, moment: &Moment<'_>) -> bool {
        let now = moment.now_ms;
        self.started.extend(moment.ended);
        let early = moment.ended.iter().any(|job| {
            let expected = self.expected.remove(job);
            expected.is_some_and(|end| end > now)
        });
        early || moment.state.running.values().any(|running| running.expected_end_ms <= now)
    }
}

impl Policy for Planner {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        let problem = moment.problem;
        let target = self.target.get_or_insert_with(|| problem.target()).clone();
        for &job in moment.arrived {
            let facts = &problem.jobs[job];
            let empty = Profile::new(problem.gpus, facts.arrival_ms, &target);
            let ever = empty.earliest(facts.arrival_ms, facts.width, facts.estimate_ms);
            if ever.is_some_and(|(at, _)| at < problem.horizon_ms) {
                self.waiting.insert(job);
            } else {
                self.rejected.push(job);
            }
        }
        let surprised = self.surprised(&moment);
        let news = !self.planned
            || (!self.settings.clairvoyant && !moment.arrived.is_empty())
            || surprised;
        if news {
            self.planned = true;
            self.replan(&moment, &target);
        }
        let mut starts = self.due(&moment);
        for (job, _) in &starts {
            self.plan.remove(job);
            self.waiting.remove(job);
        }
        let fill = self.fill(&moment, &target, &starts);
        for (job, _) in &fill {
            self.waiting.remove(job);
        }
        starts.extend(fill);
        for &(job, place) in &starts {
            self.started.insert(job);
            self.expected.insert(job, moment.now_ms + problem.jobs[job].estimate_ms);
            self.reasons.insert(job, place.reason);
        }
        starts.into_iter().map(|(job, place)| start(job, place)).collect()
    }

    fn wake_ms(&self, _now_ms: u64) -> Option<u64> {
        self.plan.values().map(|place| place.start_ms).min()
    }

    fn rejected(&self) -> &[usize] {
        &self.rejected
    }
}

fn start(job: usize, place: Place) -> Start {
    Start { job, node: 0, gpus: place.gpus }
}

/// The node's future as far as running jobs and services are concerned.
fn occupied(moment: &Moment<'_>, target: &Curve) -> Profile {
    let Moment { now_ms, problem, state, .. } = *moment;
    let mut profile = Profile::new(problem.gpus, now_ms, target);
    for running in state.running.values() {
        profile.take(running.gpus, now_ms, expected_end(running, now_ms, problem.step_ms));
    }
    profile
}

/// By when a job has to end to count as done, if that is possible from now on at all.
pub(super) fn last_end(problem: &Problem, job: usize, now_ms: u64) -> Option<u64> {
    let facts = &problem.jobs[job];
    let by = facts.deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms);
    (facts.arrival_ms.max(now_ms).saturating_add(facts.estimate_ms) <= by).then_some(by)
}

/// Whole steps of a span that is a multiple of them.
pub(super) fn steps(span_ms: u64, step_ms: u64) -> u32 {
    u32::try_from(span_ms / step_ms).unwrap_or(u32::MAX)
}
