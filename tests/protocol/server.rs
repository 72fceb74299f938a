//! The API server of the model: objects with resource versions, and nothing of what is decided.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, from_value, json};
use sluice::api::{GpuNode, GpuNodeSpec, GpuNodeStatus, PodRef};
use sluice::policy::Millis;
use sluice::translate::{NodeFacts, PodFacts};

/// When the model begins.
pub(crate) const START: Millis = Millis(1_800_000_000_000);

/// GPUs of each node.
pub(crate) const GPUS: u32 = 2;

/// What stands for a GPU.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// What a watch of pods says.
#[derive(Clone)]
pub(crate) enum PodEvent {
    /// A pod is like this now.
    Is(Arc<PodFacts>),
    /// A pod's object is gone; it was like this last.
    Gone(Arc<PodFacts>),
}

/// What the API server holds.
#[derive(Clone)]
pub(crate) struct Server {
    /// Grows with each write, as etcd's revision does.
    revision: u64,
    /// By node.
    pub(crate) ledgers: BTreeMap<String, Arc<GpuNode>>,
    /// By UID; no two have the same name.
    pub(crate) pods: BTreeMap<String, Arc<PodFacts>>,
}

impl Server {
    /// Nodes with empty ledgers, and no pods.
    pub(crate) fn new(nodes: &[String]) -> Self {
        let ledger = |name: &String| {
            let spec = GpuNodeSpec { pool: "default".to_owned(), node_uid: format!("uid-{name}") };
            let mut ledger = GpuNode::new(name, spec);
            ledger.metadata.uid = Some(format!("ledger-{name}"));
            ledger.metadata.resource_version = Some("1".to_owned());
            ledger.status = Some(GpuNodeStatus::default());
            (name.clone(), Arc::new(ledger))
        };
        Self { revision: 1, ledgers: nodes.iter().map(ledger).collect(), pods: BTreeMap::new() }
    }

    fn next(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// Writes a ledger if it is still the one that the write was made from.
    pub(crate) fn write_ledger(&mut self, ledger: &GpuNode) -> Option<Arc<GpuNode>> {
        let node = ledger.metadata.name.as_deref()?;
        let known = self.ledgers.get(node)?;
        if known.metadata.resource_version != ledger.metadata.resource_version {
            return None;
        }
        let mut written = ledger.clone();
        written.metadata.resource_version = Some(self.next().to_string());
        let written = Arc::new(written);
        self.ledgers.insert(node.to_owned(), Arc::clone(&written));
        Some(written)
    }

    /// The pod that has this name now.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<PodFacts>> {
        self.pods.values().find(|pod| pod.who.name == name)
    }

    /// Changes a pod, if it is there: the one of this name and UID.
    pub(crate) fn write_pod(
        &mut self,
        who: &PodRef,
        change: impl FnOnce(&mut PodFacts),
    ) -> Option<Arc<PodFacts>> {
        let known = self.pods.get(&who.uid).filter(|pod| pod.who == *who)?;
        let mut pod = PodFacts::clone(known);
        change(&mut pod);
        pod.version = self.next();
        let pod = Arc::new(pod);
        self.pods.insert(who.uid.clone(), Arc::clone(&pod));
        Some(pod)
    }

    /// A pod appears.
    pub(crate) fn create(&mut self, mut pod: PodFacts) -> Arc<PodFacts> {
        pod.version = self.next();
        let pod = Arc::new(pod);
        self.pods.insert(pod.who.uid.clone(), Arc::clone(&pod));
        pod
    }

    /// A pod's object goes.
    pub(crate) fn remove(&mut self, uid: &str) -> Option<Arc<PodFacts>> {
        let mut last = PodFacts::clone(self.pods.remove(uid)?.as_ref());
        last.version = self.next();
        Some(Arc::new(last))
    }
}

/// A pod that a user creates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) large: bool,
    /// The pod whose name it takes over, and which must be gone first.
    pub(crate) after: Option<String>,
}

/// A gated pod as its user made it, with its number where that is recorded already.
pub(crate) fn pod(wanted: &Wanted, number: Option<u64>) -> PodFacts {
    let (shape, gpus) = if wanted.large { ("whole-node-large", GPUS) } else { ("small", 1) };
    let mut object: Value = json!({
        "metadata": {
            "name": wanted.name, "namespace": "team", "uid": wanted.uid,
            "creationTimestamp": "2027-01-15T08:00:00Z",
            "labels": {"sluice.dev/shape": shape}},
        "spec": {
            "schedulerName": "sluice",
            "schedulingGates": [{"name": "sluice.dev/admission"}],
            "containers": [
                {"name": "main", "resources": {"limits": {RESOURCE: gpus.to_string()}}}]},
        "status": {"phase": "Pending"},
    });
    if let Some(number) = number {
        object["metadata"]["annotations"] = json!({"sluice.dev/sequence": number.to_string()});
    }
    let pod: Pod = from_value(object).unwrap();
    PodFacts::read(&pod)
}

/// A ready node.
pub(crate) fn node(name: &str) -> NodeFacts {
    let gpus = json!({RESOURCE: GPUS.to_string()});
    let object: Value = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "status": {
            "capacity": gpus, "allocatable": gpus,
            "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let node: Node = from_value(object).unwrap();
    NodeFacts::read(&node)
}
