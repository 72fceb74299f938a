//! Pure side: puts a workload on a grid of time.
//!
//! Rounding never flatters: arrivals, run times and demand are rounded up, deadlines down. Every
//! policy gets the same jobs at the same width, `min_gpus`, so that what differs is the order;
//! wider shapes are there only where they were asked for, and only planners look for them.

use crate::policy::GpuSet;
use crate::sim::{Curve, Job, Problem, Run, Service, Shape};
use crate::trace::{DAY_MS, Format, HOUR_MS, MINUTE_MS, Workload};

/// The frame of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// GPUs of a node.
    pub gpus: u32,
    /// Nodes.
    pub nodes: usize,
    /// The grid of time; by default 15 minutes, and one second for a trace.
    pub step_ms: Option<u64>,
    /// Where counting ends; by default 24 hours, or the day of the last arrival of a trace.
    pub horizon_ms: Option<u64>,
    /// GPUs by which a service may grow per step; by default half a node.
    pub churn_limit: Option<u32>,
    /// From when on to schedule; what ran then is inherited.
    pub now_ms: u64,
    /// Whether planners may start a job on more than `min_gpus`, up to `max_gpus`, and the share
    /// of its work in thousandths that more GPUs do not speed up (Amdahl's law).
    pub serial_permille: Option<u32>,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            gpus: 8,
            nodes: 1,
            step_ms: None,
            horizon_ms: None,
            churn_limit: None,
            now_ms: 0,
            serial_permille: None,
        }
    }
}

/// A frame and a workload that do not go together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No node has that many.
    #[error("--gpus is {0}; a node has 1 to {max} GPUs", max = GpuSet::MAX)]
    Gpus(u32),
    /// There is nothing to run on.
    #[error("--nodes is 0; use 1 or more")]
    Nodes,
    /// The horizon is no whole number of steps.
    #[error("--horizon is not a whole number of steps of {step_ms} ms above --now")]
    Grid {
        /// The step.
        step_ms: u64,
    },
    /// More nodes than figures can hold.
    #[error("--nodes is {0}; use at most {NODES_MAX}")]
    ManyNodes(usize),
    /// Services are given their GPUs step by step.
    #[error(
        "{0} steps are too many for real-time services (at most {SERVICE_STEPS_MAX}): use a longer \
         --step or a shorter --horizon"
    )]
    Steps(u64),
    /// Services are placed on one line of GPUs.
    #[error("{0} is a real-time service, and services are planned on one node: use --nodes 1")]
    ServiceNodes(String),
    /// What runs already overlaps or is not contiguous.
    #[error("{job} runs at --now on GPUs {gpus:?}, which {why}")]
    Inherited {
        /// The job.
        job: String,
        /// Its GPUs.
        gpus: Vec<u32>,
        /// What is wrong with them.
        why: &'static str,
    },
}

/// With the longest horizon, the widest node and the highest priority, values still fit.
const NODES_MAX: usize = 256;
/// A year of minutes, four times over.
const SERVICE_STEPS_MAX: u64 = 2_100_000;

/// Makes a problem of a workload.
pub fn problem(workload: &Workload, frame: Frame) -> Result<Problem, Error> {
    if !(1..=GpuSet::MAX).contains(&frame.gpus) {
        return Err(Error::Gpus(frame.gpus));
    }
    if frame.nodes == 0 {
        return Err(Error::Nodes);
    }
    if frame.nodes > NODES_MAX {
        return Err(Error::ManyNodes(frame.nodes));
    }
    if let (Some(service), true) = (workload.services.first(), frame.nodes > 1) {
        return Err(Error::ServiceNodes(service.id.clone()));
    }
    let trace = workload.format != Format::Jobs;
    let step_ms = frame.step_ms.unwrap_or(if trace { 1_000 } else { 15 * MINUTE_MS });
    let now_ms = begin_ms(workload, frame);
    let horizon_ms = frame.horizon_ms.unwrap_or_else(|| {
        let end_ms = match workload.format {
            Format::Jobs => 24 * HOUR_MS,
            Format::Records => workload.end_ms.unwrap_or_default().max(now_ms + 1),
            Format::Itp | Format::Swf => (workload.last_arrival_ms() + 1).next_multiple_of(DAY_MS),
        };
        end_ms.next_multiple_of(step_ms.max(1))
    });
    let whole = |ms: u64| step_ms > 0 && ms.is_multiple_of(step_ms);
    if !whole(horizon_ms) || !whole(now_ms) || horizon_ms <= now_ms {
        return Err(Error::Grid { step_ms });
    }
    let serial_permille = frame.serial_permille;
    let grid = Grid { step_ms, now_ms, gpus: frame.gpus, serial_permille };
    let mut problem = Problem {
        gpus: frame.gpus,
        nodes: frame.nodes,
        step_ms,
        horizon_ms: horizon_ms - now_ms,
        churn_limit: frame.churn_limit.unwrap_or((frame.gpus / 2).max(1)),
        jobs: Vec::new(),
        services: Vec::new(),
        inherited: Vec::new(),
    };
    let mut order: Vec<usize> = (0..workload.jobs.len()).collect();
    order.sort_by_key(|&at| (grid.up(workload.jobs[at].arrival_ms), at));
    for at in order {
        add(&mut problem, &workload.jobs[at], grid)?;
    }
    if !workload.services.is_empty() && problem.steps() > SERVICE_STEPS_MAX {
        return Err(Error::Steps(problem.steps()));
    }
    problem.services = workload.services.iter().map(|s| service(s, grid, &problem)).collect();
    problem.services.sort_by_key(|service| std::cmp::Reverse(service.priority));
    Ok(problem)
}

/// When the play begins: at `now_ms`, or where a record of what happened begins, so that the time
/// before it does not count as idle.
pub fn begin_ms(workload: &Workload, frame: Frame) -> u64 {
    if frame.now_ms > 0 || workload.format != Format::Records {
        return frame.now_ms;
    }
    let step_ms = frame.step_ms.unwrap_or(1_000).max(1);
    workload.first_arrival_ms() / step_ms * step_ms
}

#[derive(Clone, Copy)]
struct Grid {
    step_ms: u64,
    now_ms: u64,
    gpus: u32,
    serial_permille: Option<u32>,
}

impl Grid {
    fn up(self, ms: u64) -> u64 {
        ms.saturating_sub(self.now_ms).next_multiple_of(self.step_ms)
    }

    fn down(self, ms: u64) -> u64 {
        ms.saturating_sub(self.now_ms) / self.step_ms * self.step_ms
    }

    /// The wider shapes that a job may be started in: those that are faster than the one before.
    fn wider(self, job: &crate::trace::Job) -> Vec<Shape> {
        let Some(serial) = self.serial_permille else { return Vec::new() };
        let length = |ms: u64, width| {
            speed_up(ms, job.min_gpus, width, serial).max(1).next_multiple_of(self.step_ms)
        };
        let ran_ms = job.ran_ms().unwrap_or(job.expected_ms);
        let mut least_ms = length(job.expected_ms, job.min_gpus);
        let mut shapes = Vec::new();
        for width in job.min_gpus + 1..=job.max_gpus.min(self.gpus) {
            let estimate_ms = length(job.expected_ms, width);
            if estimate_ms < least_ms {
                least_ms = estimate_ms;
                shapes.push(Shape { width, estimate_ms, run_ms: length(ran_ms, width) });
            }
        }
        shapes
    }
}

/// What takes so long on `from` GPUs takes on `to` GPUs, rounded up to a millisecond.
fn speed_up(ms: u64, from: u32, to: u32, serial_permille: u32) -> u64 {
    let (from, to) = (u128::from(from.max(1)), u128::from(to.max(1)));
    let serial = u128::from(serial_permille.min(1_000));
    let parts = u128::from(ms) * (serial * to + (1_000 - serial) * from);
    u64::try_from(parts.div_ceil(1_000 * to)).unwrap_or(u64::MAX)
}

fn add(problem: &mut Problem, job: &crate::trace::Job, grid: Grid) -> Result<(), Error> {
    let length = |ms: u64| ms.max(1).next_multiple_of(grid.step_ms);
    let estimate_ms = length(job.expected_ms);
    let made = Job {
        name: job.id.clone(),
        kind: job.kind.clone(),
        priority: job.priority,
        arrival_ms: grid.up(job.arrival_ms),
        deadline_ms: job.deadline_ms.map(|deadline| grid.down(deadline)),
        width: job.min_gpus,
        estimate_ms,
        run_ms: job.ran_ms().map_or(estimate_ms, length),
        wider: grid.wider(job),
    };
    let started = job.actual.start_ms.filter(|&start| grid.now_ms > 0 && start < grid.now_ms);
    let Some(start) = started else {
        problem.jobs.push(made);
        return Ok(());
    };
    let ended = job.actual.end_ms.is_some_and(|end| end <= grid.now_ms);
    if ended {
        return Ok(());
    }
    // What it has run already does not come back: only the rest is on this clock.
    let rest = |length_ms: u64| length((start + length_ms).saturating_sub(grid.now_ms));
    let made = Job { estimate_ms: rest(made.estimate_ms), run_ms: rest(made.run_ms), ..made };
    let gpus: GpuSet = job.actual.gpus.iter().copied().collect();
    let fault = |why| Error::Inherited { job: job.id.clone(), gpus: job.actual.gpus.clone(), why };
    let node = job.actual.node;
    let beside = problem.inherited.iter().filter(|run| run.node == node);
    let taken = beside.fold(GpuSet::EMPTY, |set, run| set.union(run.gpus));
    if gpus.is_empty() {
        return Err(fault("are not named: its row needs gpu_ids"));
    }
    if !gpus.is_within(GpuSet::first(problem.gpus)) {
        return Err(fault("are not all on the node"));
    }
    if node >= problem.nodes {
        return Err(fault("are on a node beyond --nodes"));
    }
    if gpus.overlaps(taken) {
        return Err(fault("another running job has too"));
    }
    let run = Run { job: problem.jobs.len(), node, gpus, start_ms: 0, end_ms: made.run_ms };
    problem.inherited.push(run);
    // It keeps the width that it has.
    problem.jobs.push(Job { width: gpus.count(), wider: Vec::new(), ..made });
    Ok(())
}

fn service(service: &crate::trace::Service, grid: Grid, problem: &Problem) -> Service {
    let begin = grid.down(service.arrival_ms);
    let end = service.deadline_ms.map_or(u64::MAX, |end| grid.up(end));
    let horizon_ms = problem.horizon_ms;
    // Within a step the greatest demand counts: requests do not wait for the next one.
    let mut steps = Vec::new();
    let mut at = begin;
    while at < horizon_ms.min(end) {
        let (from, to) = (at + grid.now_ms, at + grid.now_ms + grid.step_ms);
        let before = service.demand.iter().rev().find(|&&(time, _)| time <= from);
        let within = service.demand.iter().filter(|&&(time, _)| from < time && time < to);
        let most = before.into_iter().chain(within).map(|&(_, gpus)| gpus).max();
        let gpus = most.unwrap_or_default().max(service.min_gpus).min(problem.gpus);
        steps.push((at, gpus));
        at += grid.step_ms;
    }
    if end < horizon_ms {
        steps.push((end, 0));
    }
    let demand = Curve::new(steps);
    let peak = demand.peak(horizon_ms);
    Service {
        name: service.id.clone(),
        priority: service.priority,
        forecast: demand.clone(),
        demand,
        peak,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_gpus_speed_up_all_but_the_serial_share() {
        assert_eq!(speed_up(1_000, 1, 4, 0), 250);
        assert_eq!(speed_up(1_000, 2, 4, 100), 550);
        assert_eq!(speed_up(1_000, 1, 8, 1_000), 1_000);
        assert_eq!(speed_up(1_000, 1, 3, 0), 334);
        assert_eq!(speed_up(999, 4, 4, 370), 999);
    }
}
