//! Small builders of ledgers and pods.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::{self, Store, store::Writer};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sluice::api::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, GpuStatus, NodePhase, Reservation, ReservationKind,
    ReservationState,
};
use sluice::clock::{Clock, to_timestamp};
use sluice::policy::Millis;

/// The time at which the tests begin.
pub const START: Millis = Millis(1_796_000_000_000);

/// A time some seconds after the start.
pub fn at(seconds: u64) -> Time {
    Time(to_timestamp(START + Millis::from_secs(seconds)))
}

/// A clock that stands at the start.
pub fn clock() -> Clock {
    Clock::manual(START)
}

/// A ledger of eight healthy GPUs, all free.
pub fn ledger(node: &str) -> GpuNode {
    let spec = GpuNodeSpec { pool: "default".to_owned(), node_uid: format!("uid-of-{node}") };
    let gpus = (0..8).map(|index| GpuStatus { index, id: gpu(index), ..GpuStatus::default() });
    let mut ledger = GpuNode::new(node, spec);
    ledger.status = Some(GpuNodeStatus {
        revision: 1,
        phase: NodePhase::Open,
        gpus: gpus.collect(),
        ..GpuNodeStatus::default()
    });
    ledger
}

/// The node that such a ledger is of.
pub fn node(name: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.metadata.uid = Some(format!("uid-of-{name}"));
    node
}

/// A store that shows nodes `n1` to `n3`, and what writes it.
pub fn nodes() -> (Store<Node>, Writer<Node>) {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for name in ["n1", "n2", "n3"] {
        writer.apply_watcher_event(&Event::InitApply(node(name)));
    }
    writer.apply_watcher_event(&Event::InitDone);
    (store, writer)
}

/// The id of a GPU.
pub fn gpu(index: i32) -> String {
    format!("gpu-{index}")
}

/// A reservation of one GPU, to be used within ten seconds of the start.
pub fn small(uid: &str, index: i32) -> Reservation {
    Reservation {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("pod-{uid}"),
        shape: Some("small".to_owned()),
        kind: ReservationKind::Direct,
        state: ReservationState::Reserved,
        gpus: vec![gpu(index)],
        since: at(0),
        deadline: Some(at(10)),
        latest_end: None,
        sequence: Some(1),
        bound_at: None,
    }
}

/// A reservation of every GPU.
pub fn large(uid: &str) -> Reservation {
    Reservation {
        shape: Some("whole-node-large".to_owned()),
        gpus: (0..8).map(gpu).collect(),
        ..small(uid, 0)
    }
}

/// A ledger with these reservations.
pub fn with(mut ledger: GpuNode, reservations: Vec<Reservation>) -> GpuNode {
    ledger.status.as_mut().expect("a status").reservations = reservations;
    ledger
}

/// Where a ledger is.
pub fn ledger_path(node: &str) -> String {
    format!("/apis/sluice.dev/v1alpha1/gpunodes/{node}")
}

/// Where the pod of a UID is.
pub fn pod_path(uid: &str) -> String {
    format!("/api/v1/namespaces/team/pods/pod-{uid}")
}

/// The pod of a UID.
pub fn pod(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{uid}"), "namespace": "team", "uid": uid},
        "spec": {"containers": [{"name": "main"}]},
    })
}
