//! The planner: what it gains, what it may not know, and what it does when it was wrong.

use sluice::plan::build::{self, Frame};
use sluice::plan::check::Rule;
use sluice::plan::compare::{Effort, Entry, Name, play};
use sluice::plan::explain::Reason;
use sluice::plan::family::FAMILIES;
use sluice::plan::noise::{self, Noise};
use sluice::plan::planner::{Planner, Settings};
use sluice::sim::{self, Job, Problem};
use sluice::trace::{Source, Workload};

use crate::support::{SCENARIOS, problem, quick};

fn entry(problem: &Problem, name: Name) -> Entry {
    let entry = play(problem, name, &quick()).unwrap();
    assert_eq!(entry.violations(problem), [], "{name}");
    entry
}

#[test]
fn it_beats_fifo_on_all_seven_days_but_one_tie() {
    for scenario in SCENARIOS {
        let problem = problem(scenario);
        let fifo = entry(&problem, Name::FifoStrictPeak).metrics;
        let online = entry(&problem, Name::PlanOnline).metrics;
        if scenario == "7-saturated-batch" {
            assert!((online.utilisation - fifo.utilisation).abs() < 1e-9, "{scenario}");
        } else {
            assert!(online.utilisation > fifo.utilisation + 0.2, "{scenario}");
        }
        assert!(online.value_gpu_hours > fifo.value_gpu_hours * 1.25, "{scenario}");
        assert!(online.value_done > fifo.value_done * 1.3, "{scenario}");
        assert!(online.rt_shortfall_gpu_hours < 1e-9, "{scenario}");
        // Against the same freedom without the search, what is done in time is still more.
        let easy = entry(&problem, Name::EasyElastic).metrics;
        assert!(online.value_done > easy.value_done, "{scenario}");
    }
}

/// Without the jobs that arrive after noon, everything that starts before noon starts as before.
#[test]
fn online_it_knows_no_future_arrival() {
    let whole = problem("3-mixed");
    let noon = whole.horizon_ms / 2;
    let mut morning = whole.clone();
    morning.jobs.retain(|job| job.arrival_ms < noon);
    assert!(morning.jobs.len() < whole.jobs.len());
    let starts = |problem: &Problem| {
        let runs = entry(problem, Name::PlanOnline).schedule.runs;
        let early = runs.into_iter().filter(|run| run.start_ms < noon);
        early.map(|run| (run.start_ms, run.job, run.gpus)).collect::<Vec<_>>()
    };
    assert_eq!(starts(&whole), starts(&morning));
}

#[test]
fn one_seed_gives_one_schedule_and_every_start_its_reason() {
    let problem = problem("6-fragmentation");
    let first = entry(&problem, Name::PlanOnline);
    assert_eq!(first, entry(&problem, Name::PlanOnline));
    assert_eq!(first.explanations.len(), first.schedule.runs.len());
    for (why, run) in first.explanations.iter().zip(&first.schedule.runs) {
        assert_eq!((why.job, why.start_ms), (run.job, run.start_ms));
        assert_eq!(why.score.realtime_shortfall, 0);
        assert!(why.score.useful_work > 0);
        assert!(why.reason == Reason::Fill || why.score.total() > 0, "{}", why.score);
    }
}

/// Runs that take longer or shorter than expected, and demand that comes late, leave it legal;
/// most of the gain stays.
#[test]
fn wrong_estimates_cost_some_of_the_gain() {
    let mut problem = problem("3-mixed");
    let noise = Noise { run_sigma: 0.7, shift_ms: 1_800_000, gpus: 1, margin: 0, seed: 3 };
    noise::apply(&mut problem, noise);
    let changed = problem.jobs.iter().filter(|job| job.run_ms != job.estimate_ms).count();
    assert!(changed * 2 > problem.jobs.len());
    let fifo = entry(&problem, Name::FifoStrictPeak).metrics;
    let online = entry(&problem, Name::PlanOnline).metrics;
    // Hindsight of arrivals is no hindsight of run times: it plans again too.
    entry(&problem, Name::PlanOffline);
    assert!(online.value_gpu_hours > fifo.value_gpu_hours * 1.1);
    assert!(online.rt_shortfall_gpu_hours > 0.0, "a late forecast must show");
    // Keeping some above the forecast buys service back.
    let mut careful = problem.clone();
    noise::apply(&mut careful, Noise { margin: 2, ..noise });
    let careful = entry(&careful, Name::PlanOnline).metrics;
    assert!(careful.rt_shortfall_gpu_hours < online.rt_shortfall_gpu_hours);
}

/// A low job under a stream of higher ones starts once its patience is over.
#[test]
fn nobody_waits_for_ever() {
    let job = |at: u64, priority, width, run_ms| Job {
        name: format!("job-{at}"),
        kind: "job".into(),
        priority,
        arrival_ms: at,
        deadline_ms: None,
        width,
        estimate_ms: run_ms,
        run_ms,
        wider: Vec::new(),
    };
    let mut jobs = vec![job(0, 9, 8, 5), job(0, 1, 8, 10)];
    jobs.extend((0..150).map(|at| job(at, 9, 8, 1)));
    jobs.sort_by_key(|job| job.arrival_ms);
    let low = jobs.iter().position(|job| job.priority == 1).unwrap();
    let problem = Problem {
        gpus: 8,
        nodes: 1,
        step_ms: 1,
        horizon_ms: 160,
        churn_limit: 8,
        jobs,
        services: Vec::new(),
        inherited: Vec::new(),
    };
    let start = |patience_ms| {
        let settings = Settings { schedules: Some(50), patience_ms, ..Settings::online(1) };
        let outcome = sim::run(&problem, &mut Planner::new(settings)).unwrap();
        outcome.runs.iter().find(|run| run.job == low).map(|run| run.start_ms)
    };
    assert!(start(u64::MAX).is_none_or(|start| start > 100));
    let patient = start(40).unwrap();
    assert!((40..60).contains(&patient), "{patient}");
}

/// A job that may run wider does so where that saves its deadline, and is worth no more for it.
/// Queues keep the width that it asks for.
#[test]
fn planners_widen_jobs_where_that_is_worth_it() {
    let csv = "job_id, workload_type, priority, arrival_time, deadline, min_gpus, max_gpus, \
               expected_duration\n\
               tight, tune, 5, 00:00, 05:00, 2, 8, 8h\n\
               easy, tune, 5, 00:00, 24:00, 2, 8, 8h\n\
               rigid, tune, 5, 00:00, 24:00, 2, 2, 8h\n";
    let workload = Workload::read(Source { name: "test", content: csv }, None).unwrap();
    let frame = |serial_permille| Frame { serial_permille, ..Frame::default() };
    let problem = build::problem(&workload, frame(Some(100))).unwrap();
    let widths = |job: usize| problem.jobs[job].shapes().map(|s| s.width).collect::<Vec<_>>();
    assert_eq!(widths(0), [2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(widths(2), [2]);
    for name in [Name::PlanOnline, Name::PlanOffline] {
        let entry = entry(&problem, name);
        let run = entry.schedule.runs.iter().find(|run| run.job == 0).unwrap();
        assert!(run.gpus.count() >= 4, "{name}: {:?}", run.gpus);
        let work = 5.0 * 3.0 * 16.0;
        assert!((entry.metrics.value_done - work).abs() < 0.01, "{}", entry.metrics.value_done);
        // A breach where the same schedule is held to the jobs without their wider shapes.
        let rigid = build::problem(&workload, frame(None)).unwrap();
        let rules = entry.violations(&rigid).into_iter().map(|found| found.rule);
        assert!(rules.clone().any(|rule| rule == Rule::Width));
        assert!(rules.clone().any(|rule| rule == Rule::Length));
        // And where a run ends when another width would have.
        let mut wrong = entry.clone();
        wrong.schedule.runs.iter_mut().find(|run| run.job == 0).unwrap().end_ms += problem.step_ms;
        assert!(wrong.violations(&problem).iter().any(|found| found.rule == Rule::Length));
    }
    let fifo = entry(&problem, Name::EasyElastic);
    assert!(fifo.schedule.runs.iter().all(|run| run.gpus.count() == 2));
    assert!((fifo.metrics.value_done - 5.0 * 2.0 * 16.0).abs() < 0.01);
}

/// On fresh days with wrong run times and demand nobody starts what cannot be started.
#[test]
fn fresh_days_with_errors_stay_legal() {
    let effort = Effort { online: Some(60), offline: Some(300), ..quick() };
    for (seed, family) in (5_000..).zip(FAMILIES.iter().cycle().take(14)) {
        let mut problem = build::problem(&family.day(seed), Frame::default()).unwrap();
        let noise = Noise { run_sigma: 0.5, shift_ms: 1_800_000, gpus: 1, margin: 0, seed };
        noise::apply(&mut problem, noise);
        for name in Name::ALL.into_iter().filter(|name| *name != Name::PhaseFair) {
            let entry = play(&problem, name, &effort);
            let entry = entry.unwrap_or_else(|e| panic!("{} {seed} {name}: {e}", family.name));
            assert_eq!(entry.violations(&problem), [], "{} {seed} {name}", family.name);
        }
    }
}
