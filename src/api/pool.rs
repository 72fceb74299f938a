//! Cluster side: `GpuPool`, nodes that share queues and a policy.

#![allow(unreachable_pub, reason = "KubeSchema makes a copy of the spec that nobody can reach")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::options::{self, Backfill, Preset};
use super::{Counters, PodRef};

/// Nodes that share two queues and one policy.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "GpuPool",
    plural = "gpupools",
    singular = "gpupool",
    shortname = "gpool",
    category = "sluice",
    status = "GpuPoolStatus",
    derive = "PartialEq",
    doc = "Nodes that share two queues, one of smalls and one of whole-node larges, and one policy.",
    validation = Rule::new("self.metadata.name.size() <= 63").message(
        "the name of a pool is a label's value on its pods: at most 63 characters"
    ),
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phases"}"#,
    printcolumn = r#"{"name":"Free","type":"string","jsonPath":".status.freeOfTotal"}"#,
    printcolumn = r#"{"name":"Smalls","type":"integer","jsonPath":".status.small.queue.depth"}"#,
    printcolumn = r#"{"name":"Larges","type":"integer","jsonPath":".status.wholeNodeLarge.queue.depth"}"#,
    printcolumn = r#"{"name":"Head","type":"string","jsonPath":".status.head"}"#,
    printcolumn = r#"{"name":"Waits","type":"date","jsonPath":".status.headSince"}"#,
    printcolumn = r#"{"name":"Drained-By","type":"string","jsonPath":".status.drainedBy"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = options::rules()))]
pub struct GpuPoolSpec {
    /// Labels that a node must carry to belong to the pool, for example
    /// `nvidia.com/gpu.present: "true"`. A node belongs to at most one pool; where two match, the
    /// one whose name comes first in the alphabet has it and the other says so.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Name of the extended resource that stands for one GPU.
    #[serde(default = "default_resource")]
    #[schemars(length(max = 253), regex(pattern = RESOURCE_PATTERN))]
    pub resource_name: String,
    /// GPUs of one node. A whole-node-large pod asks for exactly so many; a node that has another
    /// number takes smalls only.
    #[serde(default = "default_gpus_per_node")]
    #[schemars(range(min = 1, max = 64))]
    pub gpus_per_node: i32,
    /// The most smalls that one wave admits; by default `gpusPerNode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64), extend("x-kubernetes-validations" = [{
        "rule": "self >= 1",
        "message": "a wave of none would let the smalls starve: write 1 or more, or leave it out",
    }]))]
    pub wave_size: Option<i32>,
    /// `Plain` (the default) is the rule with none of the options below; `Balanced` sets
    /// `backfill: WithinDrain` and a turn of four times the longest that a large may hold a node
    /// (its maxSeconds, the usual grace period and Sluice's own share). An option that is set
    /// beside it counts.
    #[serde(default)]
    pub preset: Preset,
    /// Whether smalls start behind a closed gate: `Never`, or `WithinDrain`, which admits one if
    /// its enforced limit ends no later than the drain or the wave does anyway, so that the large
    /// does not wait longer for it. Fewer GPUs idle. A small waits up to one small's limit longer
    /// than without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "options::backfill_schema")]
    pub backfill: Option<Backfill>,
    /// For how many seconds larges may follow one another on a node without a wave between them.
    /// The next one follows if its enforced limit ends within that time. 0 is one large, then a
    /// wave. Fewer drains; the small at place p of its queue may wait that much longer for each
    /// wave's worth of places: at most ceil(p / waveSize) * (turn + 2 * the smalls' limit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub turn_seconds: Option<i64>,
    /// While one node is in a wave or drains, larges follow one another on the others without a
    /// wave. For pools of two or three nodes, and where larges hold most of the GPU time. Bounds
    /// stay as they are; by default off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_wave_at_a_time: Option<bool>,
    /// How many nodes are kept open for smalls: a large neither takes nor drains the last ones.
    /// The larges' bound doubles, and with so many nodes or fewer no large ever starts, which the
    /// condition `Degraded` then says; by default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub keep_open: Option<i32>,
    /// How nodes are drained for a waiting large.
    #[serde(default)]
    pub drain: DrainSpec,
    /// Run-time limits per shape. They are what the waits that Sluice states rest on.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// The most GPUs that pods of one namespace may hold at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace"]))]
    pub quotas: Vec<QuotaSpec>,
    /// Admit nothing new. What runs goes on; queues grow.
    #[serde(default)]
    pub paused: bool,
}

/// A domain, a slash, a name: resources without a domain are Kubernetes' own.
const RESOURCE_PATTERN: &str =
    "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

fn default_resource() -> String {
    super::names::DEFAULT_RESOURCE.to_owned()
}

fn default_gpus_per_node() -> i32 {
    8
}

/// How nodes are drained for a waiting large.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.onTimeLimit != 'Evict' || has(self.timeLimitSeconds)",
    "message": "onTimeLimit: Evict needs timeLimitSeconds: say after how long a drain may evict, \
                or write Wait",
    "fieldPath": ".timeLimitSeconds",
}]))]
pub struct DrainSpec {
    /// How many nodes may drain at once. One idles the fewest GPUs.
    #[schemars(range(min = 1, max = 1000), extend("x-kubernetes-validations" = [{
        "rule": "self >= 1",
        "message": "with no drain at a time a large may wait for ever: write 1 or more",
    }]))]
    pub max_concurrent: i32,
    /// After how many seconds a drain is overdue. By default when the last limit of its smalls has
    /// passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub time_limit_seconds: Option<i64>,
    /// What happens to a drain that is overdue.
    pub on_time_limit: OnTimeLimit,
}

impl Default for DrainSpec {
    fn default() -> Self {
        Self { max_concurrent: 1, time_limit_seconds: None, on_time_limit: OnTimeLimit::Wait }
    }
}

/// What happens to a drain that is overdue.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeLimit {
    /// The gate stays closed and the status names the pods that hold it up.
    #[default]
    Wait,
    /// The pods that hold it up are evicted (through the eviction API, so disruption budgets count).
    Evict,
}

/// Run-time limits of both shapes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitsSpec {
    /// Limits of smalls.
    pub small: ShapeLimit,
    /// Limits of whole-node larges.
    pub whole_node_large: ShapeLimit,
}

/// Run-time limits of one shape, in seconds of `activeDeadlineSeconds`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.defaultSeconds) || !has(self.maxSeconds) \
             || self.defaultSeconds <= self.maxSeconds",
    "message": "defaultSeconds must not exceed maxSeconds",
    "fieldPath": ".defaultSeconds",
}]))]
pub struct ShapeLimit {
    /// Given to a pod that sets no `activeDeadlineSeconds`; by default `maxSeconds`. Without
    /// either, such a pod runs without a limit, and no wait behind it can be bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub default_seconds: Option<i64>,
    /// A pod that asks for more is refused. What runs already is not touched by a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_seconds: Option<i64>,
}

/// The most GPUs that pods of one namespace may hold at a time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct QuotaSpec {
    /// The namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// The most GPUs that its pods may hold in this pool at a time.
    #[schemars(range(min = 0))]
    pub max_gpus: i32,
}

/// What the pool is doing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuPoolStatus {
    /// Generation of the spec that this status follows.
    pub observed_generation: i64,
    /// Nodes per phase, as `Open 3, Draining 1`.
    pub phases: String,
    /// Free GPUs of all GPUs, as `3/8`. Free means healthy and neither reserved nor held.
    pub free_of_total: String,
    /// The pod that is served next, as `namespace/name`: the first large while one waits, else the
    /// first small.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// When that pod was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_since: Option<Time>,
    /// When the node that drains for the first large is drained at the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained_by: Option<Time>,
    /// Smalls: queue, running, counters.
    pub small: ShapeStatus,
    /// Whole-node larges: queue, running, counters.
    pub whole_node_large: ShapeStatus,
    /// The part of the counters that no node's ledger holds: of nodes that are gone, and of pods
    /// deleted while they waited.
    pub elsewhere: Counters,
    /// GPUs of all nodes of the pool.
    pub gpus: GpuTotals,
    /// Nodes of the pool, by phase.
    pub nodes: NodeTotals,
    /// `Ready`, `DrainBounded`, `Degraded`, `Bypassed`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// One shape's queue, running pods and counters.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ShapeStatus {
    /// The pods that wait.
    pub queue: ShapeQueue,
    /// Pods that hold reserved GPUs and have not started yet.
    pub admitted: i32,
    /// Pods that run.
    pub running: i32,
    /// Pods that are gone from the API server while their containers may still run: their GPUs are
    /// held until the node says that nothing is left.
    pub releasing: i32,
    /// How many pods were admitted since the pool exists, and how they ended.
    pub counters: ShapeCounters,
}

/// The pods of one shape that wait.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ShapeQueue {
    /// How many wait.
    pub depth: i32,
    /// The first in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<PodRef>,
    /// When the one that waits longest was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Time>,
}

/// Pods of one shape admitted, and how they ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ShapeCounters {
    /// GPUs were reserved.
    pub admitted: i64,
    /// Ended by themselves with success.
    pub completed: i64,
    /// Ended with failure: exit code, deadline, eviction, refused by kubelet.
    pub failed: i64,
    /// Deleted, while waiting or while holding GPUs.
    pub cancelled: i64,
}

/// GPUs of a pool.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuTotals {
    /// All.
    pub capacity: i32,
    /// Of these, healthy.
    pub healthy: i32,
    /// Healthy and neither reserved nor held.
    pub free: i32,
    /// Promised to a pod that is not bound yet.
    pub reserved: i32,
    /// Held by pods that Sluice admitted, those included that are being released.
    pub held: i32,
    /// Held by pods that did not go through Sluice.
    pub foreign: i32,
}

/// Nodes of a pool, by phase.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeTotals {
    /// All.
    pub total: i32,
    /// In phase `Open`.
    pub open: i32,
    /// In phase `Draining`.
    pub draining: i32,
    /// In phase `Exclusive`.
    pub exclusive: i32,
    /// In phase `Wave`.
    pub wave: i32,
    /// Not candidates for new work: cordoned, not ready, or gone bad. What runs there counts.
    pub unschedulable: i32,
}
