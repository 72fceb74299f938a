//! Cluster side: `GpuNode`, the ledger of one node.
//!
//! One writer per field: `gpus`, `agentSeen` and `released` belong to the node agent (on a node
//! without one, to the controller); everything else belongs to the controller and its extender,
//! who write it under the object's `resourceVersion` only.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The ledger of one node: who holds which GPU, and what the node is doing.
///
/// Sluice creates one for each node of a pool, under the node's name. It is a record to read, not
/// a form to fill in: the spec is written by the controller, the status by the controller and the
/// node agent.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "GpuNode",
    plural = "gpunodes",
    singular = "gpunode",
    shortname = "gnode",
    category = "sluice",
    status = "GpuNodeStatus",
    derive = "PartialEq",
    doc = "The ledger of one node: who holds which GPU, and what the node is doing.",
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.pool"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Since","type":"date","jsonPath":".status.phaseSince"}"#,
    printcolumn = r#"{"name":"Free","type":"string","jsonPath":".status.freeOfTotal"}"#,
    printcolumn = r#"{"name":"For","type":"string","jsonPath":".status.drain.pod.name"}"#,
    printcolumn = r#"{"name":"Drained-By","type":"string","jsonPath":".status.drain.latestEnd"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".status.conditions[?(@.type=='AgentReady')].status","priority":1}"#,
    printcolumn = r#"{"name":"Releasing","type":"integer","jsonPath":".status.releasingGpus","priority":1}"#,
    printcolumn = r#"{"name":"Foreign","type":"integer","jsonPath":".status.foreignGpus","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// Name of the `GpuPool` that this node belongs to.
    pub pool: String,
    /// UID of the Node object. A node that is deleted and created again under the same name has
    /// another UID, and starts with an empty ledger.
    pub node_uid: String,
}

/// What one node holds and does.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeStatus {
    /// Counts the controller's and the extender's writes, so that a writer who worked from an
    /// older ledger is noticed. The node agent's writes do not count.
    pub revision: i64,
    /// What the node is doing: `Open`, `Draining`, `Exclusive` or `Wave`.
    pub phase: NodePhase,
    /// Since when the node is in this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Time>,
    /// Free GPUs of all GPUs, as `3/8`. Free means healthy and neither reserved nor held.
    pub free_of_total: String,
    /// Ids of the free GPUs.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub free: Vec<String>,
    /// GPUs held by pods that did not go through Sluice.
    pub foreign_gpus: i32,
    /// GPUs held for pods that are gone from the API server and whose containers may still run.
    pub releasing_gpus: i32,
    /// The large that the gate is closed for, and what it waits for. Set while the phase is
    /// `Draining`, and while a wave runs with a large behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// The larges' turn: larges that follow one another without a wave between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnStatus>,
    /// When a gate last opened here without its large while smalls ran that had been admitted
    /// behind it (backfill). No small that waited then is passed by another any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up: Option<Time>,
    /// The bounded wave of smalls. Set while the phase is `Wave`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave: Option<WaveStatus>,
    /// Who holds or is promised GPUs of this node, foreign pods included.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub reservations: Vec<Reservation>,
    /// UIDs of pods that are gone from the API server and whose containers the node agent is
    /// asked to look for. The GPUs stay held until the agent lists the UID under `released`.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub releasing: Vec<String>,
    /// How many pods were admitted to this node, and how they ended.
    pub counters: Counters,
    /// Every GPU of the node, as the node agent sees it.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub gpus: Vec<GpuStatus>,
    /// When the node agent last started to watch this node. Absent on a node without an agent:
    /// there the controller counts GPUs by `status.allocatable` and holders by the pods bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_seen: Option<Time>,
    /// The node agent's answer to `releasing`: of these pods no container is left on the node.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub released: Vec<String>,
    /// `Ready`, `DrainOverdue`, `Degraded`, `Bypassed`, and on a node with an agent `AgentReady`:
    /// whether its pod is ready and it answers about the pods under `releasing`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a node is doing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodePhase {
    /// Smalls are admitted as GPUs come free.
    #[default]
    Open,
    /// The gate is closed for a waiting large: what runs finishes, nothing is admitted.
    Draining,
    /// A large holds every GPU.
    Exclusive,
    /// One bounded wave of smalls runs after a large; the gate is closed behind it.
    Wave,
}

/// A pod, named so that a person finds it and a program cannot mistake it.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// Why and for whom the gate is closed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The large that the node is drained for.
    pub pod: PodRef,
    /// When the gate closed.
    pub since: Time,
    /// When the last holder ends at the latest. Absent if a holder has no enforced limit: then the
    /// drain has no bound, and condition `DrainBounded` of the pool says because of whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_end: Option<Time>,
    /// The pods that still hold GPUs.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocked_by: Vec<PodRef>,
}

/// Larges that follow one another on this node without a wave between them.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TurnStatus {
    /// When the first large of the turn was admitted.
    pub since: Time,
    /// When the turn ends at the latest, where the pool bounds it by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Larges that failed at once in this turn, which do not end it.
    pub early_failures: i32,
}

/// A bounded wave of smalls.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WaveStatus {
    /// Smalls admitted in this wave.
    pub admitted: i32,
    /// The most that the wave may admit.
    pub size: i32,
    /// When the wave started.
    pub since: Time,
    /// When the last small of the wave ends at the latest, if each has an enforced limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_end: Option<Time>,
}

/// GPUs promised to one pod, or held by it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// `small`, `wide-small` or `whole-node-large`; absent for a foreign pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// How the pod came by its GPUs.
    pub kind: ReservationKind,
    /// How far the pod has come: reserved by Sluice, bound by the API server, started by kubelet.
    pub state: ReservationState,
    /// The GPUs, by id.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub gpus: Vec<String>,
    /// Since when they are reserved or held.
    pub since: Time,
    /// When a reservation that has not become a binding is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When the GPUs come free at the latest. Absent if nothing enforces an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_end: Option<Time>,
    /// The recorded arrival sequence number of the pod, absent for a foreign pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
    /// When an extender posted the pod's binding, or found it posted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_at: Option<Time>,
}

/// How a pod came by its GPUs.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationKind {
    /// Admitted on an open node, or a large on an empty one.
    Direct,
    /// Admitted as part of a bounded wave.
    Wave,
    /// Admitted behind a closed gate, to end before the drain does.
    Backfill,
    /// Did not go through Sluice.
    Foreign,
}

/// How far a pod with GPUs has come. These are three different facts.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum ReservationState {
    /// Written to the ledger; nothing has started.
    Reserved,
    /// Bound to the node in the API server.
    Bound,
    /// Started by kubelet.
    Running,
    /// Gone from the API server; its containers may still live on the node.
    Releasing,
}

/// Pods admitted, and how they ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Counters {
    /// Smalls.
    pub small: super::ShapeCounters,
    /// Whole-node larges.
    pub whole_node_large: super::ShapeCounters,
}

/// One GPU.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Index on the node, from 0.
    pub index: i32,
    /// The GPU's UUID: the id by which it is reserved, and by which kubelet knows it.
    pub id: String,
    /// NUMA node that the GPU is attached to, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
    /// Whether work may be placed on it.
    pub health: GpuHealth,
    /// Why it is unhealthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The pod whose containers hold it on the node, as kubelet says; kept until those containers
    /// are gone from the node, which is later than kubelet's word for a pod deleted by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<PodRef>,
}

/// Whether work may be placed on a GPU.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuHealth {
    /// It may.
    #[default]
    Healthy,
    /// It may not.
    Unhealthy,
}
