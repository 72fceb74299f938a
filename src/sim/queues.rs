//! Pure: schedulers that serve a queue in a fixed order: FIFO that blocks, FIFO that lets others
//! pass, EASY backfill, greedy and strict large priority; each with real-time services reserved
//! at their peak all day, or held to their forecast.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::profile::{Profile, block_starts, lowest_block};
use super::{Curve, Moment, Policy, Problem, Running, Start};
use crate::policy::GpuSet;

/// Waiting jobs that EASY looks at behind the head: bounds the cost of one decision.
const BACKFILL_DEPTH: usize = 1_000;

/// Who goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Whoever arrived first.
    Arrival,
    /// Whoever matters most, then arrival.
    Priority,
    /// Whoever is widest, then arrival.
    Widest,
}

/// What happens when the first in the queue does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Everybody waits.
    Nobody,
    /// Whoever fits passes.
    Anybody,
    /// Whoever fits and does not delay the first one's earliest start passes.
    Harmless,
}

/// How GPUs are kept for real-time services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Realtime {
    /// The peak, all day, at the upper end of the line.
    Peak,
    /// What the forecast says, wherever there is room.
    Elastic,
}

/// A scheduler of this family.
#[derive(Debug)]
pub struct Queue {
    order: Order,
    pass: Pass,
    realtime: Realtime,
    waiting: BTreeSet<(Key, usize)>,
    rejected: Vec<usize>,
    /// What services are expected to need, and GPUs that jobs may use at all.
    view: Option<(Curve, u32)>,
}

type Key = (Reverse<u32>, u64);

impl Queue {
    /// An empty queue.
    pub fn new(order: Order, pass: Pass, realtime: Realtime) -> Self {
        let waiting = BTreeSet::new();
        Self { order, pass, realtime, waiting, rejected: Vec::new(), view: None }
    }

    fn key(&self, problem: &Problem, job: usize) -> Key {
        let facts = &problem.jobs[job];
        let rank = match self.order {
            Order::Arrival => 0,
            Order::Priority => facts.priority,
            Order::Widest => facts.width,
        };
        (Reverse(rank), facts.arrival_ms)
    }

    fn view(&mut self, problem: &Problem) -> (Curve, u32) {
        let view = self.view.get_or_insert_with(|| match self.realtime {
            Realtime::Peak => (Curve::default(), problem.gpus - problem.peak()),
            Realtime::Elastic => (problem.target(), problem.gpus),
        });
        view.clone()
    }

    /// Whether a job can start before the horizon if nothing else runs.
    fn possible(problem: &Problem, job: usize, services: &Curve, gpus: u32) -> bool {
        let facts = &problem.jobs[job];
        let empty = Profile::new(gpus, facts.arrival_ms, services);
        let earliest = empty.earliest(facts.arrival_ms, facts.width, facts.estimate_ms);
        earliest.is_some_and(|(at, _)| at < problem.horizon_ms)
    }

    fn serve(&self, nodes: &mut Nodes<'_>) -> Vec<Start> {
        let mut starts = Vec::new();
        // Where time makes no difference, a width that did not fit does not fit again.
        let mut too_wide = u32::MAX;
        for &(_, job) in &self.waiting {
            let width = nodes.problem.jobs[job].width;
            if width >= too_wide {
                continue;
            }
            if let Some(start) = nodes.place(job) {
                starts.push(start);
                continue;
            }
            match self.pass {
                Pass::Nobody => break,
                Pass::Harmless => {
                    nodes.reserve(job);
                    self.backfill(job, nodes, &mut starts);
                    break;
                }
                Pass::Anybody if nodes.timeless() => too_wide = width,
                Pass::Anybody => {}
            }
            if too_wide <= 1 {
                break;
            }
        }
        starts
    }

    fn backfill(&self, head: usize, nodes: &mut Nodes<'_>, starts: &mut Vec<Start>) {
        let behind = self.waiting.iter().map(|&(_, job)| job).skip_while(|&job| job != head);
        for job in behind.skip(1).take(BACKFILL_DEPTH) {
            if nodes.full() {
                break;
            }
            starts.extend(nodes.place(job));
        }
    }
}

impl Policy for Queue {
    fn decide(&mut self, moment: Moment<'_>) -> Vec<Start> {
        let problem = moment.problem;
        let (services, gpus) = self.view(problem);
        for &job in moment.arrived {
            if Self::possible(problem, job, &services, gpus) {
                self.waiting.insert((self.key(problem, job), job));
            } else {
                self.rejected.push(job);
            }
        }
        let needs_future = self.pass == Pass::Harmless || !services.steps().is_empty();
        let starts = self.serve(&mut Nodes::new(moment, &services, gpus, needs_future));
        for start in &starts {
            self.waiting.remove(&(self.key(problem, start.job), start.job));
        }
        starts
    }

    fn rejected(&self) -> &[usize] {
        &self.rejected
    }
}

/// Nodes as they become while starts are decided.
struct Nodes<'a> {
    problem: &'a Problem,
    now_ms: u64,
    gpus: u32,
    free: Vec<u64>,
    /// Each node's future, where it makes a difference.
    profiles: Vec<Profile>,
}

impl<'a> Nodes<'a> {
    fn new(moment: Moment<'a>, services: &Curve, gpus: u32, needs_future: bool) -> Self {
        let Moment { now_ms, problem, state, .. } = moment;
        let all = GpuSet::first(gpus);
        let free = state.taken.iter().map(|taken| all.minus(*taken).0).collect();
        let mut profiles = Vec::new();
        if needs_future {
            profiles = vec![Profile::new(gpus, now_ms, services); problem.nodes];
            for running in state.running.values() {
                let end = expected_end(running, now_ms, problem.step_ms);
                profiles[running.node].take(running.gpus, now_ms, end);
            }
        }
        Self { problem, now_ms, gpus, free, profiles }
    }

    fn timeless(&self) -> bool {
        self.profiles.is_empty()
    }

    fn full(&self) -> bool {
        self.free.iter().all(|free| *free == 0)
    }

    /// Starts a job on the fullest node that has room for it, and takes the GPUs.
    fn place(&mut self, job: usize) -> Option<Start> {
        let facts = &self.problem.jobs[job];
        if facts.width > self.gpus {
            return None;
        }
        let has_block = |free: u64| block_starts(free, self.gpus, facts.width) != 0;
        let fitting = self.free.iter().enumerate().filter(|&(_, &free)| has_block(free));
        let fitting = fitting.filter_map(|(node, &free)| {
            let gpus = match self.profiles.get(node) {
                Some(profile) => profile.fit(self.now_ms, facts.width, facts.estimate_ms),
                None => lowest_block(free, self.gpus, facts.width),
            };
            gpus.map(|gpus| (free.count_ones(), node, gpus))
        });
        let (_, node, gpus) = fitting.min_by_key(|&(free, node, _)| (free, node))?;
        self.free[node] &= !gpus.0;
        if let Some(profile) = self.profiles.get_mut(node) {
            profile.take(gpus, self.now_ms, self.now_ms.saturating_add(facts.estimate_ms));
        }
        Some(Start { job, node, gpus })
    }

    /// Keeps the earliest place that a job can have.
    fn reserve(&mut self, job: usize) {
        let facts = &self.problem.jobs[job];
        let earliest = self.profiles.iter().enumerate().filter_map(|(node, profile)| {
            let found = profile.earliest(self.now_ms, facts.width, facts.estimate_ms);
            found.map(|(at, gpus)| (at, node, gpus))
        });
        let earliest = earliest.min_by_key(|&(at, node, _)| (at, node));
        if let Some((at, node, gpus)) = earliest {
            self.profiles[node].take(gpus, at, at.saturating_add(facts.estimate_ms));
        }
    }
}

/// When a job is taken to end: one that has outlasted its estimate, at the next step.
pub fn expected_end(running: &Running, now_ms: u64, step_ms: u64) -> u64 {
    running.expected_end_ms.max(now_ms + step_ms)
}
