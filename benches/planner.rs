//! How fast the planner is: schedules per second, time to plan, and the value that more time buys.
//!
//! `cargo bench --no-default-features --bench planner`

#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::time::Instant;

use sluice::plan::kernel::{Kernel, Slot, Task};
use sluice::plan::score::Weights;
use sluice::plan::search::{Budget, Random, search};

/// Jobs of a day on a line of eight GPUs with a service.
fn kernel(jobs: usize, steps: u32) -> Kernel {
    let mut random = Random::new(11);
    let mut below =
        |bound: u32| u32::try_from(random.below(usize::try_from(bound).unwrap_or(1))).unwrap_or(0);
    let kept: Vec<u32> = (0..steps).map(|at| at * 4 / steps).collect();
    let tasks = (0..jobs)
        .map(|_| {
            let release = below(steps / 2);
            let length = steps / 24 + below(steps / 5);
            let pressing = below(3) == 0;
            let end_by = if pressing { (release + length * 2).min(steps) } else { steps };
            Task { release, end_by, width: 1 + below(4), length, priority: 1 + below(9), waited: 0 }
        })
        .collect();
    Kernel::new(8, &kept, tasks, Weights::default())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn main() {
    for (jobs, steps) in [(24, 96), (60, 288), (200, 288)] {
        let mut kernel = kernel(jobs, steps);
        let first: Vec<u16> = (0..u16::try_from(jobs).unwrap_or(0)).collect();
        let mut slots = vec![Slot::NONE; jobs];
        kernel.schedule(&first, &mut slots);
        let mut worths = Vec::new();
        for schedules in [1_000, 4_000, 40_000, 400_000, 2_000_000] {
            let begin = now();
            let budget = Budget { schedules, seed: 3, control: None };
            let found = search(&mut kernel, &first, budget);
            let seconds = begin.elapsed().as_secs_f64();
            let rate = f64::from(found.tried) / seconds;
            worths.push((schedules, seconds, rate, found.worth));
        }
        let best = worths.iter().map(|w| w.3).max().unwrap_or(1);
        for (schedules, seconds, rate, worth) in worths {
            let share = worth * 10_000 / best;
            println!(
                "{jobs:>4} jobs x {steps:>3} steps: {schedules:>7} schedules in {:>8.1} ms, \
                 {rate:>9.0} per second, {}.{:02} % of the best found",
                seconds * 1_000.0,
                share / 100,
                share % 100,
            );
        }
    }
}
