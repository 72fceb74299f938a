//! Pure: a node's state as the status of its `GpuNode`, the ledger.
//!
//! One writer per field: what the node agent observes is copied from the object as it stands, and
//! what an extender recorded of a binding is kept. On a node without an agent the list of GPUs is
//! the controller's too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::node::{index, plain_id, plain_index};
use super::pod::shape_name;
use super::status::condition;
use super::text::subject;
use super::time::{began, ends};
use super::{Ids, Known, World, agents};
use crate::api::{
    self, DrainStatus, GpuHealth, GpuNodeStatus, GpuStatus, NodePhase, PodRef, Reservation,
    ReservationKind, ReservationState, TurnStatus, WaveStatus,
};
use crate::policy::{
    Gate, GpuSet, Holding, JobId, Kind, Millis, Node, NodeId, Phase, ShapeCounters, Stage,
};

/// The status that the node's ledger should have. `base` is the one that it has.
pub fn render(
    id: NodeId,
    node: &Node,
    known: &Known,
    world: &World,
    base: &GpuNodeStatus,
) -> GpuNodeStatus {
    let gpus = gpus(node, base);
    let names = |set: GpuSet| -> Vec<String> { set.iter().map(|i| gpu_id(&gpus, i)).collect() };
    let free = node.free();
    let foreign = node.holdings.values().filter(|holding| holding.shape.is_none());
    let releasing = || node.holdings.iter().filter(|(_, h)| h.stage == Stage::Releasing);
    let agent = base.agent_seen.is_some();
    GpuNodeStatus {
        revision: base.revision,
        phase: phase(&node.phase),
        phase_since: Some(began(node.phase_since)),
        free_of_total: format!("{}/{}", free.count(), node.spec.gpus.count()),
        free: names(free),
        foreign_gpus: int(foreign.map(|holding| holding.gpus.count()).sum()),
        releasing_gpus: int(releasing().map(|(_, holding)| holding.gpus.count()).sum()),
        drain: node.gate().and_then(|gate| drain(node, gate, &known.ids)),
        turn: node.turn.map(|turn| TurnStatus {
            since: began(turn.since),
            until: world.config.turn.map(|budget| ends(turn.since + budget)),
            early_failures: int(turn.early_failures),
        }),
        // Creation times, which it is compared with, are whole seconds.
        given_up: node.given_up.map(began),
        wave: wave(node, world),
        reservations: node
            .holdings
            .iter()
            .filter_map(|(&job, holding)| {
                reservation(job, holding, known, base, names(holding.gpus))
            })
            .collect(),
        releasing: releasing()
            .filter(|_| agent)
            .filter_map(|(&job, _)| known.ids.pod(job))
            .map(|who| who.uid.clone())
            .collect(),
        counters: api::Counters {
            small: counters(&node.counters.small),
            whole_node_large: counters(&node.counters.large),
        },
        conditions: conditions(id, node, known, world, base),
        agent_seen: base.agent_seen.clone(),
        released: base.released.clone(),
        gpus,
    }
}

/// What of a status is the controller's alone, so that two can be compared: without the agent's
/// fields, without the marks that an extender may set, and without times of condition changes.
#[must_use]
pub fn owned(status: &GpuNodeStatus) -> GpuNodeStatus {
    let mut owned = GpuNodeStatus {
        revision: 0,
        gpus: Vec::new(),
        agent_seen: None,
        released: Vec::new(),
        ..status.clone()
    };
    for reservation in &mut owned.reservations {
        reservation.bound_at = None;
        if reservation.state <= ReservationState::Bound {
            reservation.state = ReservationState::Reserved;
            reservation.deadline = None;
        }
    }
    for condition in &mut owned.conditions {
        condition.last_transition_time = began(Millis(0));
    }
    owned
}

/// What of a status others act on: who has which GPUs, for whom the gate is closed. How far a pod
/// has come is not part of it.
#[derive(PartialEq)]
pub struct Decided<'a> {
    phase: NodePhase,
    gate: Option<&'a str>,
    held: Vec<(&'a str, &'a [String])>,
    releasing: &'a [String],
    gpus: &'a [GpuStatus],
}

impl<'a> Decided<'a> {
    /// That part of a status.
    pub fn of(status: &'a GpuNodeStatus) -> Self {
        let held = status.reservations.iter().map(|r| (r.uid.as_str(), r.gpus.as_slice()));
        Self {
            phase: status.phase,
            gate: status.drain.as_ref().map(|drain| drain.pod.uid.as_str()),
            held: held.collect(),
            releasing: &status.releasing,
            gpus: &status.gpus,
        }
    }
}

/// The GPUs as the agent reports them, or the controller's own list where there is no agent.
fn gpus(node: &Node, base: &GpuNodeStatus) -> Vec<GpuStatus> {
    if base.agent_seen.is_some() {
        // An agent that comes late finds the controller's own list, and may add to it only.
        let own = |gpu: &&GpuStatus| index(gpu).is_some_and(|index| plain_id(index) == gpu.id);
        return base.gpus.iter().filter(|gpu| !own(gpu)).cloned().collect();
    }
    let gpu = |index: u32| {
        let healthy = node.spec.healthy.overlaps(GpuSet::single(index));
        GpuStatus {
            index: int(index),
            id: plain_id(index),
            health: if healthy { GpuHealth::Healthy } else { GpuHealth::Unhealthy },
            reason: (!healthy).then(|| "HeldBackByKubelet".to_owned()),
            ..GpuStatus::default()
        }
    };
    node.spec.gpus.iter().map(gpu).collect()
}

/// The id of a GPU by its index. A GPU that the agent does not list any more keeps a plain id.
fn gpu_id(gpus: &[GpuStatus], wanted: u32) -> String {
    let found = gpus.iter().find(|gpu| index(gpu) == Some(wanted));
    found.map_or_else(|| plain_id(wanted), |gpu| gpu.id.clone())
}

/// The GPUs with these ids.
pub fn gpu_set(status: &GpuNodeStatus, ids: &[String]) -> GpuSet {
    let by_id = |id: &String| status.gpus.iter().find(|gpu| gpu.id == *id).and_then(index);
    ids.iter().filter_map(|id| by_id(id).or_else(|| plain_index(id))).collect()
}

const fn phase(phase: &Phase) -> NodePhase {
    match phase {
        Phase::Open => NodePhase::Open,
        Phase::Draining(_) => NodePhase::Draining,
        Phase::Exclusive(_) => NodePhase::Exclusive,
        Phase::Wave { .. } => NodePhase::Wave,
    }
}

fn drain(node: &Node, gate: &Gate, ids: &Ids) -> Option<DrainStatus> {
    Some(DrainStatus {
        pod: ids.pod(gate.job)?.clone(),
        since: began(gate.since),
        latest_end: latest_end(node).map(ends),
        blocked_by: holders(node, ids),
    })
}

/// When the last holder ends at the latest, as it stands in the ledger: a time, not one that moves
/// on with the clock once it has passed.
fn latest_end(node: &Node) -> Option<Millis> {
    node.latest_end(Millis(0)).filter(|&end| end > Millis(0))
}

fn holders(node: &Node, ids: &Ids) -> Vec<PodRef> {
    node.holdings.keys().filter_map(|&job| ids.pod(job)).cloned().collect()
}

fn wave(node: &Node, world: &World) -> Option<WaveStatus> {
    let Phase::Wave { admitted, .. } = node.phase else { return None };
    Some(WaveStatus {
        admitted: int(admitted),
        size: int(world.config.wave_size),
        since: began(node.phase_since),
        latest_end: latest_end(node).map(ends),
    })
}

fn reservation(
    job: JobId,
    holding: &Holding,
    known: &Known,
    base: &GpuNodeStatus,
    gpus: Vec<String>,
) -> Option<Reservation> {
    let who = known.ids.pod(job)?;
    let before = base.reservations.iter().find(|reservation| reservation.uid == who.uid);
    let bound_at = before.and_then(|reservation| reservation.bound_at.clone());
    let state = match holding.stage {
        Stage::Reserved if bound_at.is_some() => ReservationState::Bound,
        Stage::Reserved => ReservationState::Reserved,
        Stage::Bound => ReservationState::Bound,
        Stage::Running => ReservationState::Running,
        Stage::Releasing => ReservationState::Releasing,
    };
    let until = match holding.stage {
        Stage::Releasing => known.release_at.get(&job).copied(),
        Stage::Reserved | Stage::Bound | Stage::Running => holding.expires,
    };
    Some(Reservation {
        uid: who.uid.clone(),
        namespace: who.namespace.clone(),
        name: who.name.clone(),
        shape: holding.shape.map(|shape| shape_name(shape).to_owned()),
        kind: kind(holding.kind),
        state,
        gpus,
        since: began(holding.since),
        deadline: until.map(ends),
        latest_end: holding.latest_end.map(ends),
        sequence: Ids::sequence(job).and_then(|number| i64::try_from(number).ok()),
        bound_at,
    })
}

const fn kind(kind: Kind) -> ReservationKind {
    match kind {
        Kind::Direct => ReservationKind::Direct,
        Kind::Wave => ReservationKind::Wave,
        Kind::Backfill => ReservationKind::Backfill,
        Kind::Foreign => ReservationKind::Foreign,
    }
}

/// Counters as the API shows them.
pub fn counters(counters: &ShapeCounters) -> api::ShapeCounters {
    let long = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    api::ShapeCounters {
        admitted: long(counters.admitted),
        completed: long(counters.completed),
        failed: long(counters.failed),
        cancelled: long(counters.cancelled),
    }
}

fn conditions(
    id: NodeId,
    node: &Node,
    known: &Known,
    world: &World,
    base: &GpuNodeStatus,
) -> Vec<Condition> {
    let unhealthy = node.spec.gpus.minus(node.spec.healthy);
    let overdue = node.gate().is_some_and(|gate| gate.overdue);
    let strangers: Vec<PodRef> = node
        .holdings
        .iter()
        .filter(|(_, holding)| holding.shape.is_none())
        .filter_map(|(&job, _)| known.ids.pod(job))
        .cloned()
        .collect();
    let ready = if node.spec.schedulable {
        (true, "TakesWork", "New work may be placed here.".to_owned())
    } else {
        let message = "The node is cordoned, not ready, leaving the pool, or kubelet gives out no \
                       GPU: nothing new is placed here.";
        (false, "TakesNoWork", message.to_owned())
    };
    let drain = if overdue {
        let holders = subject(&holders(node, &known.ids), "still holds", "still hold");
        (true, "Overdue", format!("The drain has outlasted its limit; {holders} GPUs."))
    } else {
        (false, "InTime", "No drain has outlasted its limit.".to_owned())
    };
    let degraded = if unhealthy.is_empty() {
        (false, "AllHealthy", "Every GPU is healthy.".to_owned())
    } else {
        (true, "UnhealthyGpus", format!("{} GPUs are unhealthy.", unhealthy.count()))
    };
    let bypassed = if strangers.is_empty() {
        (false, "NoForeignPods", "Every holder went through Sluice.".to_owned())
    } else {
        let strangers = subject(&strangers, "holds", "hold");
        let message = format!("{strangers} GPUs without having gone through Sluice.");
        (true, "ForeignPods", message)
    };
    let agent = known.agents.get(&id);
    let agent =
        agent.map(|word| (agents::CONDITION, (word.ready, word.reason, word.message.clone())));
    [("Ready", ready), ("DrainOverdue", drain), ("Degraded", degraded), ("Bypassed", bypassed)]
        .into_iter()
        .chain(agent)
        .map(|(kind, (yes, reason, message))| {
            condition(&base.conditions, kind, yes, reason, message, None, world.now)
        })
        .collect()
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
