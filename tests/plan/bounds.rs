//! Bounds: nobody exceeds them, and they prove what they say.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "problems of ten steps"
)]

use sluice::plan::bound::bound;
use sluice::plan::certificate;
use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::score::Weights;
use sluice::plan::search::Random;
use sluice::sim::{Curve, Job, Problem, Service, Shape};

use crate::support::{SCENARIOS, problem, quick};

#[test]
fn no_policy_exceeds_the_bound() {
    for scenario in SCENARIOS {
        let problem = problem(scenario);
        let mut best: f64 = 0.0;
        let entries = [Name::EasyElastic, Name::Greedy, Name::PlanOnline, Name::PlanOffline]
            .map(|name| play(&problem, name, &quick()).unwrap());
        for entry in &entries {
            best = best.max(entry.metrics.value_done);
        }
        let bound = bound(&problem, best);
        for entry in &entries {
            assert!(entry.metrics.value_done <= bound.value_done, "{scenario} {}", entry.name);
            assert!(entry.metrics.utilisation <= bound.utilisation + 1e-9, "{scenario}");
        }
        // The bound is what its prices prove, and not far above what was found.
        let proved = certificate::value(&problem, &bound.prices);
        let hours = certificate::to_gpu_hours(proved, &problem);
        assert!((hours - bound.value_done).abs() < 1e-6, "{scenario}");
        assert!(best > bound.value_done * 0.80, "{scenario}: {best} of {}", bound.value_done);
    }
}

/// Any prices at all prove something true.
#[test]
fn even_bad_prices_bound_the_value() {
    let problem = problem("3-mixed");
    let done = play(&problem, Name::PlanOffline, &quick()).unwrap().metrics.value_done;
    let mut random = Random::new(5);
    for most in [1, 1_000, 5_000, 20_000] {
        let prices: Vec<u64> = (0..96).map(|_| random.below(most) as u64).collect();
        let proved = certificate::value(&problem, &prices);
        assert!(certificate::to_gpu_hours(proved, &problem) >= done, "{most}");
    }
}

/// On days small enough to try everything, the optimum is below the bound and the planner's best
/// is close to the optimum.
#[test]
fn the_true_optimum_lies_between() {
    for seed in 0..16 {
        let mut problem = tiny(seed);
        // In every other one most jobs may run wider, some of them at a loss.
        for job in problem.jobs.iter_mut().filter(|job| seed % 2 == 1 && job.width < 4) {
            let run_ms = (job.run_ms * u64::from(job.width)).div_ceil(4) + seed % 3;
            job.wider.extend([Shape { width: 4, estimate_ms: run_ms, run_ms }]);
        }
        let optimum = optimum(&problem);
        // What ends in time is all that counts here.
        let weights = Weights { late_permille: 0, ..Weights::default() };
        let effort = Effort { weights, ..quick() };
        let entry = play(&problem, Name::PlanOffline, &effort).unwrap();
        let done = (entry.metrics.value_done * 3_600_000.0).round();
        assert_eq!(entry.violations(&problem), []);
        let bound = bound(&problem, entry.metrics.value_done).value_done * 3_600_000.0;
        assert!(optimum <= bound + 1.0, "seed {seed}: optimum {optimum}, bound {bound}");
        assert!(done <= optimum + 1.0, "seed {seed}: planner {done}, optimum {optimum}");
        assert!(done >= optimum * 0.95, "seed {seed}: planner {done}, optimum {optimum}");
    }
}

fn tiny(seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut draw = |low: u64, high: u64| low + random.below((high - low + 1) as usize) as u64;
    let jobs = (0..5)
        .map(|at| {
            let (arrival_ms, run_ms) = (draw(0, 3), draw(2, 5));
            Job {
                name: format!("job-{at}"),
                kind: "job".into(),
                priority: draw(1, 9) as u32,
                arrival_ms,
                deadline_ms: Some((arrival_ms + run_ms + draw(0, 4)).min(10)),
                width: draw(1, 4) as u32,
                estimate_ms: run_ms,
                run_ms,
                wider: Vec::new(),
            }
        })
        .collect::<Vec<_>>();
    let mut jobs = jobs;
    jobs.sort_by_key(|job| job.arrival_ms);
    let demand = Curve::new(vec![(0, 0), (4, draw(0, 2) as u32), (7, 0)]);
    let service =
        Service { name: "rt".into(), priority: 10, forecast: demand.clone(), demand, peak: 2 };
    Problem {
        gpus: 4,
        nodes: 1,
        step_ms: 1,
        horizon_ms: 10,
        churn_limit: 4,
        jobs,
        services: vec![service],
        inherited: Vec::new(),
    }
}

/// Tries every shape, every start and every block of every job.
fn optimum(problem: &Problem) -> f64 {
    fn try_from(problem: &Problem, at: usize, taken: &mut [u64; 10]) -> u64 {
        let Some(job) = problem.jobs.get(at) else { return 0 };
        let mut best = try_from(problem, at + 1, taken);
        let worth = u64::from(job.priority * job.width) * job.run_ms;
        for Shape { width, run_ms, .. } in job.shapes() {
            let block = (1_u64 << width) - 1;
            for start in job.arrival_ms..(job.deadline_ms.unwrap() + 1).saturating_sub(run_ms) {
                for shift in 0..=problem.gpus - width {
                    let mask = block << shift;
                    let span = start as usize..(start + run_ms) as usize;
                    let fits = span.clone().all(|step| {
                        let kept = problem.demand().at(step as u64);
                        let used = taken[step].count_ones() + width + kept;
                        taken[step] & mask == 0 && used <= problem.gpus
                    });
                    if !fits {
                        continue;
                    }
                    span.clone().for_each(|step| taken[step] |= mask);
                    best = best.max(worth + try_from(problem, at + 1, taken));
                    span.for_each(|step| taken[step] &= !mask);
                }
            }
        }
        best
    }
    try_from(problem, 0, &mut [0; 10]) as f64
}
