//! Cluster side: the newest that is known of each object: the watch's word, or the answer to our
//! own last write where the watch trails it.
//!
//! Objects are read into facts once per version. An answer is forgotten as soon as the watch shows
//! that version or a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};

use super::stores::Stores;
use crate::api::{GpuNode, GpuPool};
use crate::policy::Millis;
use crate::translate::agents::AgentPod;
use crate::translate::fits::Placement;
use crate::translate::members::{self, Members};
use crate::translate::pod::version;
use crate::translate::{NodeFacts, PodFacts, World};

/// How long an object that we created is believed in although the watch does not show it.
const CREATED_TRUST: Millis = Millis::from_secs(10);

/// Facts of everything in the stores.
#[derive(Default)]
pub(super) struct View {
    /// Pods by UID.
    pub(super) pods: BTreeMap<String, Arc<PodFacts>>,
    /// Nodes by name.
    pub(super) nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// Ledgers by name of the node.
    pub(super) ledgers: BTreeMap<String, Arc<GpuNode>>,
    /// Pools by name.
    pub(super) pools: BTreeMap<String, Arc<GpuPool>>,
    /// Pools that are there and cannot be read, by name: what is wrong with them.
    pub(super) unreadable_pools: BTreeMap<String, String>,
    /// Ledgers that are there and never could be read.
    unreadable_ledgers: BTreeSet<String>,
    /// Pods of node agents, by name of the node.
    agents: BTreeMap<String, AgentPod>,
    /// One copy of each placement: pods of one template share it.
    placements: Placements,
    node_versions: BTreeMap<String, u64>,
    own_pods: BTreeMap<String, Arc<PodFacts>>,
    own_ledgers: BTreeMap<String, Own<GpuNode>>,
    own_nodes: BTreeMap<String, Own<NodeFacts>>,
}

/// The answer to a write of ours.
struct Own<T> {
    object: Arc<T>,
    version: u64,
    /// Set for an object that we created: until when it may be missing from the watch.
    until: Option<Millis>,
}

/// Placements that pods have, each once.
#[derive(Default)]
struct Placements(Vec<Arc<Placement>>);

impl Placements {
    /// Facts of a pod that share their placement with those of others.
    fn read(&mut self, pod: &Pod) -> Arc<PodFacts> {
        let mut facts = PodFacts::read(pod);
        if let Some(known) = self.0.iter().find(|known| **known == facts.placement) {
            facts.placement = Arc::clone(known);
        } else {
            self.0.retain(|known| Arc::strong_count(known) > 1);
            self.0.push(Arc::clone(&facts.placement));
        }
        Arc::new(facts)
    }
}

impl View {
    /// Facts of these objects.
    pub(super) fn of(
        pods: &[Pod],
        nodes: &[Node],
        ledgers: Vec<GpuNode>,
        pools: Vec<GpuPool>,
    ) -> Self {
        let mut view = Self::default();
        for pod in pods {
            let facts = view.placements.read(pod);
            view.pods.insert(facts.who.uid.clone(), facts);
        }
        let nodes = nodes.iter().map(|node| Arc::new(NodeFacts::read(node)));
        view.nodes = nodes.map(|node| (node.name.clone(), node)).collect();
        let ledgers = ledgers.into_iter().map(Arc::new);
        view.ledgers =
            ledgers.filter_map(|object| Some((object.metadata.name.clone()?, object))).collect();
        let pools = pools.into_iter().map(Arc::new);
        view.pools =
            pools.filter_map(|object| Some((object.metadata.name.clone()?, object))).collect();
        view
    }

    /// Brings the facts up to date.
    pub(super) fn refresh(&mut self, stores: &Stores, own_namespace: &str, now: Millis) {
        self.refresh_pods(stores, own_namespace);
        self.refresh_nodes(stores);
        self.refresh_ledgers(&stores.gpu_nodes.state(), now);
        self.pools = stores
            .pools
            .state()
            .into_iter()
            .filter_map(|pool| Some((pool.metadata.name.clone()?, pool)))
            .collect();
        let faults = stores.unreadable("gpupools").into_iter();
        self.unreadable_pools = faults.map(|((_, name), fault)| (name, fault.error)).collect();
        let faults = stores.unreadable("gpunodes").into_keys().map(|(_, name)| name);
        self.unreadable_ledgers = faults.filter(|name| !self.ledgers.contains_key(name)).collect();
    }

    /// Takes in the answer to a write of a pod.
    pub(super) fn wrote_pod(&mut self, pod: &Pod) {
        let facts = self.placements.read(pod);
        let uid = facts.who.uid.clone();
        if self.pods.get(&uid).is_some_and(|known| known.version < facts.version) {
            self.pods.insert(uid.clone(), Arc::clone(&facts));
            self.own_pods.insert(uid, facts);
        }
    }

    /// Takes in the answer to a write of a node.
    pub(super) fn wrote_node(&mut self, node: &Node) {
        let version = version(node.metadata.resource_version.as_deref());
        let object = Arc::new(NodeFacts::read(node));
        let own = Own { object: Arc::clone(&object), version, until: None };
        self.own_nodes.insert(object.name.clone(), own);
    }

    /// Takes in a ledger as the API server gave it in answer to a write or a read. `created` tells
    /// until when the watch may still not know of it.
    pub(super) fn saw_ledger(&mut self, ledger: GpuNode, created: Option<Millis>) {
        let Some(name) = ledger.metadata.name.clone() else { return };
        let version = version(ledger.metadata.resource_version.as_deref());
        // One that was written at once after it was created is as new to the watch.
        let known = self.own_ledgers.get(&name).and_then(|own| own.until);
        let until = created.map(|at| at + CREATED_TRUST).or(known);
        self.own_ledgers.insert(name, Own { object: Arc::new(ledger), version, until });
    }

    /// What concerns each pool. Nobody knows who holds GPUs of a node whose ledger cannot be read,
    /// so such a node belongs to no pool until it can.
    pub(super) fn members(&self) -> BTreeMap<String, Members> {
        if self.unreadable_ledgers.is_empty() {
            return members::assign(&self.pools, &self.nodes, &self.ledgers);
        }
        let mut nodes = self.nodes.clone();
        nodes.retain(|name, _| !self.unreadable_ledgers.contains(name));
        members::assign(&self.pools, &nodes, &self.ledgers)
    }

    /// What concerns one pool.
    pub(super) fn world(
        &self,
        name: &str,
        members: &Members,
        config: crate::policy::Config,
        now: Millis,
    ) -> Option<World> {
        let pool = Arc::clone(self.pools.get(name)?);
        let resource = &pool.spec.resource_name;
        let concerns = |pod: &PodFacts| {
            (pod.is_ours() && pod.pool == name)
                || (pod.gpus(resource) > 0
                    && pod.node.as_ref().is_some_and(|node| members.nodes.contains_key(node)))
        };
        let pods = self.pods.iter().filter(|(_, pod)| concerns(pod));
        let ledgers = self.ledgers.iter().filter(|(_, ledger)| ledger.spec.pool == name);
        Some(World {
            now,
            name: name.to_owned(),
            config,
            pods: pods.map(|(uid, pod)| (uid.clone(), Arc::clone(pod))).collect(),
            last_words: BTreeMap::new(),
            nodes: members.nodes.clone(),
            leaving: members.leaving.clone(),
            agents: self.agents.clone(),
            ledgers: ledgers.map(|(name, ledger)| (name.clone(), Arc::clone(ledger))).collect(),
            pool,
        })
    }

    fn refresh_pods(&mut self, stores: &Stores, own_namespace: &str) {
        let mut pods = BTreeMap::new();
        self.agents.clear();
        for pod in stores.pods.state() {
            let Some(uid) = pod.metadata.uid.clone() else { continue };
            // Elsewhere anybody may give a pod these labels.
            if pod.metadata.namespace.as_deref() == Some(own_namespace)
                && let Some((node, agent)) = AgentPod::read(&pod)
            {
                let agent = match self.agents.remove(&node) {
                    Some(other) => agent.better(other),
                    None => agent,
                };
                self.agents.insert(node, agent);
            }
            let seen = version(pod.metadata.resource_version.as_deref());
            let known = self.pods.remove(&uid).filter(|known| known.version == seen);
            let mut facts = known.unwrap_or_else(|| self.placements.read(&pod));
            if let Some(own) = self.own_pods.remove(&uid)
                && own.version > seen
            {
                facts = Arc::clone(&own);
                self.own_pods.insert(uid.clone(), own);
            }
            pods.insert(uid, facts);
        }
        self.own_pods.retain(|uid, _| pods.contains_key(uid));
        self.pods = pods;
    }

    fn refresh_nodes(&mut self, stores: &Stores) {
        let mut nodes = BTreeMap::new();
        let mut versions = BTreeMap::new();
        for node in stores.nodes.state() {
            let Some(name) = node.metadata.name.clone() else { continue };
            let seen = version(node.metadata.resource_version.as_deref());
            let same = self.node_versions.get(&name) == Some(&seen);
            let known = self.nodes.remove(&name).filter(|_| same && seen > 0);
            let own = self.own_nodes.remove(&name).filter(|own| own.version > seen);
            versions.insert(name.clone(), if own.is_some() { 0 } else { seen });
            let facts = match own {
                Some(own) => {
                    let object = Arc::clone(&own.object);
                    self.own_nodes.insert(name.clone(), own);
                    object
                }
                None => known.unwrap_or_else(|| Arc::new(NodeFacts::read(&node))),
            };
            nodes.insert(name, facts);
        }
        self.nodes = nodes;
        self.node_versions = versions;
    }

    fn refresh_ledgers(&mut self, watched: &[Arc<GpuNode>], now: Millis) {
        let named =
            |ledger: &Arc<GpuNode>| Some((ledger.metadata.name.clone()?, Arc::clone(ledger)));
        let mut ledgers: BTreeMap<String, Arc<GpuNode>> =
            watched.iter().filter_map(named).collect();
        self.own_ledgers.retain(|name, own| match ledgers.get(name) {
            Some(seen) => version(seen.metadata.resource_version.as_deref()) < own.version,
            None => own.until.is_some_and(|until| now < until),
        });
        for (name, own) in &self.own_ledgers {
            ledgers.insert(name.clone(), Arc::clone(&own.object));
        }
        self.ledgers = ledgers;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::GpuNodeSpec;

    fn ledger(version: &str) -> GpuNode {
        let spec = GpuNodeSpec { pool: "p".to_owned(), node_uid: "u".to_owned() };
        let mut ledger = GpuNode::new("n", spec);
        ledger.metadata.resource_version = Some(version.to_owned());
        ledger
    }

    fn shown(view: &View) -> Option<&str> {
        view.ledgers.get("n")?.metadata.resource_version.as_deref()
    }

    #[test]
    fn a_ledger_that_the_watch_does_not_know_yet_stays_after_it_was_written() {
        let (mut view, start) = (View::default(), Millis::from_secs(1));
        view.saw_ledger(ledger("1"), Some(start));
        view.saw_ledger(ledger("2"), None);
        view.refresh_ledgers(&[], start);
        assert_eq!(shown(&view), Some("2"));
        view.refresh_ledgers(&[Arc::new(ledger("1"))], start);
        assert_eq!(shown(&view), Some("2"), "the watch trails");
        view.refresh_ledgers(&[Arc::new(ledger("3"))], start);
        assert_eq!(shown(&view), Some("3"));
        view.refresh_ledgers(&[], start);
        assert_eq!(shown(&view), None, "it is gone");
    }

    #[test]
    fn a_ledger_that_the_watch_never_shows_was_deleted() {
        let (mut view, start) = (View::default(), Millis::from_secs(1));
        view.saw_ledger(ledger("1"), Some(start));
        view.saw_ledger(ledger("2"), None);
        view.refresh_ledgers(&[], start + CREATED_TRUST);
        assert_eq!(shown(&view), None);
    }
}
