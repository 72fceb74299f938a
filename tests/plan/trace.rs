//! The public trace through the event-driven schedulers.

use sluice::plan::build::{self, Frame};
use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::metrics::quantile;
use sluice::sim::Problem;
use sluice::trace::{Source, Workload};

use crate::support::data;

fn cluster05() -> Problem {
    let content = data("traces/itp-cluster05.csv");
    let workload = Workload::read(Source { name: "itp", content: &content }, None).unwrap();
    let mut problem = build::problem(&workload, Frame::default()).unwrap();
    // The rule serves one GPU and all of a node.
    problem.jobs.retain(|job| job.width == 1 || job.width == 8);
    problem
}

/// Waits in seconds, ascending, of the jobs of a width that started.
fn waits(problem: &Problem, name: Name, width: u32) -> Vec<u64> {
    let entry = play(problem, name, &Effort::default()).unwrap();
    assert_eq!(entry.violations(problem), [], "{name}");
    let of_width = |job: usize| problem.jobs[job].width == width;
    let runs = entry.schedule.runs.iter().filter(|run| of_width(run.job));
    let mut waits: Vec<u64> =
        runs.map(|run| (run.start_ms - problem.jobs[run.job].arrival_ms) / 1000).collect();
    waits.sort_unstable();
    waits
}

#[test]
fn larges_are_served_under_the_rule_and_starve_under_greed() {
    let problem = cluster05();
    let greedy = waits(&problem, Name::Greedy, 8);
    let fair = waits(&problem, Name::PhaseFair, 8);
    let larges = problem.jobs.iter().filter(|job| job.width == 8).count();
    assert!(fair.len() == larges, "{} of {larges}", fair.len());
    assert!(
        quantile(&fair, 950) * 4 < quantile(&greedy, 950) || greedy.len() < larges,
        "95th percentile: {} s under the rule, {} s under greed ({} of {larges} started)",
        quantile(&fair, 950),
        quantile(&greedy, 950),
        greedy.len(),
    );
}
