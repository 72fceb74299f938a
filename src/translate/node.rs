//! Pure: what matters of a node, and what the policy is told of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::serde_json::{Value, json};

use super::pod::count;
use crate::api::{GpuHealth, GpuNodeStatus, GpuStatus, names};
use crate::policy::{GpuSet, NodeSpec};

/// What matters of one node.
#[expect(clippy::struct_excessive_bools, reason = "independent facts of the object")]
#[derive(Clone, PartialEq, Debug)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its UID: a node that is created again under the same name is another node.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the cluster autoscaler is asked to spare it.
    pub no_scale_down: bool,
    /// Whether it was Sluice that asked.
    pub spared_by_us: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Whether kubelet says that it is ready.
    pub ready: bool,
    /// `status.capacity` of extended resources.
    pub capacity: BTreeMap<String, u32>,
    /// `status.allocatable` of extended resources.
    pub allocatable: BTreeMap<String, u32>,
}

impl NodeFacts {
    /// Reads a node.
    pub fn read(node: &Node) -> Self {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let quantities = |all: Option<&BTreeMap<String, _>>| {
            let all = all.into_iter().flatten();
            all.filter(|(name, _)| name.contains('/'))
                .map(|(name, quantity): (&String, &Quantity)| (name.clone(), count(&quantity.0)))
                .collect()
        };
        let annotations = meta.annotations.as_ref();
        let is_set = |name: &str| {
            annotations.and_then(|all| all.get(name)).is_some_and(|value| value == "true")
        };
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            no_scale_down: is_set(names::ANNOTATION_NO_SCALE_DOWN),
            spared_by_us: is_set(names::ANNOTATION_SPARED),
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            cordoned: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
            capacity: quantities(status.and_then(|s| s.capacity.as_ref())),
            allocatable: quantities(status.and_then(|s| s.allocatable.as_ref())),
        }
    }

    /// Whether it carries all of these labels.
    pub fn matches(&self, selector: &BTreeMap<String, String>) -> bool {
        selector.iter().all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// Whether new work may be placed on it, as far as the node itself says.
    pub fn takes_work(&self) -> bool {
        self.ready && !self.cordoned
    }

    /// GPUs that it has, as kubelet counts them.
    pub fn gpu_capacity(&self, resource: &str) -> u32 {
        let of = |all: &BTreeMap<String, u32>| all.get(resource).copied().unwrap_or_default();
        of(&self.capacity).max(of(&self.allocatable))
    }

    /// GPUs that kubelet would give out, those that are given included.
    pub fn gpu_allocatable(&self, resource: &str) -> u32 {
        self.allocatable.get(resource).copied().unwrap_or_default()
    }
}

/// What the policy is told of a node. GPUs are those that the node's agent reports; on a node
/// without one, as many as kubelet counts, of which it may hold some back as unhealthy.
///
/// While kubelet gives out none (its device plugin is away), nothing new is placed, whatever the
/// agent says.
pub fn spec(node: &NodeFacts, ledger: Option<&GpuNodeStatus>, resource: &str) -> NodeSpec {
    let allocatable = node.gpu_allocatable(resource);
    let schedulable = node.takes_work() && allocatable > 0;
    match ledger.filter(|status| status.agent_seen.is_some()) {
        Some(status) => NodeSpec {
            gpus: status.gpus.iter().filter_map(index).collect(),
            healthy: status
                .gpus
                .iter()
                .filter(|gpu| gpu.health == GpuHealth::Healthy && !held_by_a_stranger(gpu, status))
                .filter_map(index)
                .collect(),
            schedulable,
        },
        None => NodeSpec {
            gpus: GpuSet::first(node.gpu_capacity(resource)),
            healthy: GpuSet::first(allocatable),
            schedulable,
        },
    }
}

/// Whether a GPU that the ledger has free is held by a pod whose UID the agent does not know yet.
/// Such a holder is nobody who could be counted or released, so until it has a name nothing is
/// placed on its GPU.
fn held_by_a_stranger(gpu: &GpuStatus, status: &GpuNodeStatus) -> bool {
    let nameless = gpu.holder.as_ref().is_some_and(|who| who.uid.is_empty());
    nameless && !status.reservations.iter().any(|reservation| reservation.gpus.contains(&gpu.id))
}

/// A merge patch of a node that asks a cluster autoscaler to spare it, or no longer.
pub fn spare_patch(spare: bool) -> Value {
    let value = if spare { Value::from("true") } else { Value::Null };
    json!({"metadata": {"annotations": {
        names::ANNOTATION_NO_SCALE_DOWN: value,
        names::ANNOTATION_SPARED: value,
    }}})
}

/// The index of a GPU, if a node can have it.
pub fn index(gpu: &GpuStatus) -> Option<u32> {
    u32::try_from(gpu.index).ok().filter(|&index| index < GpuSet::MAX)
}

/// The id of a GPU on a node whose agent does not name its GPUs.
pub fn plain_id(index: u32) -> String {
    format!("gpu-{index}")
}

/// The index behind such an id.
pub fn plain_index(id: &str) -> Option<u32> {
    id.strip_prefix("gpu-")?.parse().ok().filter(|&index| index < GpuSet::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use k8s_openapi::serde_json::from_value;

    use super::*;

    /// A ready node in zone `a` with sixteen cores and eight GPUs, changed by `patch`.
    pub(crate) fn node(name: &str, patch: Value) -> NodeFacts {
        let mut object = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"),
                         "labels": {"zone": "a", "cores": "16"}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "capacity": {"nvidia.com/gpu": "8", "cpu": "16"},
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "16"}},
        });
        merge(&mut object, patch);
        NodeFacts::read(&from_value(object).unwrap())
    }

    /// Merges as a JSON merge patch does.
    pub(crate) fn merge(base: &mut Value, patch: Value) {
        match (base, patch) {
            (Value::Object(base), Value::Object(patch)) => {
                for (key, value) in patch {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
            (base, patch) => *base = patch,
        }
    }

    fn agent(gpus: &[(i32, GpuHealth)]) -> GpuNodeStatus {
        let gpu = |&(index, health): &(i32, GpuHealth)| GpuStatus {
            index,
            id: format!("GPU-{index}"),
            health,
            ..GpuStatus::default()
        };
        GpuNodeStatus {
            agent_seen: Some(Time(Timestamp::UNIX_EPOCH)),
            gpus: gpus.iter().map(gpu).collect(),
            ..GpuNodeStatus::default()
        }
    }

    #[test]
    fn gpus_come_from_the_agent_or_else_from_kubelet() {
        let gpu = "nvidia.com/gpu";
        let plain = node("n", json!({}));
        let less = node("n", json!({"status": {"allocatable": {"nvidia.com/gpu": "7"}}}));
        let none = node("n", json!({"status": {"allocatable": {"nvidia.com/gpu": "0"}}}));
        let cordoned = node("n", json!({"spec": {"unschedulable": true}}));
        let away =
            node("n", json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
        let two = agent(&[(0, GpuHealth::Healthy), (1, GpuHealth::Unhealthy)]);
        let spec_of = |gpus, healthy, schedulable| NodeSpec { gpus, healthy, schedulable };
        let eight = GpuSet::first(8);
        let cases = [
            ("kubelet", &plain, None, spec_of(eight, eight, true)),
            ("one held back", &less, None, spec_of(eight, GpuSet::first(7), true)),
            ("plugin away", &none, None, spec_of(eight, GpuSet::EMPTY, false)),
            ("cordoned", &cordoned, None, spec_of(eight, eight, false)),
            ("not ready", &away, None, spec_of(eight, eight, false)),
            ("agent", &plain, Some(&two), spec_of(GpuSet::first(2), GpuSet::single(0), true)),
            ("no agent yet", &plain, Some(&GpuNodeStatus::default()), spec_of(eight, eight, true)),
        ];
        for (name, node, ledger, expected) in cases {
            assert_eq!(spec(node, ledger, gpu), expected, "{name}");
        }
    }

    #[test]
    fn an_index_no_node_can_have_is_ignored() {
        let wild = agent(&[(-1, GpuHealth::Healthy), (64, GpuHealth::Healthy)]);
        let read = spec(&node("n", json!({})), Some(&wild), "nvidia.com/gpu");
        assert_eq!(read.gpus, GpuSet::EMPTY);
        assert_eq!(plain_index(&plain_id(7)), Some(7));
        assert_eq!(plain_index("gpu-64"), None);
        assert_eq!(plain_index("GPU-1"), None);
    }
}
