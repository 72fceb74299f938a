//! How the world changes, and how the rule hears of it.

use sluice::policy::{
    Fits, GpuSet, Input, Job, JobId, NodeId, NodeSpec, Outcome, Shape, Stage, TenantId,
};

use super::actions::Action;
use super::setup::ticks;
use super::state::{Grip, JobFact, Place, State, queue};

/// What the rule is told of a job of the world.
pub(crate) fn job(state: &State, id: JobId) -> Job {
    let fact = state.job(id).expect("jobs of the world have numbers");
    Job {
        id,
        shape: fact.shape.expect("a foreign job is not told as one of ours"),
        priority: 0,
        created: ticks(fact.created),
        limit: fact.limit.map(ticks),
        tenant: TenantId(0),
        fits: Fits::Any,
    }
}

/// Everybody who waits, as a controller that starts tells it.
pub(crate) fn waiting_jobs(state: &State) -> Vec<Input> {
    state.waiting().map(|(id, _)| Input::Queued(Box::new(job(state, id)))).collect()
}

pub(super) fn grip_mut(state: &mut State, id: JobId) -> Option<&mut Grip> {
    match &mut state.job_mut(id)?.place {
        Place::Holds(grip) => Some(grip),
        Place::Waits | Place::Gone => None,
    }
}

pub(super) fn stage(state: &mut State, id: JobId, reached: Stage) {
    if let Some(grip) = grip_mut(state, id) {
        grip.stage = reached;
    }
}

pub(super) fn started(state: &mut State, job: JobId) -> Input {
    stage(state, job, Stage::Running);
    let limit = state.job(job).and_then(|job| job.limit);
    Input::Started { job, latest_end: limit.map(|limit| ticks(state.now + limit)) }
}

pub(super) fn end(state: &mut State, job: JobId, outcome: Outcome) -> Input {
    let now = state.now;
    if let Some(fact) = state.job_mut(job).copied()
        && let (Some(shape), Place::Holds(grip)) = (fact.shape, fact.place)
    {
        let ends = &mut state.ends[queue(shape)];
        match outcome {
            Outcome::Completed => ends.completed += 1,
            Outcome::Failed => ends.failed += 1,
            Outcome::Cancelled => ends.cancelled += 1,
        }
        // A large that failed at once, or was deleted before it was bound, has not had its turn.
        let unbound = grip.stage == Stage::Reserved && outcome != Outcome::Completed;
        let in_vain = unbound || outcome == Outcome::Failed && grip.since == now;
        if shape == Shape::Large && !in_vain {
            for small in waiting_of(state, Shape::Small).filter(|small| small.rank > 0) {
                small.passed += 1;
            }
        }
    }
    if let Some(fact) = state.job_mut(job) {
        fact.place = Place::Gone;
    }
    Input::Released { job, outcome }
}

pub(super) fn delete(state: &mut State, job: JobId) -> Input {
    state.left.cancels -= 1;
    let Some(fact) = state.job(job).copied() else { return Input::Withdrawn { job } };
    match fact.place {
        Place::Holds(grip) if grip.stage == Stage::Reserved => end(state, job, Outcome::Cancelled),
        Place::Holds(_) => {
            stage(state, job, Stage::Releasing);
            Input::Vanished { job }
        }
        Place::Waits | Place::Gone => {
            if let Some(shape) = fact.shape {
                state.ends[queue(shape)].cancelled += 1;
            }
            if let Some(fact) = state.job_mut(job) {
                fact.place = Place::Gone;
            }
            Input::Withdrawn { job }
        }
    }
}

pub(super) fn intrude(state: &mut State, node: u32, gpu: u32, named: bool) -> Input {
    state.left.foreign -= 1;
    let gpus = GpuSet::single(gpu);
    let (running, since) = (Stage::Running, state.now);
    let grip = Grip { node, gpus, stage: running, since, end: None, evicted: false };
    state.jobs.push(JobFact::new(None, None, Place::Holds(grip)));
    Input::Foreign {
        job: JobId(state.jobs.len() as u64),
        node: NodeId(node),
        count: 1,
        gpus: named.then_some(gpus),
        latest_end: None,
    }
}

pub(super) fn change_node(state: &mut State, action: &Action) -> Input {
    let (Action::Break(id, _)
    | Action::Mend(id, _)
    | Action::Lose(id)
    | Action::Return(id)
    | Action::Cordon(id)
    | Action::Uncordon(id)) = *action
    else {
        unreachable!("{action:?} is not about a node")
    };
    let gpus = GpuSet::first(state.pool.config().gpus_per_node);
    let whole = NodeSpec { gpus, healthy: gpus, schedulable: true };
    let known = state.nodes[id as usize].unwrap_or(whole);
    let spec = match *action {
        Action::Break(_, gpu) => {
            state.left.breaks -= 1;
            NodeSpec { healthy: known.healthy.minus(GpuSet::single(gpu)), ..known }
        }
        Action::Mend(_, gpu) => {
            NodeSpec { healthy: known.healthy.union(GpuSet::single(gpu)), ..known }
        }
        Action::Cordon(_) => {
            state.left.cordons -= 1;
            NodeSpec { schedulable: false, ..known }
        }
        Action::Uncordon(_) => NodeSpec { schedulable: true, ..known },
        Action::Lose(_) => return lose(state, id),
        _ => whole,
    };
    state.nodes[id as usize] = Some(spec);
    Input::NodeChanged { node: NodeId(id), spec }
}

/// What ran on a node is gone with it; what was only promised there waits again.
fn lose(state: &mut State, id: u32) -> Input {
    state.left.losses -= 1;
    state.nodes[id as usize] = None;
    let lost: Vec<JobId> = state
        .grips_on(id)
        .filter(|(_, _, grip)| grip.stage > Stage::Reserved)
        .map(|(job, _, _)| job)
        .collect();
    for job in lost {
        end(state, job, Outcome::Failed);
    }
    Input::NodeGone { node: NodeId(id) }
}

/// The jobs that wait in the queue of a shape.
pub(super) fn waiting_of(state: &mut State, shape: Shape) -> impl Iterator<Item = &mut JobFact> {
    let of_shape = move |job: &&mut JobFact| job.queues_with(shape);
    state.jobs.iter_mut().filter(|job| job.place == Place::Waits).filter(of_shape)
}
