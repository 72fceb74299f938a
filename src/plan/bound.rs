//! Pure side: what no schedule can exceed, however clever and clairvoyant.
//!
//! Capacity is given a price per GPU and step. At given prices each job alone decides whether and
//! when to run; the capacity's price plus what all jobs gain by that is never less than the value
//! of any schedule that meets the services' demand. Every set of prices gives a bound, and the
//! search below looks for low ones in floating point. The result is rounded to whole prices, so
//! that `certificate` can check it exactly and needs to trust nothing here.

use std::ops::Range;

use serde::Serialize;

use super::certificate::{self, PRICE_UNIT};
use super::metrics::to_f64;
use crate::sim::{Problem, Shape};

/// A bound with the prices that prove it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bound {
    /// No schedule has more priority x GPU-hours done by deadline and horizon.
    pub value_done: f64,
    /// No schedule uses a greater share of GPU-time.
    pub utilisation: f64,
    /// How it was found.
    pub method: &'static str,
    /// What prices are counted in: priority x GPU-steps.
    pub price_unit: f64,
    /// The price of one GPU for each step.
    pub prices: Vec<u64>,
}

/// Rounds for one start, at most; fewer where jobs x steps make a round expensive.
const ROUNDS_MAX: u64 = 600;
/// Jobs x steps x rounds for one start.
const WORK_MAX: u64 = 200_000_000;

struct Task {
    worth: f64,
    release: usize,
    end_by: usize,
    /// GPUs and steps.
    shapes: Vec<(f64, usize)>,
}

/// Looks for a low bound. `known` is the value of the best schedule so far, in priority-GPU-hours:
/// it only steers the search.
pub fn bound(problem: &Problem, known: f64) -> Bound {
    let capacity = certificate::capacity(problem);
    let tasks = tasks(problem);
    let steps = capacity.len();
    let hours_per_step = super::metrics::hours(problem.step_ms);
    let aim = known / hours_per_step;
    let shapes: usize = tasks.iter().map(|task| task.shapes.len()).sum();
    let work = (shapes.max(1) * steps.max(1)) as u64;
    let rounds = (WORK_MAX / work).clamp(20, ROUNDS_MAX);
    let mut best: Option<(u128, Vec<u64>)> = None;
    for start in starts(problem, &capacity) {
        let prices = descend(&tasks, &capacity, vec![start; steps], aim, rounds);
        let whole: Vec<u64> = prices.iter().map(|price| to_whole(*price)).collect();
        let value = certificate::value(problem, &whole);
        if best.as_ref().is_none_or(|(least, _)| value < *least) {
            best = Some((value, whole));
        }
    }
    let (value, prices) = best.unwrap_or_default();
    Bound {
        value_done: certificate::to_gpu_hours(value, problem),
        utilisation: certificate::utilisation(problem),
        method: "Lagrangian relaxation of capacity, reachable widths per step",
        price_unit: 1.0 / to_f64(PRICE_UNIT),
        prices,
    }
}

fn tasks(problem: &Problem) -> Vec<Task> {
    let step = |ms: u64| to_index(ms / problem.step_ms);
    let inherited = |job: usize| problem.inherited.iter().any(|run| run.job == job);
    let open = problem.jobs.iter().enumerate().filter(|(at, _)| !inherited(*at));
    let shape = |shape: Shape| (f64::from(shape.width), step(shape.run_ms));
    open.map(|(_, job)| Task {
        worth: f64::from(job.priority * job.width) * to_f64(job.run_ms / problem.step_ms),
        release: step(job.arrival_ms),
        end_by: step(job.deadline_ms.unwrap_or(u64::MAX).min(problem.horizon_ms)),
        shapes: job.shapes().map(shape).collect(),
    })
    .collect()
}

/// Uniform prices to begin from: nothing, and those of the job at which capacity runs out, and
/// half of it. The second alone gives the bound by area.
fn starts(problem: &Problem, capacity: &[u64]) -> Vec<f64> {
    let mut by_priority: Vec<(u32, u64)> = problem
        .jobs
        .iter()
        .map(|job| (job.priority, u64::from(job.width) * (job.run_ms / problem.step_ms)))
        .collect();
    by_priority.sort_unstable_by(|a, b| b.cmp(a));
    let mut left: u64 = capacity.iter().sum();
    let mut marginal = 0;
    for (priority, area) in by_priority {
        if area > left {
            marginal = priority;
            break;
        }
        left -= area;
    }
    let marginal = f64::from(marginal);
    if marginal > 0.0 { vec![0.0, marginal / 2.0, marginal] } else { vec![0.0] }
}

/// Follows the subgradient with Polyak's step, and returns the prices of the lowest bound met.
fn descend(
    tasks: &[Task],
    capacity: &[u64],
    mut prices: Vec<f64>,
    aim: f64,
    rounds: u64,
) -> Vec<f64> {
    let mut best = (f64::INFINITY, prices.clone());
    let mut pace = 1.0;
    let mut since = 0;
    let mut sums = vec![0.0; capacity.len() + 1];
    let mut spare = vec![0.0; capacity.len()];
    for _ in 0..rounds {
        let value = evaluate(tasks, capacity, &prices, &mut sums, &mut spare);
        if value < best.0 - 1e-9 {
            best = (value, prices.clone());
            since = 0;
        } else {
            since += 1;
            if since >= 15 {
                since = 0;
                pace *= 0.6;
                prices.clone_from(&best.1);
            }
        }
        let norm: f64 = spare.iter().map(|spare| spare * spare).sum();
        if norm < 1e-9 || pace < 1e-4 {
            break;
        }
        let step = pace * (value - aim).max(value * 1e-4) / norm;
        for (price, spare) in prices.iter_mut().zip(&spare) {
            *price = (*price - step * spare).max(0.0);
        }
    }
    best.1
}

/// The bound at these prices; `spare` becomes capacity less what jobs take at them.
fn evaluate(
    tasks: &[Task],
    capacity: &[u64],
    prices: &[f64],
    sums: &mut [f64],
    spare: &mut [f64],
) -> f64 {
    let mut value = 0.0;
    for (at, (&capacity, &price)) in capacity.iter().zip(prices).enumerate() {
        let capacity = to_f64(capacity);
        value += capacity * price;
        spare[at] = capacity;
        sums[at + 1] = sums[at] + price;
    }
    for task in tasks {
        let Some((cost, gpus, span)) = cheapest(task, sums) else { continue };
        if cost < task.worth {
            value += task.worth - cost;
            for spare in &mut spare[span] {
                *spare -= gpus;
            }
        }
    }
    value
}

/// What a task costs where it costs least, its GPUs there, and its steps.
fn cheapest(task: &Task, sums: &[f64]) -> Option<(f64, f64, Range<usize>)> {
    let mut best: Option<(f64, f64, Range<usize>)> = None;
    for &(gpus, length) in &task.shapes {
        let Some(last) = task.end_by.checked_sub(length) else { continue };
        for start in task.release..=last {
            let cost = gpus * (sums[start + length] - sums[start]);
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, gpus, start..start + length));
            }
        }
    }
    best
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "prices are small")]
fn to_whole(price: f64) -> u64 {
    (price * to_f64(PRICE_UNIT)).round().clamp(0.0, 1e15) as u64
}

fn to_index(steps: u64) -> usize {
    usize::try_from(steps).unwrap_or(usize::MAX)
}
