//! Pure side: checks a bound exactly, in whole numbers, by the plainest means there are.
//!
//! Nothing of `bound` is used here. Given any prices, [`value`] computes what they prove.

use crate::sim::Problem;

/// Whole prices count this many to one priority-GPU-step.
pub const PRICE_UNIT: u64 = 1_024;

/// The most GPUs that jobs can use at each step: what services leave, and no more than the
/// greatest sum of widths of jobs that could run then.
pub fn capacity(problem: &Problem) -> Vec<u64> {
    let demand = problem.demand();
    let nodes = problem.nodes as u64;
    let mut capacity = Vec::new();
    for step in 0..problem.steps() {
        let at_ms = step * problem.step_ms;
        let kept: u32 = problem
            .inherited
            .iter()
            .filter(|run| run.start_ms <= at_ms && at_ms < run.end_ms)
            .map(|run| run.gpus.count())
            .sum();
        let taken = u64::from(demand.at(at_ms)) + u64::from(kept);
        let left = (u64::from(problem.gpus) * nodes).saturating_sub(taken);
        // Which sums of widths can be reached, of jobs that have arrived and can still end in
        // time. Beyond a few hundred GPUs no sum is missing that would matter.
        if left > 512 {
            capacity.push(left);
            continue;
        }
        let size = usize::try_from(left).unwrap_or(512);
        let mut reached = vec![false; size + 1];
        reached[0] = true;
        for (at, job) in problem.jobs.iter().enumerate() {
            let inherited = problem.inherited.iter().any(|run| run.job == at);
            let by = job.deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms);
            if inherited || at_ms < job.arrival_ms || at_ms >= by {
                continue;
            }
            let before = reached.clone();
            let wider = job.wider.iter().map(|shape| shape.width as usize);
            for width in wider.chain([job.width as usize]).filter(|width| *width <= size) {
                for sum in width..=size {
                    reached[sum] |= before[sum - width];
                }
            }
            if reached[size] {
                break;
            }
        }
        let most = reached.iter().rposition(|reached| *reached).unwrap_or(0);
        capacity.push(most as u64);
    }
    capacity
}

/// What these prices prove: no schedule that meets the services' demand has more value done by
/// deadline and horizon. In priority-GPU-steps times [`PRICE_UNIT`].
pub fn value(problem: &Problem, prices: &[u64]) -> u128 {
    let mut total: u128 = 0;
    for (capacity, price) in capacity(problem).iter().zip(prices) {
        total += u128::from(*capacity) * u128::from(*price);
    }
    for (at, job) in problem.jobs.iter().enumerate() {
        let length = job.run_ms / problem.step_ms;
        let by = job.deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms);
        let worth = u128::from(job.priority) * u128::from(length) * u128::from(PRICE_UNIT);
        let width = u128::from(job.width);
        if let Some(run) = problem.inherited.iter().find(|run| run.job == at) {
            // It runs in any case.
            total += if run.end_ms <= by { worth * width } else { 0 };
            continue;
        }
        // Whatever shape it takes, it is worth its work in the narrowest.
        let wider = job.wider.iter().map(|shape| (shape.width, shape.run_ms / problem.step_ms));
        let costs = wider.chain([(job.width, length)]).filter_map(|(gpus, length)| {
            let cost =
                cheapest(prices, job.arrival_ms / problem.step_ms, length, by / problem.step_ms);
            cost.map(|cost| cost * u128::from(gpus))
        });
        total += costs.min().map_or(0, |cost| (worth * width).saturating_sub(cost));
    }
    total
}

/// The least sum of prices over so many steps, from one step to another.
fn cheapest(prices: &[u64], from: u64, length: u64, to: u64) -> Option<u128> {
    let mut cheapest: Option<u128> = None;
    let mut start = from;
    while start + length <= to {
        let span = prices.iter().skip(index(start)).take(index(length));
        let cost: u128 = span.map(|price| u128::from(*price)).sum();
        cheapest = Some(cheapest.map_or(cost, |least| least.min(cost)));
        start += 1;
    }
    cheapest
}

fn index(steps: u64) -> usize {
    usize::try_from(steps).unwrap_or(usize::MAX)
}

/// Priority-GPU-steps times [`PRICE_UNIT`] as priority x GPU-hours, rounded up.
pub fn to_gpu_hours(value: u128, problem: &Problem) -> f64 {
    let milli_hours = value * u128::from(problem.step_ms) / u128::from(PRICE_UNIT) / 3_600 + 1;
    super::metrics::to_f64(u64::try_from(milli_hours).unwrap_or(u64::MAX)) / 1_000.0
}

/// No schedule uses a greater share of GPU-time: up to any moment jobs have run no longer than
/// since they arrived, and after it they fill at most what services leave.
pub fn utilisation(problem: &Problem) -> f64 {
    let (step_ms, horizon_ms) = (problem.step_ms, problem.horizon_ms);
    let demand = problem.demand();
    let all = u64::from(problem.gpus) * problem.nodes as u64;
    let left = |at_ms: u64| all.saturating_sub(u64::from(demand.at(at_ms)));
    let mut after: u64 = (0..problem.steps()).map(|step| left(step * step_ms) * step_ms).sum();
    let mut least = after;
    let mut moments: Vec<u64> = problem.jobs.iter().map(|job| job.arrival_ms).collect();
    moments.push(horizon_ms);
    moments.dedup();
    let mut done_ms = 0;
    for moment in moments.into_iter().filter(|moment| *moment <= horizon_ms) {
        while done_ms < moment {
            after -= left(done_ms) * step_ms;
            done_ms += step_ms;
        }
        let arrived = problem.jobs.iter().filter(|job| job.arrival_ms < moment);
        let possible = arrived.map(|job| {
            let area = |width: u32, ms: u64| u64::from(width) * ms.min(moment - job.arrival_ms);
            let wider = job.wider.iter().map(|shape| area(shape.width, shape.run_ms));
            wider.max().unwrap_or(0).max(area(job.width, job.run_ms))
        });
        least = least.min(possible.sum::<u64>() + after);
    }
    let served = demand.area(horizon_ms);
    super::metrics::to_f64(least + served) / super::metrics::to_f64(problem.capacity_ms())
}
