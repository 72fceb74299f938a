//! What may happen next in a state.

use sluice::policy::{GpuSet, JobId, Shape, Stage};

use super::setup::{Setup, TICK};
use super::state::{Grip, Place, State};

/// One thing that happens. Several that happen at one instant and are told together have an action
/// of their own, since the rule decides once for all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// A job of this kind arrives.
    Arrive(usize),
    /// One of the first kind and one of the second arrive in one look.
    ArriveTogether,
    Bind(JobId),
    Start(JobId),
    /// It starts on another GPU than the one that was promised.
    StartElsewhere(JobId, u32),
    /// The binding is refused.
    Refuse(JobId),
    Finish(JobId),
    FinishTogether(JobId, JobId),
    Fail(JobId),
    /// Its pod is deleted.
    Delete(JobId),
    /// The containers of a deleted pod are gone from the node.
    Clear(JobId),
    Tick,
    Break(u32, u32),
    Mend(u32, u32),
    Lose(u32),
    Return(u32),
    Cordon(u32),
    Uncordon(u32),
    /// A pod that went round the rule; `true` where the node says which GPU it has.
    Intrude(u32, u32, bool),
    Crash,
    Pause,
    Resume,
}

/// Everything that may happen in `state`.
pub(crate) fn possible(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    arrivals(state, actions);
    for (id, job, grip) in state.grips() {
        of_holder(setup, state, id, job.shape, grip, actions);
    }
    if !setup.slow {
        together(state, actions);
    }
    if state.left.cancels > 0 {
        actions.extend(state.waiting().map(|(id, _)| Action::Delete(id)));
    }
    if may_tick(state) {
        actions.push(Action::Tick);
    }
    for node in (0..).zip(&state.nodes).map(|(id, _)| id) {
        of_node(state, node, actions);
    }
    if state.left.crashes > 0 {
        actions.push(Action::Crash);
    }
    match (state.paused, state.left.pauses) {
        (true, _) => actions.push(Action::Resume),
        (false, 0) => {}
        (false, _) => actions.push(Action::Pause),
    }
}

fn arrivals(state: &State, actions: &mut Vec<Action>) {
    let kinds = || state.to_come.iter().enumerate().filter(|&(_, &count)| count > 0);
    actions.extend(kinds().map(|(kind, _)| Action::Arrive(kind)));
    if kinds().take_while(|&(kind, _)| kind < 2).count() == 2 {
        actions.push(Action::ArriveTogether);
    }
}

fn of_holder(
    setup: &Setup,
    state: &State,
    id: JobId,
    shape: Option<Shape>,
    grip: Grip,
    actions: &mut Vec<Action>,
) {
    let left = &state.left;
    match grip.stage {
        Stage::Reserved => {
            actions.push(Action::Bind(id));
            if left.refusals > 0 {
                actions.push(Action::Refuse(id));
            }
        }
        Stage::Bound => {
            actions.push(Action::Start(id));
            if left.moves > 0 && shape == Some(Shape::Small) {
                actions.extend(elsewhere(state, grip).map(|gpu| Action::StartElsewhere(id, gpu)));
            }
        }
        Stage::Running => actions.push(Action::Finish(id)),
        Stage::Releasing => actions.push(Action::Clear(id)),
    }
    let fails = left.failures > 0 || grip.evicted;
    if fails && matches!(grip.stage, Stage::Bound | Stage::Running) && shape.is_some() {
        actions.push(Action::Fail(id));
    }
    let deletable = grip.stage < Stage::Releasing && shape.is_some();
    if left.cancels > 0 && deletable && (setup.slow || grip.stage == Stage::Running) {
        actions.push(Action::Delete(id));
    }
}

/// GPUs that kubelet could give a bound pod instead: nobody has started on them.
fn elsewhere(state: &State, grip: Grip) -> impl Iterator<Item = u32> {
    let node = &state.pool.nodes()[&sluice::policy::NodeId(grip.node)].spec;
    let used = state.grips_on(grip.node).filter(|(_, _, other)| other.stage >= Stage::Running);
    let used = used.fold(grip.gpus, |set, (_, _, other)| set.union(other.gpus));
    // With its own GPU broken, whoever was promised the other one would be left without any.
    let whole = grip.gpus.is_within(node.healthy);
    node.healthy.minus(used).iter().filter(move |_| whole)
}

fn together(state: &State, actions: &mut Vec<Action>) {
    let running: Vec<JobId> = state
        .grips()
        .filter(|(_, _, grip)| grip.stage == Stage::Running)
        .map(|(id, _, _)| id)
        .collect();
    for (index, &one) in running.iter().enumerate() {
        let others = running[index + 1..].iter();
        actions.extend(others.map(|&other| Action::FinishTogether(one, other)));
    }
}

fn of_node(state: &State, id: u32, actions: &mut Vec<Action>) {
    let left = &state.left;
    let Some(spec) = state.nodes[id as usize] else {
        actions.push(Action::Return(id));
        return;
    };
    let broken = spec.gpus.minus(spec.healthy);
    actions.extend(one_of_each(state, id, broken).into_iter().map(|gpu| Action::Mend(id, gpu)));
    if left.breaks > 0 {
        actions.extend(
            one_of_each(state, id, spec.healthy).into_iter().map(|gpu| Action::Break(id, gpu)),
        );
    }
    if left.losses > 0 {
        actions.push(Action::Lose(id));
    }
    if !spec.schedulable {
        actions.push(Action::Uncordon(id));
    } else if left.cordons > 0 {
        actions.push(Action::Cordon(id));
    }
    if left.foreign > 0 {
        // kubelet gives nobody a GPU that belongs to a pod on its node.
        let taken = state.grips_on(id).filter(|(_, _, grip)| grip.stage >= Stage::Bound);
        let taken = taken.fold(GpuSet::EMPTY, |set, (_, _, grip)| set.union(grip.gpus));
        let open = spec.healthy.minus(taken);
        actions.extend(
            one_of_each(state, id, open).into_iter().map(|gpu| Action::Intrude(id, gpu, true)),
        );
        if let Some(gpu) = open.iter().next() {
            actions.push(Action::Intrude(id, gpu, false));
        }
    }
}

/// Of GPUs in the same hands one is enough, where they are alike in everything.
fn one_of_each(state: &State, node: u32, gpus: GpuSet) -> Vec<u32> {
    if state.left.foreign > 0 {
        return gpus.iter().collect();
    }
    let grips: Vec<GpuSet> = state.grips_on(node).map(|(_, _, grip)| grip.gpus).collect();
    let held = grips.iter().fold(GpuSet::EMPTY, |set, &gpus| set.union(gpus));
    let free = gpus.minus(held).iter().next();
    let held = grips.into_iter().filter_map(|held| held.intersection(gpus).iter().next());
    free.into_iter().chain(held).collect()
}

/// Whether time may pass: something depends on it, nobody outlasts an enforced limit, and no more
/// reservations run out than may.
fn may_tick(state: &State) -> bool {
    let next = (state.now + 1) * TICK.0;
    let due = |grip: &Grip| grip.end.is_some_and(|end| end <= state.now);
    let overstays = state.grips().any(|(_, _, grip)| due(&grip));
    let expiring = state.pool.nodes().values().flat_map(|node| node.holdings.values());
    let expiring = expiring.filter(|h| h.stage == Stage::Reserved);
    let expiring = expiring.filter(|h| h.expires.is_some_and(|at| at.0 <= next)).count();
    time_left(state) > 0 && !overstays && expiring <= usize::from(state.left.expiries)
}

/// How much is still decided by time alone. Each tick lowers it.
fn time_left(state: &State) -> u64 {
    let now = state.now * TICK.0;
    let rest = |at: u64| at.saturating_sub(now).div_ceil(TICK.0);
    let ends = state.grips().filter_map(|(_, _, grip)| grip.end.map(|end| end - state.now));
    let holdings = state.pool.nodes().values().flat_map(|node| node.holdings.values());
    let expiries = holdings
        .filter(|holding| holding.stage == Stage::Reserved)
        .filter_map(|holding| holding.expires.map(|at| rest(at.0)));
    let waiting = state.waiting().filter_map(|(id, _)| state.pool.waiting(id));
    let retries = waiting.map(|waiting| rest(waiting.retry_at.0));
    let limit = state.pool.config().drain_limit;
    let gates = state.pool.nodes().values().filter(|node| !node.holdings.is_empty());
    let gates = gates.filter_map(|node| node.gate().filter(|gate| !gate.overdue));
    let overdue = gates.filter_map(|gate| limit.map(|limit| rest((gate.since + limit).0)));
    ends.chain(expiries).chain(retries).chain(overdue).sum()
}

/// How far a state is from the end of everything, the weightiest figure first. Each step lowers
/// it, so that every history ends, and what holds where it ends holds for all of them.
pub(crate) fn distance(state: &State) -> [u64; 4] {
    let to_come: u32 = state.to_come.iter().copied().map(u32::from).sum();
    let places = state.jobs.iter().map(|job| match job.place {
        Place::Gone => 0,
        Place::Waits => 5,
        Place::Holds(grip) => match grip.stage {
            Stage::Reserved => 4,
            Stage::Bound => 3,
            Stage::Running => 2,
            Stage::Releasing => 1,
        },
    });
    let wrong = state.nodes.iter().map(|node| match node {
        None => 100,
        Some(spec) => {
            u64::from(spec.gpus.minus(spec.healthy).count()) + u64::from(!spec.schedulable)
        }
    });
    let wrong = wrong.sum::<u64>() + u64::from(state.paused);
    [u64::from(to_come + state.left.sum()), places.sum(), wrong, time_left(state)]
}
