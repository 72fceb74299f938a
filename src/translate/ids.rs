//! Pure: names of Kubernetes objects and the numbers by which the policy knows them.
//!
//! A pod of ours is known by its arrival sequence number, which is recorded on the pod and in the
//! ledger and so outlives the controller. Nodes, tenants and foreign pods have numbers of this
//! process only; foreign ones lie in a range of their own.

use std::collections::BTreeMap;

use super::PodFacts;
use super::pod::SEQUENCE_END;
use crate::api::PodRef;
use crate::explain::Names;
use crate::policy::{JobId, NodeId, TenantId};

/// Numbers of foreign pods start here, far above every sequence number.
const FOREIGN_BEGIN: u64 = 1 << 62;

/// Names and numbers of one pool.
#[derive(Clone, Debug)]
pub struct Ids {
    next_sequence: u64,
    next_foreign: u64,
    jobs: BTreeMap<String, JobId>,
    foreign: BTreeMap<String, JobId>,
    pods: BTreeMap<JobId, PodRef>,
    nodes: BTreeMap<String, (NodeId, String)>,
    node_names: BTreeMap<NodeId, String>,
    next_node: u32,
    tenants: BTreeMap<String, TenantId>,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            next_sequence: 1,
            next_foreign: FOREIGN_BEGIN,
            jobs: BTreeMap::new(),
            foreign: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            node_names: BTreeMap::new(),
            next_node: 0,
            tenants: BTreeMap::new(),
        }
    }
}

impl Names for Ids {
    fn job(&self, job: JobId) -> Option<String> {
        self.pod(job).map(|who| format!("{}/{}", who.namespace, who.name))
    }

    fn node(&self, node: NodeId) -> Option<String> {
        self.node_name(node).map(str::to_owned)
    }

    fn tenant(&self, tenant: TenantId) -> Option<String> {
        self.tenant_name(tenant).map(str::to_owned)
    }
}

impl Ids {
    /// The job that a pod of ours is, if it has a number.
    pub fn job(&self, uid: &str) -> Option<JobId> {
        self.jobs.get(uid).copied()
    }

    /// The job that a foreign pod is, if it has a number.
    pub fn foreign(&self, uid: &str) -> Option<JobId> {
        self.foreign.get(uid).copied()
    }

    /// The pod behind a job.
    pub fn pod(&self, job: JobId) -> Option<&PodRef> {
        self.pods.get(&job)
    }

    /// The recorded sequence number of a job; foreign ones have none.
    pub fn sequence(job: JobId) -> Option<u64> {
        (job.0 < FOREIGN_BEGIN).then_some(job.0)
    }

    /// The node with this name and UID.
    pub fn node(&self, name: &str, uid: &str) -> Option<NodeId> {
        self.nodes.get(name).filter(|(_, known)| known == uid).map(|&(id, _)| id)
    }

    /// The name of a node.
    pub fn node_name(&self, id: NodeId) -> Option<&str> {
        self.node_names.get(&id).map(String::as_str)
    }

    /// The UID of a node.
    pub fn node_uid(&self, id: NodeId) -> Option<&str> {
        let (known, uid) = self.nodes.get(self.node_name(id)?)?;
        (*known == id).then_some(uid.as_str())
    }

    /// Gives a node its number. One that comes back with another UID gets a new number.
    pub fn learn_node(&mut self, name: &str, uid: &str) -> NodeId {
        if let Some(known) = self.node(name, uid) {
            return known;
        }
        let id = NodeId(self.next_node);
        self.next_node += 1;
        self.nodes.insert(name.to_owned(), (id, uid.to_owned()));
        self.node_names.insert(id, name.to_owned());
        id
    }

    /// Gives a namespace its number.
    pub fn tenant(&mut self, namespace: &str) -> TenantId {
        let next = TenantId(u32::try_from(self.tenants.len()).unwrap_or(u32::MAX));
        *self.tenants.entry(namespace.to_owned()).or_insert(next)
    }

    /// The number of a namespace that has one.
    pub fn known_tenant(&self, namespace: &str) -> TenantId {
        self.tenants.get(namespace).copied().unwrap_or_default()
    }

    /// The namespace behind a number.
    pub fn tenant_name(&self, tenant: TenantId) -> Option<&str> {
        self.tenants.iter().find(|(_, id)| **id == tenant).map(|(name, _)| name.as_str())
    }

    /// Records that a pod has this sequence number, as its annotation or a ledger says. Refused
    /// where another pod has the number already: annotations are copied with manifests.
    pub fn adopt(&mut self, who: &PodRef, sequence: u64) -> Option<JobId> {
        if let Some(known) = self.job(&who.uid) {
            return Some(known);
        }
        let job = JobId(sequence);
        if sequence >= SEQUENCE_END || self.pods.contains_key(&job) {
            return None;
        }
        self.next_sequence = self.next_sequence.max(sequence + 1);
        self.jobs.insert(who.uid.clone(), job);
        self.pods.insert(job, who.clone());
        Some(job)
    }

    /// Gives every pod of ours a number that has none: those recorded on the pods first, then new
    /// ones in the order in which the pods arrived.
    pub fn learn_pods<'a>(&mut self, pods: impl Iterator<Item = &'a PodFacts>) {
        let mut new: Vec<&PodFacts> = pods.filter(|pod| self.job(&pod.who.uid).is_none()).collect();
        // Of two pods that claim one number the older has it.
        new.sort_by(|a, b| (a.created, a.version, &a.who).cmp(&(b.created, b.version, &b.who)));
        new.retain(|pod| match pod.sequence {
            Some(sequence) => self.adopt(&pod.who, sequence).is_none(),
            None => true,
        });
        for pod in new {
            let next = self.next_sequence.min(SEQUENCE_END - 1);
            if self.adopt(&pod.who, next).is_none() {
                // The range is used up: only a forged number near its end can bring this about.
                self.next_foreign += 1;
                let job = JobId(self.next_foreign);
                self.jobs.insert(pod.who.uid.clone(), job);
                self.pods.insert(job, pod.who.clone());
            }
        }
    }

    /// Gives a foreign pod a number.
    pub fn learn_foreign(&mut self, who: &PodRef) -> JobId {
        if let Some(known) = self.foreign(&who.uid) {
            return known;
        }
        self.next_foreign += 1;
        let job = JobId(self.next_foreign);
        self.foreign.insert(who.uid.clone(), job);
        self.pods.insert(job, who.clone());
        job
    }

    /// Drops the numbers of pods and nodes that neither the world nor the policy knows any more.
    pub fn forget(
        &mut self,
        keep_uid: impl Fn(&str) -> bool,
        keep_job: impl Fn(JobId) -> bool,
        keep_node: impl Fn(NodeId) -> bool,
    ) {
        let kept = |uid: &String, job: &mut JobId| keep_uid(uid) || keep_job(*job);
        self.jobs.retain(kept);
        self.foreign.retain(kept);
        let (jobs, foreign) = (&self.jobs, &self.foreign);
        self.pods.retain(|job, who| {
            jobs.get(&who.uid) == Some(job) || foreign.get(&who.uid) == Some(job)
        });
        self.node_names.retain(|&id, _| keep_node(id));
        self.nodes.retain(|_, (id, _)| keep_node(*id));
    }
}
