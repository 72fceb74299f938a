//! Pure side: the score of one start, term by term, from what was known at that moment.

use super::planner::{last_end, steps};
use super::score::{Fragmentation, Score, UNIT, Weights, overrun_permille, staleness};
use crate::policy::GpuSet;
use crate::sim::queues::expected_end;
use crate::sim::{Curve, Moment};

/// What starting a job now on these GPUs is worth. `pending` tells what free GPUs are worth to
/// those who wait.
pub(super) fn score(
    moment: &Moment<'_>,
    (job, gpus): (usize, GpuSet),
    target: &Curve,
    weights: &Weights,
    pending: Option<&Fragmentation>,
) -> Score {
    let Moment { now_ms, problem, state, .. } = *moment;
    let facts = &problem.jobs[job];
    let length = steps(facts.estimate_ms, problem.step_ms);
    let per_step = UNIT * i64::from(facts.priority) * i64::from(facts.width);
    let by = last_end(problem, job, now_ms);
    let before_horizon = steps(problem.horizon_ms - now_ms, problem.step_ms);
    let useful_work = per_step * i64::from(length.min(before_horizon));
    let waited = u64::from(steps(now_ms.saturating_sub(facts.arrival_ms), problem.step_ms));
    let stale = staleness(facts.priority, facts.width, problem.steps(), weights);
    let mut risk = stale * i64::try_from(waited).unwrap_or(i64::MAX);
    if let Some(by) = by {
        let slack = u64::from(steps(by - now_ms - facts.estimate_ms, problem.step_ms));
        let error = weights.estimate_error_permille;
        risk += useful_work / 1_000 * overrun_permille(slack, u64::from(length), error);
    }
    let taken = state.running.values().filter(|running| !running.gpus.overlaps(gpus));
    let taken = taken.fold(GpuSet::EMPTY, |set, running| set.union(running.gpus));
    let fragmentation = pending.map_or(0, |pending| {
        i64::from(pending.of(taken.union(gpus).0)) - i64::from(pending.of(taken.0))
    });
    // Services sit at the upper end of what jobs leave.
    let free = GpuSet::first(problem.gpus).minus(taken);
    let services = free.highest(target.at(now_ms).min(free.count())).unwrap_or_default();
    let moved = i64::from(services.intersection(gpus).count());
    let unmet: u32 = (0..length.min(before_horizon))
        .map(|step| {
            let at = now_ms + u64::from(step) * problem.step_ms;
            let running = state
                .running
                .values()
                .filter(|running| expected_end(running, now_ms, problem.step_ms) > at);
            let used: u32 = running.map(|running| running.gpus.count()).sum();
            (used + facts.width + target.at(at)).saturating_sub(problem.gpus)
        })
        .sum();
    let highest = problem.jobs.iter().map(|job| job.priority);
    let highest = highest.chain(problem.services.iter().map(|service| service.priority)).max();
    let heavy = UNIT * weights.shortfall * i64::from(highest.unwrap_or(1));
    Score {
        useful_work,
        realtime_shortfall: heavy * i64::from(unmet),
        churn: weights.churn * moved,
        fragmentation,
        risk,
    }
}
