//! Small worlds for tests: a pool, nodes, pods and ledgers from a few words each.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::serde_json::{Value, from_value, json};

use super::node::tests::{merge, node};
use super::{Known, PodFacts, World, diff, ledger, pool as settings};
use crate::api::{GpuNode, GpuNodeSpec, GpuNodeStatus, GpuPool};
use crate::policy::{Decision, JobId, Millis, NodeId, Pool};

/// When tests begin.
pub(crate) const START: Millis = Millis(1_800_000_000_000);

/// So many seconds after the start.
pub(crate) fn at(seconds: u64) -> Millis {
    START + Millis::from_secs(seconds)
}

/// The same as the API writes it.
pub(crate) fn stamp(seconds: u64) -> String {
    super::time::began(at(seconds)).0.to_string()
}

/// A gated pod that asks for `gpus` of shape `shape`, created at second `created`, changed by
/// `patch`. Its UID is its name.
pub(crate) fn pod(name: &str, shape: &str, created: u64, patch: Value) -> PodFacts {
    let gpus = if shape == "small" { "1" } else { "8" };
    let mut object = json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": name, "resourceVersion": "1",
            "creationTimestamp": stamp(created), "labels": {"sluice.dev/shape": shape}},
        "spec": {
            "schedulerName": "sluice",
            "schedulingGates": [{"name": "sluice.dev/admission"}],
            "activeDeadlineSeconds": 100,
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
        "status": {"phase": "Pending"},
    });
    merge(&mut object, patch);
    PodFacts::read(&from_value(object).unwrap())
}

/// A patch: bound to a node and, if `started` is given, running since then.
pub(crate) fn on(node: &str, started: Option<u64>) -> Value {
    let status = match started {
        Some(seconds) => json!({"phase": "Running", "startTime": stamp(seconds)}),
        None => json!({"phase": "Pending"}),
    };
    json!({"spec": {"nodeName": node, "schedulingGates": null}, "status": status})
}

/// A pool's object.
pub(crate) fn gpu_pool(spec: Value) -> GpuPool {
    let mut pool = GpuPool::new("default", from_value(spec).unwrap());
    pool.metadata.generation = Some(1);
    pool
}

/// A cluster with the controller's state of one pool in it: what is decided is written at once
/// where `settle` says so.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) pool: Pool,
    pub(crate) known: Known,
}

impl Scene {
    /// A pool of such nodes, each with its ledger.
    pub(crate) fn new(nodes: &[&str]) -> Self {
        Self::with(nodes, json!({}))
    }

    /// The same with a spec.
    pub(crate) fn with(nodes: &[&str], spec: Value) -> Self {
        let object = gpu_pool(spec);
        let mut known = Known::default();
        let config = settings::config(&object.spec, |name| known.ids.tenant(name)).unwrap();
        let mut world = World {
            now: START,
            name: "default".to_owned(),
            pool: Arc::new(object),
            config: config.clone(),
            pods: BTreeMap::new(),
            last_words: BTreeMap::new(),
            nodes: BTreeMap::new(),
            leaving: std::collections::BTreeSet::new(),
            ledgers: BTreeMap::new(),
            agents: BTreeMap::new(),
        };
        for name in nodes {
            let facts = node(name, json!({}));
            let spec = GpuNodeSpec { pool: "default".to_owned(), node_uid: facts.uid.clone() };
            let mut ledger = GpuNode::new(name, spec);
            ledger.metadata.uid = Some(format!("ledger-of-{name}"));
            ledger.status = Some(GpuNodeStatus::default());
            world.nodes.insert((*name).to_owned(), Arc::new(facts));
            world.ledgers.insert((*name).to_owned(), Arc::new(ledger));
        }
        let mut scene = Self { world, pool: Pool::new(config).unwrap(), known };
        scene.settle();
        scene
    }

    /// Puts a pod there, or changes it.
    pub(crate) fn put(&mut self, pod: PodFacts) {
        self.world.pods.insert(pod.who.uid.clone(), Arc::new(pod));
    }

    /// Removes a pod's object.
    pub(crate) fn remove(&mut self, name: &str) {
        self.world.pods.remove(name);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.world.now = self.world.now + Millis::from_secs(seconds);
    }

    /// The inputs that the world gives now.
    pub(crate) fn inputs(&mut self) -> Vec<crate::policy::Input> {
        self.known.learn(&self.world, &self.pool);
        diff(&self.world, &self.pool, &self.known)
    }

    /// One look and one step, without anything written.
    pub(crate) fn step(&mut self) -> Vec<Decision> {
        let inputs = self.inputs();
        self.known.note(&inputs, &self.world, &self.pool);
        let stepped = self.known.promises.step(&mut self.pool, &inputs, self.world.now);
        self.known.tidy(&self.world, &self.pool);
        stepped.decisions
    }

    /// Writes every ledger as it should be.
    pub(crate) fn write(&mut self) {
        for (name, object) in &mut self.world.ledgers.clone() {
            let id = self.known.ids.node(name, &object.spec.node_uid);
            let found = id.and_then(|id| Some((id, self.pool.nodes().get(&id)?)));
            let Some((id, node)) = found else { continue };
            let base = object.status.clone().unwrap_or_default();
            let mut status = ledger::render(id, node, &self.known, &self.world, &base);
            if status != base {
                status.revision += 1;
            }
            self.change_ledger(name, |old| *old = status);
        }
    }

    /// Steps and writes.
    pub(crate) fn settle(&mut self) -> Vec<Decision> {
        let decisions = self.step();
        self.write();
        decisions
    }

    /// Changes a ledger's status, as some writer would.
    pub(crate) fn change_ledger(&mut self, name: &str, change: impl FnOnce(&mut GpuNodeStatus)) {
        let mut object = GpuNode::clone(&self.world.ledgers[name]);
        change(object.status.get_or_insert_default());
        self.world.ledgers.insert(name.to_owned(), Arc::new(object));
    }

    /// A ledger's status.
    pub(crate) fn ledger(&self, name: &str) -> &GpuNodeStatus {
        self.world.ledgers[name].status.as_ref().unwrap()
    }

    /// The job that a pod is.
    pub(crate) fn job(&self, name: &str) -> JobId {
        self.known.ids.job(name).unwrap()
    }

    /// The number of a node.
    pub(crate) fn node(&self, name: &str) -> NodeId {
        self.known.ids.node(name, &format!("uid-{name}")).unwrap()
    }
}
