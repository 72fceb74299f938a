//! Baselines on the seven scenarios.

use sluice::plan::compare::{Effort, Name, play};
use sluice::plan::explain::Reason;

use crate::support::{SCENARIOS, problem, quick};

/// Utilisation in per mille and priority x GPU-hours done by the deadline, of strict FIFO with a
/// peak reservation; found by two programs that share no code.
#[test]
fn fifo_is_where_it_was_measured() {
    let expect =
        [(538, 482), (595, 126), (599, 236), (499, 172), (755, 440), (737, 839), (1000, 939)];
    for (scenario, (utilisation, done)) in SCENARIOS.into_iter().zip(expect) {
        let metrics =
            play(&problem(scenario), Name::FifoStrictPeak, &Effort::default()).unwrap().metrics;
        assert!((metrics.utilisation * 1000.0 - f64::from(utilisation)).abs() < 0.6, "{scenario}");
        assert!((metrics.value_done - f64::from(done)).abs() < 0.6, "{scenario}");
    }
}

#[test]
fn every_policy_makes_legal_schedules() {
    for scenario in SCENARIOS {
        let problem = problem(scenario);
        for name in Name::ALL {
            match play(&problem, name, &quick()) {
                Ok(entry) => {
                    assert_eq!(entry.violations(&problem), [], "{scenario} {name}");
                    assert!(entry.metrics.jobs_started > 0, "{scenario} {name}");
                    assert!(entry.metrics.rt_shortfall_gpu_hours < 1e-9, "{scenario} {name}");
                    let whys = entry.explanations.iter().map(|why| (why.job, why.start_ms));
                    let runs = entry.schedule.runs.iter().map(|run| (run.job, run.start_ms));
                    assert!(whys.eq(runs), "{scenario} {name}: each start is explained");
                }
                Err(error) => {
                    assert_eq!(name, Name::PhaseFair, "{scenario} {name}: {error}");
                    assert!(!problem.services.is_empty());
                }
            }
        }
    }
}

#[test]
fn jobs_wider_than_what_a_peak_leaves_are_named() {
    let problem = problem("4-bursty-realtime");
    let rejected = |name| {
        let entry = play(&problem, name, &Effort::default()).unwrap();
        let names = entry.schedule.rejected.iter().map(|&job| problem.jobs[job].name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(rejected(Name::EasyPeak).len(), 3);
    assert_eq!(rejected(Name::EasyElastic), [""; 0]);
}

/// A strict queue waits for its first; one that lets others pass does not; EASY lets pass only
/// whom the first does not feel.
#[test]
fn queues_differ_in_who_may_pass() {
    use sluice::sim::{Job, Problem};
    let job = |name: &str, arrival_ms, width, run_ms| Job {
        name: name.into(),
        kind: "job".into(),
        priority: 1,
        arrival_ms,
        deadline_ms: None,
        width,
        estimate_ms: run_ms,
        run_ms,
        wider: Vec::new(),
    };
    let problem = Problem {
        gpus: 8,
        nodes: 1,
        step_ms: 1,
        horizon_ms: 1_000,
        churn_limit: 8,
        jobs: vec![
            job("running", 0, 6, 100),
            job("head", 1, 8, 100),
            job("long", 2, 1, 300),
            job("short", 3, 1, 50),
        ],
        services: Vec::new(),
        inherited: Vec::new(),
    };
    let starts = |name| {
        let entry = play(&problem, name, &Effort::default()).unwrap();
        let mut starts = [None; 4];
        for run in &entry.schedule.runs {
            starts[run.job] = Some(run.start_ms);
        }
        starts
    };
    let reasons = |name| {
        let entry = play(&problem, name, &Effort::default()).unwrap();
        entry.explanations.iter().map(|why| (why.job, why.reason)).collect::<Vec<_>>()
    };
    assert!(reasons(Name::FifoStrictPeak).iter().all(|(_, why)| *why == Reason::InTurn));
    assert_eq!(reasons(Name::EasyPeak)[1], (3, Reason::Passes), "short passes head");
    assert_eq!(starts(Name::FifoStrictPeak), [Some(0), Some(100), Some(200), Some(200)]);
    assert_eq!(starts(Name::FifoSkipPeak), [Some(0), Some(302), Some(2), Some(3)]);
    assert_eq!(starts(Name::EasyPeak), [Some(0), Some(100), Some(200), Some(3)]);
    // The gate closes for the head at once, behind the job of six as behind any small.
    assert_eq!(starts(Name::PhaseFair), [Some(0), Some(100), Some(200), Some(200)]);
}

/// What a start is worth, by hand: a service needs four of eight from the second hour on, a job of
/// six for three hours takes two of them for two steps; who waits needs eight.
#[test]
fn a_start_is_worth_what_its_terms_say() {
    use sluice::sim::{Curve, Job, Problem, Service};
    const HOUR: u64 = 3_600_000;
    let job = |name: &str, priority, width, hours| Job {
        name: name.into(),
        kind: "job".into(),
        priority,
        arrival_ms: 0,
        deadline_ms: None,
        width,
        estimate_ms: hours * HOUR,
        run_ms: hours * HOUR,
        wider: Vec::new(),
    };
    let demand = Curve::new(vec![(HOUR, 4)]);
    let service =
        Service { name: "rt".into(), priority: 5, forecast: demand.clone(), demand, peak: 0 };
    let problem = Problem {
        gpus: 8,
        nodes: 1,
        step_ms: HOUR,
        horizon_ms: 10 * HOUR,
        churn_limit: 8,
        jobs: vec![job("wide", 2, 6, 3), job("whole", 1, 8, 2)],
        services: vec![service],
        inherited: Vec::new(),
    };
    // The service reserves nothing here, so a peak policy does not see it.
    let entry = play(&problem, Name::FifoStrictPeak, &Effort::default()).unwrap();
    let score = entry.explanations[0].score;
    assert_eq!(score.useful_work, 2 * 6 * 3 * 1_000);
    assert_eq!(score.realtime_shortfall, 10 * 5 * (2 + 2) * 1_000);
    assert_eq!((score.churn, score.staleness_risk, score.deadline_risk), (0, 0, 0));
    assert_eq!(score.fragmentation, 2_000, "two are left, and the one who waits needs eight");
    let text = score.to_string();
    for term in ["useful work", "real-time shortfall", "churn", "fragmentation", "deadline risk"] {
        assert!(text.contains(term), "{text}");
    }
}
