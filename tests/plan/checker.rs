//! The checker finds what is planted.

use sluice::plan::Schedule;
use sluice::plan::check::{Rule, check};
use sluice::plan::compare::{Effort, Name, play};
use sluice::policy::GpuSet;
use sluice::sim::{Problem, Run};

use crate::support::problem;

/// Breaks a legal schedule and returns the rules that the checker finds broken.
fn broken(change: impl FnOnce(&mut Problem, &mut Schedule)) -> Vec<Rule> {
    let mut problem = problem("3-mixed");
    let mut schedule = play(&problem, Name::EasyElastic, &Effort::default()).unwrap().schedule;
    assert_eq!(check(&problem, &schedule), []);
    change(&mut problem, &mut schedule);
    let mut rules: Vec<Rule> = check(&problem, &schedule).into_iter().map(|v| v.rule).collect();
    rules.sort();
    rules.dedup();
    rules
}

/// The first run of several GPUs.
fn wide(schedule: &mut Schedule) -> &mut Run {
    schedule.runs.iter_mut().find(|run| run.gpus.count() >= 2).unwrap()
}

#[test]
fn each_rule_is_checked() {
    let moved = broken(|_, schedule| {
        let run = wide(schedule);
        run.gpus = GpuSet(run.gpus.0 << 1);
    });
    assert!(moved.contains(&Rule::OneHolder), "{moved:?}");
    let apart = broken(|_, schedule| {
        let run = wide(schedule);
        let low = run.gpus.0 & run.gpus.0.wrapping_neg();
        run.gpus = GpuSet((run.gpus.0 ^ low) | 1 << 7);
    });
    assert!(apart.contains(&Rule::Contiguous), "{apart:?}");
    assert!(!apart.contains(&Rule::Width), "{apart:?}");
    let outside = broken(|_, schedule| schedule.runs[0].node = 1);
    assert!(outside.contains(&Rule::Contiguous), "{outside:?}");
    let narrow = broken(|_, schedule| {
        let run = wide(schedule);
        run.gpus = GpuSet(run.gpus.0 & run.gpus.0.wrapping_neg());
    });
    assert!(narrow.contains(&Rule::Width), "{narrow:?}");
    let short = broken(|problem, schedule| schedule.runs[0].end_ms -= problem.step_ms);
    assert_eq!(short, [Rule::Length]);
    let twice = broken(|_, schedule| {
        let mut again = schedule.runs[0];
        (again.start_ms, again.end_ms) = (again.start_ms + 500, again.end_ms + 500);
        schedule.runs.push(again);
    });
    assert!(twice.contains(&Rule::Once) && twice.contains(&Rule::Grid), "{twice:?}");
    let early = broken(|problem, schedule| {
        let run = schedule.runs.iter().find(|run| run.start_ms > 0).unwrap();
        problem.jobs[run.job].arrival_ms = run.start_ms + problem.step_ms;
    });
    assert_eq!(early, [Rule::Begin]);
    let stopped = broken(|problem, schedule| {
        problem.inherited.push(Run { end_ms: 1, ..schedule.runs[0] });
    });
    assert!(stopped.contains(&Rule::Inherited), "{stopped:?}");
    let leap = broken(|problem, _| problem.churn_limit = 0);
    assert!(leap.contains(&Rule::Churn), "{leap:?}");
    let greedy = broken(|problem, _| {
        let service = &mut problem.services[0];
        (service.demand, service.forecast) = Default::default();
    });
    assert_eq!(greedy, [Rule::Demand]);
    let unknown = broken(|_, schedule| schedule.held[0].service = 7);
    assert!(unknown.contains(&Rule::Once), "{unknown:?}");
    let nowhere = broken(|_, schedule| schedule.held[0].gpus = GpuSet(1 << 9));
    assert!(nowhere.contains(&Rule::Contiguous), "{nowhere:?}");
    let for_ever = broken(|problem, schedule| {
        let last = schedule.held.last_mut().unwrap();
        last.end_ms = problem.horizon_ms + problem.step_ms;
    });
    assert_eq!(for_ever, [Rule::Begin]);
    let shared = broken(|_, schedule| {
        let held = schedule.held[0];
        schedule.held.push(held);
    });
    assert_eq!(shared, [Rule::OneHolder]);
    let refused = broken(|_, schedule| schedule.rejected.push(schedule.runs[0].job));
    assert_eq!(refused, [Rule::Once]);
    let endless = broken(|problem, schedule| {
        problem.jobs[schedule.runs[0].job].run_ms = u64::MAX;
    });
    assert_eq!(endless, [Rule::Length]);
}

#[test]
fn a_steep_rise_is_met_within_the_churn_limit() {
    let mut problem = problem("4-bursty-realtime");
    problem.churn_limit = 1;
    for name in [Name::FifoStrictPeak, Name::EasyElastic, Name::Greedy] {
        let entry = play(&problem, name, &Effort::default()).unwrap();
        assert_eq!(entry.violations(&problem), [], "{name}");
        // Demand goes from 1 to 5 at once: three steps ahead the first GPU is taken.
        let realtime = &entry.metrics.realtime;
        assert!(realtime.churn_max <= 1, "{name}");
        // Jobs that start where a service was use up what it may take elsewhere.
        let most = if name.reserves_peak() { 0.0 } else { realtime.demand_gpu_hours * 0.1 };
        let short = realtime.shortfall_gpu_hours;
        assert!(short <= most, "{name}: {short} GPU-hours short");
    }
}
