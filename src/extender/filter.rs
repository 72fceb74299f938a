//! Cluster side, without calls: on which of the offered nodes a pod may start.
//!
//! Only where the ledger holds GPUs for its UID. Everything is answered from memory; a reservation
//! that has been taken back since is noticed by the conditional write of `bind`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::wire::{FilterArgs, FilterResult, NodeList, Pod, name_of};
use crate::api::names::SHAPE_LARGE;
use crate::api::{GpuNode, NodePhase, Reservation, ReservationKind, ReservationState};
use crate::clock::to_millis;
use crate::policy::Millis;

/// The ledgers as this replica has them.
pub trait Ledgers {
    /// The ledger of a node.
    fn get(&self, node: &str) -> Option<Arc<GpuNode>>;
    /// Every ledger.
    fn all(&self) -> Vec<Arc<GpuNode>>;
    /// The UID of the node that has this name now.
    fn node_uid(&self, node: &str) -> Option<String>;
}

/// How long before its end a reservation is no longer claimed: longer than a write and the
/// difference of two clocks, so that a claim seldom meets the controller's taking back. Where it
/// does, the controller finds a binding that it had given up and reads everything anew.
pub const CLAIM_MARGIN: Millis = Millis::from_secs(3);

/// Where a pod's GPUs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// Reserved on this node, and still to be had.
    On(String),
    /// Were reserved on this node until this time.
    Expired(String, Time),
    /// Held on this node by what is left of the pod.
    Releasing(String),
    /// Reserved on an earlier node of this name.
    Replaced(String),
    /// Nowhere.
    Nowhere,
}

/// Finds a pod's GPUs.
pub fn home(ledgers: &impl Ledgers, uid: &str, now: Millis) -> Home {
    let mut found = Home::Nowhere;
    for ledger in ledgers.all() {
        let Some((name, reservation)) = ledger.metadata.name.clone().zip(find(&ledger, uid)) else {
            continue;
        };
        if !is_current(ledgers, &ledger) {
            found = Home::Replaced(name);
            continue;
        }
        match standing(&ledger, reservation, now) {
            // What can be used goes before what cannot.
            Standing::Promised | Standing::Claimed => return Home::On(name),
            Standing::Expired(at) => found = Home::Expired(name, at),
            Standing::Releasing => found = Home::Releasing(name),
            Standing::Foreign => {}
        }
    }
    found
}

/// Whether a ledger is that of the node which has its name now. A node that is deleted and created
/// again has other GPUs, and nothing on it is reserved. Memory may trail by a moment: a pod that is
/// bound in that moment is found on the new node, and counted there as one that went round Sluice.
pub fn is_current(ledgers: &impl Ledgers, ledger: &GpuNode) -> bool {
    let name = ledger.metadata.name.as_deref().unwrap_or_default();
    ledgers.node_uid(name).as_ref() == Some(&ledger.spec.node_uid)
}

/// What a reservation is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The pod may be bound.
    Promised,
    /// The pod is bound, or somebody is about to bind it.
    Claimed,
    /// It was not bound in time.
    Expired(Time),
    /// The pod is gone, its containers may not be.
    Releasing,
    /// Not ours to give.
    Foreign,
}

/// The reservation of a pod in a ledger.
pub fn find<'a>(ledger: &'a GpuNode, uid: &str) -> Option<&'a Reservation> {
    ledger.status.as_ref()?.reservations.iter().find(|reservation| reservation.uid == uid)
}

/// What a reservation of this ledger is good for.
pub fn standing(ledger: &GpuNode, reservation: &Reservation, now: Millis) -> Standing {
    if reservation.kind == ReservationKind::Foreign {
        return Standing::Foreign;
    }
    let releasing = ledger.status.iter().flat_map(|status| &status.releasing);
    if releasing.into_iter().any(|uid| *uid == reservation.uid) {
        return Standing::Releasing;
    }
    match (reservation.state, &reservation.deadline) {
        (ReservationState::Releasing, _) => Standing::Releasing,
        (ReservationState::Bound | ReservationState::Running, _) => Standing::Claimed,
        (ReservationState::Reserved, Some(at)) if to_millis(at.0) <= now + CLAIM_MARGIN => {
            Standing::Expired(at.clone())
        }
        (ReservationState::Reserved, _) => Standing::Promised,
    }
}

/// Answers a request: a subset of what was offered, and a reason for each node left out.
pub fn answer(
    ledgers: &impl Ledgers,
    home: &Home,
    pod: &Pod,
    offered: &FilterArgs,
) -> FilterResult {
    let mut refused = BTreeMap::new();
    let mut passes = |node: &str| match refusal(ledgers, home, pod, node) {
        None => true,
        Some(reason) => {
            refused.insert(node.to_owned(), reason);
            false
        }
    };
    let nodes = offered.nodes.as_ref().map(|list| {
        let kept = list.iter().filter(|node| name_of(node).is_some_and(&mut passes));
        NodeList { items: Some(kept.cloned().collect()) }
    });
    let names = offered.node_names.iter().flatten().filter(|name| passes(name)).cloned().collect();
    FilterResult {
        node_names: (nodes.is_none() || offered.node_names.is_some()).then_some(names),
        nodes,
        failed_nodes: BTreeMap::new(),
        failed_and_unresolvable_nodes: refused,
        error: String::new(),
    }
}

/// Why a pod may not start on a node; nothing if it may.
///
/// kube-scheduler counts equal reasons together, so a reason names what differs between pods or
/// gates, and not the node that it is given for.
fn refusal(ledgers: &impl Ledgers, home: &Home, pod: &Pod, node: &str) -> Option<String> {
    let Some(ledger) = ledgers.get(node) else {
        return Some("node belongs to no GpuPool".to_owned());
    };
    if !is_current(ledgers, &ledger) {
        return Some("the node's ledger is that of an earlier node of its name".to_owned());
    }
    let reason = match home {
        Home::On(home) if home == node => return None,
        Home::On(home) => format!("GPUs are reserved for this pod on node {home}"),
        Home::Expired(home, at) => {
            format!("the reservation on node {home}, which ends at {}, was not used in time", at.0)
        }
        Home::Replaced(home) => {
            format!("GPUs were reserved for this pod on an earlier node of the name {home}")
        }
        Home::Releasing(home) => format!("the pod's GPUs on node {home} are being released"),
        Home::Nowhere => occupied(&ledger).unwrap_or_else(|| waits(pod)),
    };
    Some(reason)
}

/// Whether a pod has GPUs although no ledger shows them yet: a large is nominated to the node that
/// is emptied for it only while it is gated, and loses its gate only after the ledger has its
/// reservation. kube-scheduler asks for no gated pod, so a ledger that still shows the gate of the
/// node closed for it is an old one. The pod's condition may come later than that.
pub fn gate_has_gone(ledgers: &impl Ledgers, pod: &Pod) -> bool {
    let node = pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref());
    let ledger = node.and_then(|node| ledgers.get(node));
    let drain = ledger.as_ref().and_then(|ledger| ledger.status.as_ref()?.drain.as_ref());
    drain.is_some_and(|drain| drain.pod.uid == pod.metadata.uid)
}

/// Why a node takes nobody at all.
fn occupied(ledger: &GpuNode) -> Option<String> {
    let status = ledger.status.as_ref()?;
    match status.phase {
        NodePhase::Open => None,
        NodePhase::Exclusive => {
            let large = |holder: &&Reservation| holder.shape.as_deref() == Some(SHAPE_LARGE);
            let holder = status.reservations.iter().find(large)?;
            Some(format!("node is held whole by {}/{}", holder.namespace, holder.name))
        }
        NodePhase::Draining | NodePhase::Wave => {
            let drain = status.drain.as_ref()?;
            let held =
                format!("held behind the gate for {}/{}", drain.pod.namespace, drain.pod.name);
            let end = drain.latest_end.as_ref().filter(|_| status.phase == NodePhase::Draining);
            Some(match end {
                Some(end) => format!("{held}, drained by {} at the latest", end.0),
                None => held,
            })
        }
    }
}

/// Why a pod has no GPUs, in the controller's words where they have arrived.
fn waits(pod: &Pod) -> String {
    let told = pod.admitted().filter(|condition| condition.status == "False");
    match told.and_then(|condition| condition.message.as_deref()).map(str::trim) {
        Some(message) if !message.is_empty() => format!("not admitted: {message}"),
        Some(_) | None => "no GPUs are reserved for this pod".to_owned(),
    }
}
