//! Pure side: the planner as a policy: plans with the kernel, starts what is due, and plans again
//! when something happens that the plan did not know.
//!
//! 1. What runs is inherited; services keep their forecast.
//! 2. A job that has waited longer than the patience gets the earliest place there is, for good.
//! 3. The best order found is a plan that may be revoked; only what is due now starts. Work that
//!    cannot end in time is part of it, for less than what it would be worth in time.
//! 4. If EASY backfill would do better from here, its schedule is the plan.
//! 5. What is left over may start where it touches neither the plan nor the services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::explain::Reason;
use super::guard::easy;
use super::kernel::{Kernel, Task};
use super::score::Weights;
use super::search::{Budget, Control, Found, search};
use crate::policy::GpuSet;
use crate::sim::profile::Profile;
use crate::sim::queues::expected_end;
use crate::sim::{Curve, Job, Moment, Policy, Problem, Shape, Start};

/// What a planner may do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether it knows all arrivals beforehand.
    pub clairvoyant: bool,
    /// Schedules that it may try each time that it plans; without it, as many as `placements`
    /// allow.
    pub schedules: Option<u32>,
    /// Jobs that it may put somewhere each time that it plans, over all schedules: what a plan
    /// costs, however many jobs wait.
    pub placements: u32,
    /// Schedules for each pair of jobs, after which it stops in any case.
    pub per_pair: u32,
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
            schedules: None,
            placements: ONLINE_PLACEMENTS,
            per_pair: ONLINE_PER_PAIR,
            seed,
            weights: Weights::default(),
            patience_ms: crate::trace::DAY_MS,
            control: None,
        }
    }

    /// Knows every arrival, and plans once, for a second or two.
    pub fn offline(seed: u64) -> Self {
        Self {
            clairvoyant: true,
            placements: OFFLINE_PLACEMENTS,
            per_pair: OFFLINE_PER_PAIR,
            ..Self::online(seed)
        }
    }

    /// Schedules that it may try with so many jobs.
    pub fn budget(&self, jobs: usize) -> u32 {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX).max(1);
        let enough = self.per_pair.saturating_mul(jobs).saturating_mul(jobs);
        let most = (self.placements / jobs).max(SCHEDULES_MIN);
        self.schedules.unwrap_or_else(|| enough.clamp(SCHEDULES_MIN, most))
    }
}

/// What fits into 50 milliseconds on one core where every place is taken and a day has 288 steps.
const ONLINE_PLACEMENTS: u32 = 420_000;
/// What fits into two seconds there.
const OFFLINE_PLACEMENTS: u32 = 24_000_000;
/// Schedules per square of the number of jobs, after which more find hardly anything better.
const ONLINE_PER_PAIR: u32 = 20;
/// The same where there is time.
const OFFLINE_PER_PAIR: u32 = 1_000;
/// However few jobs there are, and however many.
const SCHEDULES_MIN: u32 = 2_000;

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
    /// The order of the last plan, which the next one begins from, with the width of each.
    order: Vec<(usize, u32)>,
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
        self.plans += 1;
        if known.is_empty() {
            return;
        }
        let shapes = shapes(problem, &known);
        let mut kernel = self.kernel(moment, target, &known, &shapes);
        let seed = self.settings.seed.wrapping_add(self.plans);
        let schedules = self.settings.budget(known.len());
        let control = self.settings.control.as_deref();
        let first = self.first_order(&known, &shapes);
        let found = search(&mut kernel, &first, Budget { schedules, seed, control });
        self.tried += u64::from(found.tried);
        // Where promises were given already, EASY would not know of them.
        let easy = if self.plan.is_empty() {
            easy_places(moment, &known, &shapes, &kernel)
        } else {
            (0, BTreeMap::new())
        };
        if easy.0 > found.worth {
            self.plan.extend(easy.1);
        } else {
            self.adopt(moment, (&known, &shapes), &kernel, &found);
        }
        let named = |&at: &u16| {
            let (place, shape) = shapes[usize::from(at)];
            (known[place], shape.width)
        };
        self.order = found.order.iter().map(named).collect();
    }

    /// Takes the best schedule found for the plan.
    fn adopt(
        &mut self,
        moment: &Moment<'_>,
        (known, shapes): (&[usize], &[(usize, Shape)]),
        kernel: &Kernel,
        found: &Found,
    ) {
        for &at in &found.order {
            let at = usize::from(at);
            let slot = found.slots[at];
            if !slot.is_placed() {
                continue;
            }
            let start_ms = moment.now_ms + u64::from(slot.start) * moment.problem.step_ms;
            let reason =
                if kernel.in_time(at, slot.start) { Reason::Planned } else { Reason::Fill };
            let place = Place { start_ms, gpus: slot.gpus, reason };
            self.plan.insert(known[shapes[at].0], place);
        }
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

    fn kernel(
        &self,
        moment: &Moment<'_>,
        target: &Curve,
        known: &[usize],
        shapes: &[(usize, Shape)],
    ) -> Kernel {
        let Moment { now_ms, problem, state, .. } = *moment;
        let step_ms = problem.step_ms;
        let kept: Vec<u32> = (now_ms..problem.horizon_ms)
            .step_by(usize::try_from(step_ms).unwrap_or(usize::MAX))
            .map(|at| target.at(at))
            .collect();
        let task = |&(place, shape): &(usize, Shape)| {
            let facts = &problem.jobs[known[place]];
            Task {
                job: u16::try_from(place).unwrap_or(u16::MAX),
                release: steps(facts.arrival_ms.saturating_sub(now_ms), step_ms),
                end_by: steps(end_by(problem, facts).saturating_sub(now_ms), step_ms),
                width: shape.width,
                length: length(shape.estimate_ms, step_ms),
                work: facts.width * length(facts.estimate_ms, step_ms),
                priority: facts.priority,
                waited: steps(now_ms.saturating_sub(facts.arrival_ms), step_ms),
            }
        };
        let tasks = shapes.iter().map(task).collect();
        let mut kernel = Kernel::new(problem.gpus, &kept, tasks, self.settings.weights);
        for running in state.running.values() {
            let end = expected_end(running, now_ms, step_ms);
            kernel.take(running.gpus, 0, steps(end - now_ms, step_ms));
        }
        for (&job, place) in &self.plan {
            let from = steps(place.start_ms - now_ms, step_ms);
            let length = length(estimate(problem, job, place), step_ms);
            kernel.take(place.gpus, from, from.saturating_add(length));
        }
        kernel
    }

    /// The last order without those that are gone, then whoever is new, by arrival.
    fn first_order(&self, known: &[usize], shapes: &[(usize, Shape)]) -> Vec<u16> {
        let mut seen = vec![false; known.len()];
        let mut order = Vec::new();
        for &(job, width) in &self.order {
            let same =
                |&(place, shape): &(usize, Shape)| known[place] == job && shape.width == width;
            if let Some(at) = shapes.iter().position(same) {
                seen[shapes[at].0] = true;
                order.push(at);
            }
        }
        for (at, &(place, _)) in shapes.iter().enumerate() {
            // The narrowest shape comes first.
            if !std::mem::replace(&mut seen[place], true) {
                order.push(at);
            }
        }
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
        // Whatever the plan has a place for waits for it.
        let unplanned = |job: &usize| !self.plan.contains_key(job);
        let mut open: Vec<usize> = self.waiting.iter().copied().filter(unplanned).collect();
        if open.is_empty() {
            return Vec::new();
        }
        open.sort_by_key(|&job| (std::cmp::Reverse(problem.jobs[job].priority), job));
        let mut profile = occupied(moment, target);
        let planned = self.plan.iter().map(|(&job, &place)| (job, place));
        for (job, place) in planned.chain(started.iter().copied()) {
            let end = place.start_ms.saturating_add(estimate(problem, job, &place));
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
            self.expected.insert(job, moment.now_ms + estimate(problem, job, &place));
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

/// By when a job has to end to count as done.
pub(super) fn end_by(problem: &Problem, job: &Job) -> u64 {
    job.deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms)
}

/// Every shape of every known job, with its place in `known`; the narrowest of each comes first.
fn shapes(problem: &Problem, known: &[usize]) -> Vec<(usize, Shape)> {
    let of = |(place, &job): (usize, &usize)| {
        problem.jobs[job].shapes().map(move |shape| (place, shape)).collect::<Vec<_>>()
    };
    known.iter().enumerate().flat_map(of).collect()
}

/// How long a job is expected to run in a place: its GPUs tell the shape.
fn estimate(problem: &Problem, job: usize, place: &Place) -> u64 {
    let facts = &problem.jobs[job];
    facts.shape(place.gpus.count()).map_or(facts.estimate_ms, |shape| shape.estimate_ms)
}

/// What EASY would do, and what that is worth.
fn easy_places(
    moment: &Moment<'_>,
    known: &[usize],
    shapes: &[(usize, Shape)],
    kernel: &Kernel,
) -> (i64, BTreeMap<usize, Place>) {
    let mut worth = 0;
    let mut plan = BTreeMap::new();
    for run in easy(moment, known) {
        // EASY takes the shape that the job asks for, which comes first.
        let at = shapes.partition_point(|&(place, _)| place < run.job);
        let start = steps(run.start_ms - moment.now_ms, moment.problem.step_ms);
        worth += kernel.worth(at, start);
        let place = Place { start_ms: run.start_ms, gpus: run.gpus, reason: Reason::Easy };
        plan.insert(known[run.job], place);
    }
    (worth, plan)
}

/// Steps of a run, no more than a sum of them can hold.
fn length(span_ms: u64, step_ms: u64) -> u32 {
    steps(span_ms, step_ms).min(LENGTH_MAX)
}

/// Far beyond every horizon that is planned for.
const LENGTH_MAX: u32 = 1 << 20;

/// Whole steps of a span that is a multiple of them.
pub(super) fn steps(span_ms: u64, step_ms: u64) -> u32 {
    u32::try_from(span_ms / step_ms).unwrap_or(u32::MAX)
}
