//! Pure side: who held what when, as it was recorded, on one node or several.

use std::collections::BTreeSet;

use crate::policy::GpuSet;
use crate::sim::Curve;
use crate::trace::{Job, Service, Workload, clock_time};

/// A recorded day.
pub(super) struct History<'a> {
    pub(super) workload: &'a Workload,
    pub(super) gpus: u32,
    pub(super) nodes: usize,
    /// The end of what is recorded.
    pub(super) end_ms: u64,
    /// By start.
    pub(super) runs: Vec<Ran<'a>>,
    /// Services, which are on the first node.
    pub(super) services: Vec<Serving<'a>>,
    /// What services needed.
    pub(super) demand: Curve,
}

/// A job that ran.
#[derive(Clone, Copy)]
pub(super) struct Ran<'a> {
    pub(super) job: &'a Job,
    pub(super) node: usize,
    pub(super) gpus: GpuSet,
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
}

/// A service, from when to when, and what was kept for it where that is known.
pub(super) struct Serving<'a> {
    pub(super) service: &'a Service,
    pub(super) from_ms: u64,
    pub(super) until_ms: u64,
    pub(super) demand: Curve,
    pub(super) reserved: Option<GpuSet>,
}

/// A stretch of time in which nothing arrives, starts, ends or changes its demand.
pub(super) struct Now<'a> {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    /// Places in [`History::runs`].
    pub(super) running: &'a BTreeSet<usize>,
    /// Jobs that arrived and have not started, by width; places in the list of jobs.
    pub(super) waiting: &'a BTreeSet<(u32, usize)>,
    /// Of these, those that arrived at `from_ms`.
    pub(super) arrived: &'a [usize],
}

/// The order within one instant: what ends makes room for what starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ends(usize),
    Starts(usize),
    Arrives(usize),
    StopsWaiting(usize),
    Demand,
}

impl<'a> History<'a> {
    pub(super) fn new(workload: &'a Workload, gpus: u32, nodes: usize) -> Self {
        let jobs = workload.jobs.iter();
        let ends = jobs.clone().filter_map(|job| job.actual.end_ms.or(job.actual.start_ms));
        let deadlines = jobs.clone().filter_map(|job| job.deadline_ms);
        let until = workload.services.iter().filter_map(|service| service.deadline_ms);
        let last = ends.chain(deadlines).chain(until).max().unwrap_or_default();
        let end_ms = last.max(workload.end_ms.unwrap_or_default());
        let ran = |job: &'a Job| {
            let start_ms = job.actual.start_ms?;
            Some(Ran {
                job,
                node: job.actual.node,
                gpus: job.actual.gpus.iter().copied().collect(),
                start_ms,
                // What has no end still ran when the record ended.
                end_ms: job.actual.end_ms.unwrap_or(end_ms.max(start_ms + 1)),
            })
        };
        let mut runs: Vec<Ran<'a>> = jobs.filter_map(ran).collect();
        runs.sort_by_key(|run| (run.start_ms, run.job.line));
        let services: Vec<Serving<'a>> =
            workload.services.iter().map(|service| serving(service, end_ms)).collect();
        let demand = Curve::sum(services.iter().map(|serving| &serving.demand));
        Self { workload, gpus, nodes, end_ms, runs, services, demand }
    }

    /// GPUs that are kept for services on a node.
    pub(super) fn reserved(&self, node: usize) -> GpuSet {
        if node > 0 {
            return GpuSet::EMPTY;
        }
        let reserved = self.services.iter().filter_map(|serving| serving.reserved);
        reserved.fold(GpuSet::EMPTY, GpuSet::union)
    }

    /// GPUs of a node that neither jobs hold nor services keep.
    pub(super) fn free(&self, node: usize, running: &BTreeSet<usize>) -> GpuSet {
        let runs = running.iter().map(|&at| &self.runs[at]).filter(|run| run.node == node);
        let taken = runs.fold(GpuSet::EMPTY, |set, run| set.union(run.gpus));
        GpuSet::first(self.gpus).minus(taken).minus(self.reserved(node))
    }

    /// Of the free GPUs of a node, those that services take though none are kept for them.
    pub(super) fn elastic(&self, node: usize, at_ms: u64) -> u32 {
        if node > 0 || !self.reserved(0).is_empty() { 0 } else { self.demand.at(at_ms) }
    }

    /// When a job began to run, or the end of its deadline or of the record if it did not.
    pub(super) fn waited_until(&self, job: &Job) -> u64 {
        let given_up = job.actual.end_ms.or(job.deadline_ms).unwrap_or(self.end_ms);
        job.actual.start_ms.unwrap_or(given_up)
    }

    /// Goes through the day, stretch by stretch.
    pub(super) fn sweep(&self, mut look: impl FnMut(&Now<'_>)) {
        let mut events: Vec<(u64, Event)> = Vec::new();
        for (at, run) in self.runs.iter().enumerate().filter(|(_, run)| run.start_ms < run.end_ms) {
            events.extend([(run.start_ms, Event::Starts(at)), (run.end_ms, Event::Ends(at))]);
        }
        for (at, job) in self.workload.jobs.iter().enumerate() {
            let until = self.waited_until(job);
            if until > job.arrival_ms {
                events.extend([
                    (job.arrival_ms, Event::Arrives(at)),
                    (until, Event::StopsWaiting(at)),
                ]);
            }
        }
        events.extend(self.demand.steps().iter().map(|&(at, _)| (at, Event::Demand)));
        events.retain(|&(at, _)| at <= self.end_ms);
        events.sort_unstable();
        let (mut running, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        let mut arrived = Vec::new();
        let mut events = events.into_iter().peekable();
        while let Some((from_ms, event)) = events.next() {
            let width = |job: usize| self.workload.jobs[job].min_gpus;
            match event {
                Event::Ends(run) => drop(running.remove(&run)),
                Event::Starts(run) => drop(running.insert(run)),
                Event::Arrives(job) => {
                    waiting.insert((width(job), job));
                    arrived.push(job);
                }
                Event::StopsWaiting(job) => drop(waiting.remove(&(width(job), job))),
                Event::Demand => {}
            }
            if let Some(&(to_ms, _)) = events.peek().filter(|(at, _)| *at > from_ms) {
                look(&Now {
                    from_ms,
                    to_ms,
                    running: &running,
                    waiting: &waiting,
                    arrived: &arrived,
                });
                arrived.clear();
            }
        }
    }

    /// What cannot have been: GPUs that do not exist, and GPUs that two jobs held at once.
    pub(super) fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for run in &self.runs {
            if !run.gpus.is_within(GpuSet::first(self.gpus)) {
                found.push(format!(
                    "{} held GPUs {:?} of a node that has {}",
                    run.job.id, run.gpus, self.gpus
                ));
            }
        }
        let mut running: Vec<&Ran<'_>> = Vec::new();
        for run in &self.runs {
            running.retain(|other| other.end_ms > run.start_ms);
            for other in running.iter().filter(|other| other.node == run.node) {
                let shared = run.gpus.intersection(other.gpus);
                if !shared.is_empty() {
                    found.push(format!(
                        "{} and {} both held GPUs {shared:?} at {}",
                        other.job.id,
                        run.job.id,
                        clock_time(run.start_ms)
                    ));
                }
            }
            running.push(run);
        }
        found
    }
}

/// What a service needed, its floor included, from its begin to its end.
fn serving(service: &Service, end_ms: u64) -> Serving<'_> {
    let until_ms = service.deadline_ms.unwrap_or(end_ms);
    let from_ms = service.arrival_ms;
    let before = service.demand.iter().rev().find(|(at, _)| *at <= from_ms);
    let first = before.map_or(0, |(_, gpus)| *gpus);
    let later = service.demand.iter().filter(|(at, _)| (from_ms + 1..until_ms).contains(at));
    let steps = std::iter::once((from_ms, first)).chain(later.copied());
    let mut steps: Vec<(u64, u32)> =
        steps.map(|(at, gpus)| (at, gpus.max(service.min_gpus))).collect();
    steps.push((until_ms.max(from_ms), 0));
    Serving {
        service,
        from_ms,
        until_ms,
        demand: Curve::new(steps),
        reserved: service.reserved.as_ref().map(|gpus| gpus.iter().copied().collect()),
    }
}
