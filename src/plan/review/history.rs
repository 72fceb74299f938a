//! Pure side: who held what when, as it was recorded.

use crate::policy::GpuSet;
use crate::sim::Curve;
use crate::trace::{Job, Workload};

/// A recorded day.
pub(super) struct History<'a> {
    pub(super) workload: &'a Workload,
    pub(super) gpus: u32,
    /// The end of what is recorded.
    pub(super) end_ms: u64,
    pub(super) runs: Vec<Ran<'a>>,
    /// Until when services served.
    pub(super) served_until_ms: u64,
    /// GPUs that services kept all day, where that is recorded.
    pub(super) reserved: GpuSet,
    /// What services needed.
    pub(super) demand: Curve,
}

/// A job that ran.
#[derive(Clone, Copy)]
pub(super) struct Ran<'a> {
    pub(super) job: &'a Job,
    pub(super) gpus: GpuSet,
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
}

impl<'a> History<'a> {
    pub(super) fn new(workload: &'a Workload, gpus: u32) -> Self {
        let ran = |job: &'a Job| {
            let start_ms = job.actual.start_ms?;
            let end_ms = job.actual.end_ms.unwrap_or(start_ms + job.expected_ms);
            let gpus = job.actual.gpus.iter().copied().collect();
            Some(Ran { job, gpus, start_ms, end_ms })
        };
        let mut runs: Vec<Ran<'a>> = workload.jobs.iter().filter_map(ran).collect();
        runs.sort_by_key(|run| (run.start_ms, run.job.line));
        let ends = runs.iter().map(|run| run.end_ms);
        let deadlines = workload.jobs.iter().filter_map(|job| job.deadline_ms);
        let services = workload.services.iter().filter_map(|service| service.deadline_ms);
        let served_until = services.max();
        let end_ms = ends.chain(deadlines).chain(served_until).max().unwrap_or_default();
        let reserved = workload.services.iter().flat_map(|service| &service.reserved);
        let demands: Vec<Curve> =
            workload.services.iter().map(|service| curve(service, end_ms)).collect();
        Self {
            workload,
            gpus,
            end_ms,
            served_until_ms: served_until.unwrap_or(end_ms),
            runs,
            reserved: reserved.copied().collect(),
            demand: Curve::sum(&demands),
        }
    }

    /// GPUs that jobs held at a moment.
    pub(super) fn taken(&self, at_ms: u64) -> GpuSet {
        let running = self.runs.iter().filter(|run| run.start_ms <= at_ms && at_ms < run.end_ms);
        running.fold(GpuSet::EMPTY, |set, run| set.union(run.gpus))
    }

    /// When a job began to run, or the end of its deadline or of the record if it did not.
    pub(super) fn waited_until(&self, job: &Job) -> u64 {
        let given_up = job.actual.end_ms.or(job.deadline_ms).unwrap_or(self.end_ms);
        job.actual.start_ms.unwrap_or(given_up)
    }
}

/// What a service needed, its floor included, from its begin to its end.
fn curve(service: &crate::trace::Service, end_ms: u64) -> Curve {
    let until = service.deadline_ms.unwrap_or(end_ms);
    let steps = service.demand.iter().filter(|&&(at, _)| at < until);
    let mut steps: Vec<(u64, u32)> =
        steps.map(|&(at, gpus)| (at, gpus.max(service.min_gpus))).collect();
    steps.push((until, 0));
    Curve::new(steps)
}
