//! Pure side: gives services their GPUs, step by step, out of what jobs leave.
//!
//! A service keeps the GPUs that it has, gives back what it no longer needs, and grows by at most
//! the churn limit per step. Only the present step and the forecast are looked at, so the same
//! could be done live.

use serde::Serialize;

use crate::policy::GpuSet;
use crate::sim::{Problem, Run};

/// GPUs in the hands of a service, from when to when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Held {
    /// The service, by its place in [`Problem::services`].
    pub service: usize,
    /// The GPUs.
    pub gpus: GpuSet,
    /// From when.
    pub start_ms: u64,
    /// Until when.
    pub end_ms: u64,
}

/// GPUs that jobs hold at each step before the horizon, on the first node.
fn taken_by_jobs(problem: &Problem, runs: &[Run]) -> Vec<GpuSet> {
    let steps = usize::try_from(problem.steps()).unwrap_or(usize::MAX);
    let place = |ms: u64| usize::try_from(ms / problem.step_ms).unwrap_or(usize::MAX).min(steps);
    let mut taken = vec![GpuSet::EMPTY; steps];
    for run in runs.iter().filter(|run| run.node == 0) {
        for step in &mut taken[place(run.start_ms)..place(run.end_ms)] {
            *step = step.union(run.gpus);
        }
    }
    taken
}

/// Gives services their GPUs.
pub fn serve(problem: &Problem, runs: &[Run]) -> Vec<Held> {
    if problem.services.is_empty() {
        return Vec::new();
    }
    let targets = problem.targets();
    let taken = taken_by_jobs(problem, runs);
    let mut now: Vec<GpuSet> = vec![GpuSet::EMPTY; problem.services.len()];
    let mut open: Vec<Held> = Vec::new();
    let mut done = Vec::new();
    for (step, jobs) in (0_u64..).zip(taken) {
        let at_ms = step * problem.step_ms;
        let mut free = GpuSet::first(problem.gpus).minus(jobs);
        // Nobody is given what another service keeps.
        let kept: Vec<GpuSet> = now.iter().map(|gpus| gpus.intersection(free)).collect();
        free = kept.iter().fold(free, |free, gpus| free.minus(*gpus));
        for (at, service) in problem.services.iter().enumerate() {
            let (demand, forecast) = (service.demand.at(at_ms), service.forecast.at(at_ms));
            let target = targets[at].at(at_ms);
            // Ahead of a steep rise it is given more than it needs yet.
            let wanted = if target > forecast { demand.max(target) } else { demand };
            let have = kept[at];
            let gpus = if have.count() > wanted {
                let keep = have.highest(wanted).unwrap_or_default();
                free = free.union(have.minus(keep));
                keep
            } else {
                let limit = if step == 0 { problem.gpus } else { problem.churn_limit };
                let more = (wanted - have.count()).min(limit).min(free.count());
                let new = free.highest(more).unwrap_or_default();
                free = free.minus(new);
                have.union(new)
            };
            now[at] = gpus;
        }
        record(&now, at_ms, &mut open, &mut done);
    }
    let end_ms = problem.horizon_ms;
    done.extend(open.into_iter().map(|held| Held { end_ms, ..held }));
    done.sort_by_key(|held| (held.start_ms, held.service));
    done
}

/// Closes what changed and opens what is new.
fn record(now: &[GpuSet], at_ms: u64, open: &mut Vec<Held>, done: &mut Vec<Held>) {
    open.retain(|held| {
        let same = now[held.service] == held.gpus;
        if !same {
            done.push(Held { end_ms: at_ms, ..*held });
        }
        same
    });
    for (service, &gpus) in now.iter().enumerate() {
        if !gpus.is_empty() && !open.iter().any(|held| held.service == service) {
            open.push(Held { service, gpus, start_ms: at_ms, end_ms: at_ms });
        }
    }
}
