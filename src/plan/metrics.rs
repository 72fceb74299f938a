//! Pure side: what a schedule is worth, each figure defined once.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Schedule;
use crate::policy::GpuSet;
use crate::sim::{Curve, Problem, Run};

/// Waits of one kind of work, in minutes, of the jobs that started.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Waits {
    /// Jobs that arrived before the horizon.
    pub jobs: usize,
    /// Of these, those that started.
    pub started: usize,
    /// Mean wait.
    pub mean_min: f64,
    /// Half waited no longer.
    pub median_min: f64,
    /// 95 of 100 waited no longer.
    pub p95_min: f64,
    /// The longest.
    pub max_min: f64,
}

/// What became of real-time services.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Realtime {
    /// GPU-hours in demand.
    pub demand_gpu_hours: f64,
    /// GPU-hours in demand that were not served.
    pub shortfall_gpu_hours: f64,
    /// The longest time without full service.
    pub longest_shortfall_min: f64,
    /// GPUs taken by services in all, after the first step.
    pub churn: u32,
    /// The most that services took in one step.
    pub churn_max: u32,
    /// Peak of the demand by its mean: what a reservation of the peak wastes.
    pub peak_to_mean: f64,
}

/// The figures of one schedule.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Metrics {
    /// Share of GPU-time until the horizon in which a job ran or a service served demand.
    pub utilisation: f64,
    /// The same, counting only jobs that end by their deadline and the horizon.
    pub good_utilisation: f64,
    /// Priority x GPU-hours that jobs ran until the horizon.
    pub value_gpu_hours: f64,
    /// Priority x GPU-hours of jobs that end by their deadline and the horizon.
    pub value_done: f64,
    /// As `value_gpu_hours`, with the demand that services served.
    pub value_with_realtime: f64,
    /// GPU-hours of demand that were not served.
    pub rt_shortfall_gpu_hours: f64,
    /// Jobs with a deadline until the horizon that did not end by it, started or not.
    pub deadline_misses: usize,
    /// Jobs that started.
    pub jobs_started: usize,
    /// Jobs that ended by the horizon.
    pub jobs_ended: usize,
    /// Jobs that the policy refused, since they can never fit its rule.
    pub jobs_rejected: usize,
    /// Free GPU-hours while a waiting job needed no more than those, and they were apart.
    pub fragmented_gpu_hours: f64,
    /// Services.
    pub realtime: Realtime,
    /// Waits by workload type.
    pub waits: BTreeMap<String, Waits>,
}

/// Computes all figures.
pub fn measure(problem: &Problem, schedule: &Schedule) -> Metrics {
    let horizon = problem.horizon_ms;
    let mut sums = Sums::default();
    let mut started = vec![None; problem.jobs.len()];
    for run in &schedule.runs {
        let job = &problem.jobs[run.job];
        started[run.job] = Some(run.start_ms);
        let area = run.area_ms(horizon);
        sums.ran += area;
        let work = run.work_ms(job, horizon);
        sums.value += work * u64::from(job.priority);
        sums.ended += usize::from(run.end_ms <= horizon);
        if in_time(problem, run) {
            sums.done += area;
            sums.value_done += work * u64::from(job.priority);
        } else if job.deadline_ms.is_some_and(|deadline| deadline <= horizon) {
            sums.misses += 1;
        }
    }
    let missed = problem.jobs.iter().zip(&started).filter(|(job, started)| {
        started.is_none() && job.deadline_ms.is_some_and(|deadline| deadline <= horizon)
    });
    let served = served(problem, schedule);
    let capacity = to_f64(problem.capacity_ms());
    Metrics {
        utilisation: to_f64(sums.ran + served.busy_ms) / capacity,
        good_utilisation: to_f64(sums.done + served.busy_ms) / capacity,
        value_gpu_hours: hours(sums.value),
        value_done: hours(sums.value_done),
        value_with_realtime: hours(sums.value + served.value_ms),
        rt_shortfall_gpu_hours: served.realtime.shortfall_gpu_hours,
        deadline_misses: sums.misses + missed.count(),
        jobs_started: schedule.runs.len(),
        jobs_ended: sums.ended,
        jobs_rejected: schedule.rejected.len(),
        fragmented_gpu_hours: hours(fragmented_ms(problem, schedule)),
        realtime: served.realtime,
        waits: waits(problem, &started),
    }
}

/// Whether a run counts as done: by its deadline, if any, and by the horizon.
pub fn in_time(problem: &Problem, run: &Run) -> bool {
    let by = problem.jobs[run.job].deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms);
    run.end_ms <= by
}

#[derive(Default)]
struct Sums {
    ran: u64,
    done: u64,
    value: u64,
    value_done: u64,
    ended: usize,
    misses: usize,
}

#[derive(Default)]
struct Served {
    busy_ms: u64,
    value_ms: u64,
    realtime: Realtime,
}

fn served(problem: &Problem, schedule: &Schedule) -> Served {
    let mut out = Served::default();
    if problem.services.is_empty() {
        return out;
    }
    let step_ms = problem.step_ms;
    let (mut demand_ms, mut short_ms, mut streak, mut longest) = (0, 0, 0, 0);
    let mut before: Vec<GpuSet> = Vec::new();
    let mut held = Cursor::new(schedule, problem.services.len());
    for step in 0..problem.steps() {
        let at = step * step_ms;
        held.advance(at);
        let (mut short, mut grown) = (0, 0);
        for (place, service) in problem.services.iter().enumerate() {
            let demand = service.demand.at(at);
            let serving = held.now[place].count().min(demand);
            demand_ms += u64::from(demand) * step_ms;
            out.busy_ms += u64::from(serving) * step_ms;
            out.value_ms += u64::from(serving * service.priority) * step_ms;
            short += demand - serving;
            grown += before.get(place).map_or(0, |gpus| held.now[place].minus(*gpus).count());
        }
        before.clone_from(&held.now);
        short_ms += u64::from(short) * step_ms;
        streak = if short > 0 { streak + step_ms } else { 0 };
        longest = longest.max(streak);
        out.realtime.churn += grown;
        out.realtime.churn_max = out.realtime.churn_max.max(grown);
    }
    let mean = to_f64(demand_ms) / to_f64(problem.horizon_ms);
    out.realtime.demand_gpu_hours = hours(demand_ms);
    out.realtime.shortfall_gpu_hours = hours(short_ms);
    out.realtime.longest_shortfall_min = minutes(longest);
    let peak = problem.demand().peak(problem.horizon_ms);
    out.realtime.peak_to_mean = if demand_ms == 0 { 0.0 } else { f64::from(peak) / mean };
    out
}

/// GPUs in the hands of each service, as time goes on.
struct Cursor<'a> {
    schedule: &'a Schedule,
    next: usize,
    now: Vec<GpuSet>,
    until: Vec<u64>,
}

impl<'a> Cursor<'a> {
    fn new(schedule: &'a Schedule, services: usize) -> Self {
        let now = vec![GpuSet::EMPTY; services];
        Self { schedule, next: 0, now, until: vec![0; services] }
    }

    fn advance(&mut self, at_ms: u64) {
        for (gpus, until) in self.now.iter_mut().zip(&self.until) {
            if *until <= at_ms {
                *gpus = GpuSet::EMPTY;
            }
        }
        while let Some(held) = self.schedule.held.get(self.next)
            && held.start_ms <= at_ms
        {
            self.now[held.service] = held.gpus;
            self.until[held.service] = held.end_ms;
            self.next += 1;
        }
    }
}

fn waits(problem: &Problem, started: &[Option<u64>]) -> BTreeMap<String, Waits> {
    let mut by_kind: BTreeMap<String, (usize, Vec<u64>)> = BTreeMap::new();
    for (job, start) in problem.jobs.iter().zip(started) {
        if job.arrival_ms >= problem.horizon_ms {
            continue;
        }
        let (jobs, waits) = by_kind.entry(job.kind.clone()).or_default();
        *jobs += 1;
        waits.extend(start.map(|start| start.saturating_sub(job.arrival_ms)));
    }
    let summary = |(jobs, mut waits): (usize, Vec<u64>)| {
        waits.sort_unstable();
        let started = waits.len();
        let mean = if started == 0 { 0.0 } else { to_f64(waits.iter().sum()) / count(started) };
        Waits {
            jobs,
            started,
            mean_min: mean / 60_000.0,
            median_min: minutes(quantile(&waits, 500)),
            p95_min: minutes(quantile(&waits, 950)),
            max_min: minutes(waits.last().copied().unwrap_or_default()),
        }
    };
    by_kind.into_iter().map(|(kind, waits)| (kind, summary(waits))).collect()
}

/// The smallest value that so many thousandths do not exceed (nearest rank).
pub fn quantile(ascending: &[u64], permille: usize) -> u64 {
    let rank = (ascending.len() * permille).div_ceil(1000).max(1);
    ascending.get(rank - 1).copied().unwrap_or_default()
}

/// Goes from event to event: where the free GPUs of a node that services leave would be enough
/// for a job that waits, and no run of neighbours is, they are idle because they are apart.
fn fragmented_ms(problem: &Problem, schedule: &Schedule) -> u64 {
    let mut events: Vec<(u64, Event)> = Vec::new();
    let mut starts = vec![u64::MAX; problem.jobs.len()];
    for run in &schedule.runs {
        starts[run.job] = run.start_ms;
        events.push((run.start_ms, Event::Taken(run.node, run.gpus)));
        events.push((run.end_ms, Event::Freed(run.node, run.gpus)));
    }
    for (job, start) in problem.jobs.iter().zip(starts).filter(|(job, s)| *s > job.arrival_ms) {
        events.push((job.arrival_ms, Event::Waits(job.width)));
        events.push((start, Event::Stops(job.width)));
    }
    let demand = problem.demand();
    events.extend(demand.steps().iter().map(|&(at, gpus)| (at, Event::Demand(gpus))));
    events.retain(|&(at, _)| at < problem.horizon_ms);
    events.sort_unstable();
    let mut taken = vec![GpuSet::EMPTY; problem.nodes];
    let mut waiting = [0_usize; 65];
    let (mut services, mut total, mut at) = (0, 0, 0);
    for (next, event) in events.into_iter().chain([(problem.horizon_ms, Event::Demand(0))]) {
        if next > at {
            let idle = taken.iter().map(|taken| apart(problem.gpus, *taken, services, &waiting));
            total += (next - at) * idle.map(u64::from).sum::<u64>();
            at = next;
        }
        match event {
            Event::Freed(node, gpus) => taken[node] = taken[node].minus(gpus),
            Event::Taken(node, gpus) => taken[node] = taken[node].union(gpus),
            Event::Waits(width) => waiting[place(width)] += 1,
            Event::Stops(width) => waiting[place(width)] -= 1,
            Event::Demand(gpus) => services = gpus,
        }
    }
    total
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Freed(usize, GpuSet),
    Waits(u32),
    Demand(u32),
    Taken(usize, GpuSet),
    Stops(u32),
}

fn place(width: u32) -> usize {
    usize::try_from(width).unwrap_or(64).min(64)
}

/// Free GPUs, if they are enough for somebody who waits and their longest run is not.
fn apart(gpus: u32, taken: GpuSet, services: u32, waiting: &[usize; 65]) -> u32 {
    let free = GpuSet::first(gpus).minus(taken);
    let spare = free.count().saturating_sub(services);
    let longest = longest_run(free);
    let held_up = waiting
        .iter()
        .enumerate()
        .any(|(width, &jobs)| jobs > 0 && (place(longest) + 1..=place(spare)).contains(&width));
    if held_up { spare } else { 0 }
}

/// Length of the longest run of neighbours.
pub fn longest_run(set: GpuSet) -> u32 {
    let mut rest = set.0;
    let mut length = 0;
    while rest != 0 {
        rest &= rest >> 1;
        length += 1;
    }
    length
}

/// GPUs on which a job runs or a service serves demand, on all nodes together, from each change on.
pub fn in_use(problem: &Problem, schedule: &Schedule) -> Vec<(u64, u32)> {
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for run in &schedule.runs {
        let gpus = i64::from(run.gpus.count());
        *changes.entry(run.start_ms).or_default() += gpus;
        *changes.entry(run.end_ms).or_default() -= gpus;
    }
    for (at, service) in problem.services.iter().enumerate() {
        let held = held_by(schedule, at);
        let steps = held.steps().iter().chain(service.demand.steps()).map(|&(at, _)| at);
        let times: BTreeSet<u64> = steps.collect();
        let mut before = 0;
        for time in times {
            let serving = i64::from(held.at(time).min(service.demand.at(time)));
            *changes.entry(time).or_default() += serving - before;
            before = serving;
        }
    }
    let mut used = 0;
    let counted = changes.into_iter().map(|(at, change)| {
        used += change;
        (at, u32::try_from(used).unwrap_or_default())
    });
    counted.filter(|(at, _)| *at < problem.horizon_ms).collect()
}

/// How many GPUs a service holds.
fn held_by(schedule: &Schedule, service: usize) -> Curve {
    let mut steps: BTreeMap<u64, u32> = BTreeMap::new();
    for held in schedule.held.iter().filter(|held| held.service == service) {
        steps.entry(held.end_ms).or_insert(0);
        steps.insert(held.start_ms, held.gpus.count());
    }
    Curve::new(steps.into_iter().collect())
}

/// Milliseconds (of anything) as hours.
pub fn hours(ms: u64) -> f64 {
    to_f64(ms) / 3_600_000.0
}

fn minutes(ms: u64) -> f64 {
    to_f64(ms) / 60_000.0
}

fn count(count: usize) -> f64 {
    to_f64(u64::try_from(count).unwrap_or(u64::MAX))
}

/// For printing: sums here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn to_f64(value: u64) -> f64 {
    value as f64
}
