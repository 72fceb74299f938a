//! Pure: what the objects say against what they should say, as writes to carry out.
//!
//! Like [`super::diff`] in the other direction, this compares whole states. A write that was lost
//! in a crash is found missing at the next look. The order that safety needs is a condition on
//! what the objects show: a pod's gate goes only after the ledger shows its reservation and the
//! pod its nomination.

use std::collections::BTreeSet;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::ledger::Decided;
use super::pod::{Admitted, shape_name};
use super::restore::BIND_DOUBT;
use super::time::millis;
use super::world::Released;
use super::{Ids, Known, NodeFacts, PodFacts, World, ledger};
use crate::api::{GpuNode, GpuNodeSpec, GpuNodeStatus, PodRef, ReservationKind};
use crate::policy::{Holding, JobId, Millis, NodeId, Pool, Shape, Stage};

mod tell;

pub use tell::{Memory, no_such_pool, shape_mismatch};

/// One write.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Create the ledger of a node.
    CreateLedger(Box<GpuNode>),
    /// Delete the ledger of a node that is gone, is another one now, or left the pool.
    DeleteLedger {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Write the status of a ledger, on condition that it is as it was read.
    WriteLedger {
        /// Whether something waits for it: not for how far a pod has come.
        urgent: bool,
        /// The object with its new status.
        object: Box<GpuNode>,
        /// The status that it was read with.
        read: Box<GpuNodeStatus>,
    },
    /// Set our condition and the nomination of a pod.
    Tell {
        /// The pod.
        pod: PodRef,
        /// The condition.
        admitted: Admitted,
        /// Whether the condition's status changes, and with it its time.
        flips: bool,
        /// The nominated node.
        nominate: Nomination,
        /// Whether something waits for it; a mere change of wording may be late.
        urgent: bool,
    },
    /// Remove our gate.
    Ungate {
        /// The pod.
        pod: PodRef,
        /// Its sequence number, where it is to be recorded on it by the way.
        sequence: Option<u64>,
    },
    /// Record a pod's sequence number on it.
    Number {
        /// The pod.
        pod: PodRef,
        /// The number.
        sequence: u64,
    },
    /// Ask the cluster autoscaler to spare a node, or no longer.
    Spare {
        /// The node.
        node: String,
        /// Whether to spare it.
        spare: bool,
    },
    /// Evict a pod.
    Evict {
        /// The pod.
        pod: PodRef,
    },
}

/// What becomes of a pod's nominated node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Nomination {
    /// It stays.
    Keep,
    /// It is taken back.
    Clear,
    /// It is this node.
    Node(String),
}

/// The object that an action writes to: one write at a time to each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// The ledger of a node, by name.
    Ledger(String),
    /// A pod, by UID.
    Pod(String),
    /// A pod's eviction, by UID.
    Eviction(String),
    /// A node, by name.
    Node(String),
    /// A pool, by name.
    Pool(String),
}

impl Action {
    /// The object that it writes to.
    pub fn target(&self) -> Target {
        let name = |node: &GpuNode| node.metadata.name.clone().unwrap_or_default();
        match self {
            Self::CreateLedger(node) | Self::WriteLedger { object: node, .. } => {
                Target::Ledger(name(node))
            }
            Self::DeleteLedger { name, .. } => Target::Ledger(name.clone()),
            Self::Tell { pod, .. } | Self::Ungate { pod, .. } | Self::Number { pod, .. } => {
                Target::Pod(pod.uid.clone())
            }
            Self::Spare { node, .. } => Target::Node(node.clone()),
            Self::Evict { pod } => Target::Eviction(pod.uid.clone()),
        }
    }

    /// Whether it nominates a pod to a node, or takes that back.
    fn nominates(&self) -> bool {
        matches!(self, Self::Tell { nominate, .. } if *nominate != Nomination::Keep)
    }

    /// Whether something waits for it.
    pub fn urgent(&self) -> bool {
        match self {
            Self::CreateLedger(_) | Self::DeleteLedger { .. } | Self::Ungate { .. } => true,
            Self::WriteLedger { urgent, .. } | Self::Tell { urgent, .. } => *urgent,
            Self::Number { .. } | Self::Spare { .. } | Self::Evict { .. } => false,
        }
    }
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Writes, the most pressing first.
    pub actions: Vec<Action>,
    /// A ledger shows what cannot be brought together with the policy's state: it must be rebuilt.
    pub rebuild: Option<String>,
}

/// Compares the objects of `world` with the policy's state. `off_limits` are those to which nothing
/// can be written now: pods among them are not looked at, so that they take nobody's turn.
pub fn plan(
    world: &World,
    pool: &Pool,
    known: &Known,
    off_limits: &BTreeSet<Target>,
    memory: &mut Memory,
) -> Plan {
    let mut plan = Plan::default();
    memory.round();
    ledgers(world, pool, known, memory, &mut plan);
    let look = tell::Look::new(world, pool, known, off_limits);
    pods(&look, memory, &mut plan);
    spare(world, pool, known, &mut plan);
    evictions(world, pool, known, &mut plan);
    plan
}

fn ledgers(world: &World, pool: &Pool, known: &Known, memory: &mut Memory, plan: &mut Plan) {
    memory.settings(&world.config);
    for facts in world.nodes.values() {
        let Some(object) = world.ledgers.get(&facts.name) else {
            plan.actions.push(Action::CreateLedger(Box::new(new_ledger(world, facts))));
            continue;
        };
        let Some(id) = known.ids.node(&facts.name, &facts.uid) else { continue };
        let Some(node) = pool.nodes().get(&id) else { continue };
        if object.spec.node_uid != facts.uid {
            continue;
        }
        let agent = known.agents.get(&id);
        if memory.is_clean(id, node, object, agent) {
            continue;
        }
        let base = object.status.clone().unwrap_or_default();
        if let Some(why) = irreconcilable(world, pool, known, id, &base) {
            plan.rebuild.get_or_insert(why);
            continue;
        }
        let mut status = ledger::render(id, node, known, world, &base);
        if Some(&status) == object.status.as_ref() {
            memory.clean(id, node, object, agent);
        } else {
            let urgent = Decided::of(&status) != Decided::of(&base);
            status.revision = base.revision + 1;
            let object = Box::new(GpuNode { status: Some(status), ..GpuNode::clone(object) });
            let read = Box::new(base);
            plan.actions.push(Action::WriteLedger { urgent, object, read });
        }
    }
    for (name, object) in &world.ledgers {
        let current = world.nodes.get(name);
        if current.is_none_or(|facts| facts.uid != object.spec.node_uid) {
            let uid = object.metadata.uid.clone().unwrap_or_default();
            plan.actions.push(Action::DeleteLedger { name: name.clone(), uid });
        }
    }
}

/// A binding that an extender posted for a pod whose reservation the policy has given up: only
/// what the ledger says can be true.
fn irreconcilable(
    world: &World,
    pool: &Pool,
    known: &Known,
    id: NodeId,
    base: &GpuNodeStatus,
) -> Option<String> {
    base.reservations.iter().find_map(|reservation| {
        let posted = millis(reservation.bound_at.as_ref()?);
        let place = |job| pool.node_of(job);
        let ours = known.ids.job(&reservation.uid).and_then(place);
        let foreign = known.ids.foreign(&reservation.uid).and_then(place) == Some(id);
        // As foreign only where it is one, or where another ledger promises the pod as well: whoever
        // finds it bound after it was given up would take it to have gone round us.
        let counted = foreign && (ours.is_some() || reservation.kind == ReservationKind::Foreign);
        let over = known.released.get(&reservation.uid) == Some(&Released::Over);
        let doubt_ends = posted + BIND_DOUBT;
        let bound = world.pods.get(&reservation.uid).is_some_and(|pod| {
            let here =
                pod.node.as_deref().is_some_and(|name| known.ids.node_name(id) == Some(name));
            here && pod.ended.is_none()
        });
        // Bound here, it is not over, although what was promised elsewhere is.
        let ended = !bound && (over || doubt_ends < world.now);
        let settled = ours == Some(id) || counted || ended;
        (!settled).then(|| {
            format!(
                "pod {}/{} was being bound when its reservation was taken back",
                reservation.namespace, reservation.name
            )
        })
    })
}

fn new_ledger(world: &World, facts: &NodeFacts) -> GpuNode {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: facts.name.clone(),
        uid: facts.uid.clone(),
        ..OwnerReference::default()
    };
    GpuNode {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: GpuNodeSpec { pool: world.name.clone(), node_uid: facts.uid.clone() },
        status: None,
    }
}

fn pods(look: &tell::Look<'_>, memory: &mut Memory, plan: &mut Plan) {
    let tell::Look { world, pool, known, .. } = *look;
    let (mut words, mut later) = (Vec::new(), Vec::new());
    for pod in world.ours().filter(|pod| pod.ended.is_none()) {
        let job = known.ids.job(&pod.who.uid);
        if let Some(job) = job
            && let Some((id, holding)) = pool.node_of(job).zip(pool.holding(job))
        {
            admitted(look, pod, job, id, holding, memory, plan);
        } else if pod.can_be_bound()
            && let Some(tell) = tell::waiting(look, pod, job, memory)
        {
            // Others' gates may wait for a nomination, and nobody for mere words.
            if tell.nominates() { &mut plan.actions } else { &mut words }.push(tell);
        }
        // A pod that is about to lose its gate gets its number in the same write.
        let served = job.filter(|&job| pool.waiting(job).is_some() || !pod.gated);
        let served = served.filter(|&job| pool.job(job).is_some());
        let sequence = served.and_then(Ids::sequence);
        if let Some(sequence) = sequence.filter(|number| pod.sequence != Some(*number)) {
            later.push((&**pod, sequence));
        }
    }
    memory.retain(|uid| world.pods.contains_key(uid));
    plan.actions.append(&mut words);
    plan.actions.append(&mut numbers(later));
}

/// Numbers to record. Of pods created in the same second, which only their numbers keep in order,
/// one at a time and the lowest first: after a crash those without one come after those with one.
fn numbers(unrecorded: Vec<(&PodFacts, u64)>) -> Vec<Action> {
    let mut lowest: BTreeMap<Millis, u64> = BTreeMap::new();
    for (pod, sequence) in &unrecorded {
        let least = lowest.entry(pod.created).or_insert(*sequence);
        *least = (*least).min(*sequence);
    }
    let first = |(pod, sequence): &(&PodFacts, u64)| lowest.get(&pod.created) == Some(sequence);
    unrecorded
        .into_iter()
        .filter(first)
        .map(|(pod, sequence)| Action::Number { pod: pod.who.clone(), sequence })
        .collect()
}

/// A pod with GPUs: once the ledger shows them it is told and nominated, then its gate goes.
fn admitted(
    look: &tell::Look<'_>,
    pod: &PodFacts,
    job: JobId,
    id: NodeId,
    holding: &Holding,
    memory: &mut Memory,
    plan: &mut Plan,
) {
    let Some(name) = look.known.ids.node_name(id) else { return };
    if holding.stage == Stage::Releasing || !committed(look.world, pod, job, name, holding) {
        return;
    }
    let bound = pod.node.is_some();
    if !bound && look.nominated_elsewise(pod, name) {
        // kube-scheduler would keep the node's GPUs for the nominated one.
        return;
    }
    let tell = tell::reserved(look, pod, id, holding, memory);
    let gated = pod.gated && !bound && !pod.deleting;
    // A large was nominated while its node drained: its gate need not wait for words.
    if gated && (tell.is_none() || pod.nominated.as_deref() == Some(name)) {
        let sequence = Ids::sequence(job).filter(|number| pod.sequence != Some(*number));
        plan.actions.push(Action::Ungate { pod: pod.who.clone(), sequence });
    } else {
        plan.actions.extend(tell);
    }
}

/// Whether the ledger shows the pod's reservation as the policy has it.
fn committed(world: &World, pod: &PodFacts, job: JobId, node: &str, holding: &Holding) -> bool {
    let status = world.nodes.get(node).and_then(|facts| world.ledger(facts));
    status.is_some_and(|status| {
        status.reservations.iter().any(|reservation| {
            reservation.uid == pod.who.uid
                && reservation.sequence.and_then(|n| u64::try_from(n).ok()) == Ids::sequence(job)
                && ledger::gpu_set(status, &reservation.gpus) == holding.gpus
        })
    })
}

fn spare(world: &World, pool: &Pool, known: &Known, plan: &mut Plan) {
    for facts in world.nodes.values() {
        let id = known.ids.node(&facts.name, &facts.uid);
        let node = id.and_then(|id| pool.nodes().get(&id));
        let gated = node.is_some_and(|node| node.gate().is_some());
        let spare = match (gated, facts.spared_by_us, facts.no_scale_down) {
            // Somebody else spares the node already, and keeps the say over it.
            (true, _, true) | (false, false, _) => continue,
            (true, _, false) => true,
            (false, true, _) => false,
        };
        plan.actions.push(Action::Spare { node: facts.name.clone(), spare });
    }
}

fn evictions(world: &World, pool: &Pool, known: &Known, plan: &mut Plan) {
    for (&job, holding) in pool.nodes().values().flat_map(|node| &node.holdings) {
        let pod = known.ids.pod(job).and_then(|who| world.pods.get(&who.uid));
        if let Some(pod) =
            pod.filter(|pod| holding.evicting && !pod.deleting && pod.ended.is_none())
        {
            plan.actions.push(Action::Evict { pod: pod.who.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
