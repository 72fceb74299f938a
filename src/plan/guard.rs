//! Pure side: what EASY backfill would do from here on, as the floor below which no plan goes.

use crate::sim::queues::{Order, Pass, Queue, Realtime, expected_end};
use crate::sim::{self, Curve, Job, Moment, Problem, Run, Service};

/// Runs of `known` jobs under EASY backfill, beginning now; `job` counts places in `known`.
/// Estimates are taken for run times, and jobs keep the width that they ask for.
pub(super) fn easy(moment: &Moment<'_>, known: &[usize]) -> Vec<Run> {
    let Moment { now_ms, problem, state, .. } = *moment;
    let mut jobs: Vec<(Job, Option<usize>)> = Vec::new();
    let mut inherited = Vec::new();
    for (&job, running) in &state.running {
        let end_ms = expected_end(running, now_ms, problem.step_ms) - now_ms;
        let facts = &problem.jobs[job];
        inherited.push((job, Run { job: 0, node: 0, gpus: running.gpus, start_ms: 0, end_ms }));
        jobs.push((Job { arrival_ms: 0, estimate_ms: end_ms, ..facts.clone() }, None));
    }
    for (at, &job) in known.iter().enumerate() {
        let facts = &problem.jobs[job];
        let arrival_ms = facts.arrival_ms.saturating_sub(now_ms);
        let run_ms = facts.estimate_ms;
        jobs.push((Job { arrival_ms, run_ms, ..facts.clone() }, Some(at)));
    }
    // Running jobs have arrived at zero and stay in front.
    jobs.sort_by_key(|(job, place)| (job.arrival_ms, *place));
    let inherited = inherited.into_iter().enumerate().map(|(job, (_, run))| Run { job, ..run });
    let forecast = shifted(&problem.target(), now_ms);
    let service =
        Service { name: String::new(), priority: 1, peak: 0, demand: forecast.clone(), forecast };
    let (jobs, places): (Vec<Job>, Vec<Option<usize>>) = jobs.into_iter().unzip();
    let rest = Problem {
        horizon_ms: problem.horizon_ms - now_ms,
        // The curve is the target already: it rises as steeply as it may.
        churn_limit: problem.gpus,
        inherited: inherited.collect(),
        services: vec![service],
        jobs,
        ..*problem
    };
    let mut easy = Queue::new(Order::Arrival, Pass::Harmless, Realtime::Elastic);
    // A fault of EASY's would show where it runs as a policy; here it only offers nothing.
    let Ok(outcome) = sim::run(&rest, &mut easy) else { return Vec::new() };
    let later = |run: &Run| {
        let job = places[run.job]?;
        let (start_ms, end_ms) = (run.start_ms + now_ms, run.end_ms + now_ms);
        Some(Run { job, start_ms, end_ms, ..*run })
    };
    outcome.runs.iter().filter_map(later).collect()
}

/// The curve as it is seen from a later moment.
fn shifted(curve: &Curve, by_ms: u64) -> Curve {
    let later = curve.steps().iter().filter(|&&(at, _)| at > by_ms);
    let later = later.map(|&(at, value)| (at - by_ms, value));
    Curve::new(std::iter::once((0, curve.at(by_ms))).chain(later).collect())
}
