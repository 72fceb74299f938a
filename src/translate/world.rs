//! Pure: what matters of the cluster for one pool, and what is remembered between two looks at it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::agents::{AgentPod, AgentWord};
use super::fits::Placement;
use super::limits::{self, UNKNOWN_GRACE, VANISHED_MARGIN};
use super::{Ids, NodeFacts, PodFacts, agents};
use crate::api::{GpuNode, GpuNodeStatus, GpuPool, PodRef};
use crate::policy::{
    Config, Fits, Input, Job, JobId, Millis, NodeId, Pool, Promises, Shape, Stage,
};

/// What the API server says, as far as it concerns one pool.
#[derive(Clone, Debug)]
pub struct World {
    /// When it was looked at.
    pub now: Millis,
    /// The pool's name.
    pub name: String,
    /// The pool's object.
    pub pool: Arc<GpuPool>,
    /// The pool's settings.
    pub config: Config,
    /// Pods that ask for this pool, and pods bound to a node of it that hold GPUs, by UID.
    pub pods: BTreeMap<String, Arc<PodFacts>>,
    /// Last states of pods whose objects are gone, as far as they are remembered, by UID.
    pub last_words: BTreeMap<String, Arc<PodFacts>>,
    /// Nodes of the pool, by name.
    pub nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// Nodes that left the pool by their labels while pods still hold GPUs there.
    pub leaving: BTreeSet<String>,
    /// Ledgers, by name of the node.
    pub ledgers: BTreeMap<String, Arc<GpuNode>>,
    /// Pods of node agents, by name of the node.
    pub agents: BTreeMap<String, AgentPod>,
}

impl World {
    /// The resource that stands for one GPU.
    pub fn resource(&self) -> &str {
        &self.pool.spec.resource_name
    }

    /// The ledger's status of a node, if it is the ledger of this node and not of an earlier one
    /// with its name.
    pub fn ledger(&self, node: &NodeFacts) -> Option<&GpuNodeStatus> {
        let ledger = self.ledgers.get(&node.name)?;
        (ledger.spec.node_uid == node.uid).then_some(ledger.status.as_ref()).flatten()
    }

    /// Pods that ask for GPUs of this pool.
    pub fn ours(&self) -> impl Iterator<Item = &Arc<PodFacts>> {
        self.pods.values().filter(|pod| pod.is_ours() && pod.pool == self.name)
    }

    /// The GPUs that a shape needs here.
    pub fn asked(&self, shape: Shape) -> u32 {
        shape.gpus(self.config.gpus_per_node)
    }

    /// The shape that a pod's label names, with the GPUs that it requests of this pool's resource.
    pub fn shape(&self, pod: &PodFacts) -> Option<Shape> {
        pod.shape.map(|label| label.shape(pod.gpus(self.resource())))
    }

    /// Whether the GPUs that a pod requests are those of its shape.
    pub fn shape_agrees(&self, pod: &PodFacts) -> bool {
        let requested = pod.gpus(self.resource());
        self.shape(pod).is_some_and(|shape| match shape {
            Shape::Wide(asked) => 1 < asked && asked < self.config.gpus_per_node,
            Shape::Small | Shape::Large => self.asked(shape) == requested,
        })
    }

    /// Whether a pod waits in this pool's queues: it asks for it rightly and may still be bound.
    pub fn waits(&self, pod: &PodFacts) -> bool {
        pod.is_ours() && pod.pool == self.name && pod.can_be_bound() && self.shape_agrees(pod)
    }

    /// What the policy is told of a pod.
    pub fn job(&self, pod: &PodFacts, id: JobId, ids: &Ids, fitting: &mut Fitting) -> Job {
        let known = fitting.0.iter().find(|(asked, _)| Arc::ptr_eq(asked, &pod.placement));
        let fits = if let Some((_, fits)) = known {
            fits.clone()
        } else {
            let fits = self.fits(pod, ids);
            fitting.0.push((Arc::clone(&pod.placement), fits.clone()));
            fits
        };
        Job {
            id,
            shape: self.shape(pod).unwrap_or(Shape::Small),
            priority: pod.priority,
            created: pod.created,
            limit: limits::from_reservation(pod, &self.config),
            tenant: ids.known_tenant(&pod.who.namespace),
            fits,
        }
    }

    fn fits(&self, pod: &PodFacts, ids: &Ids) -> Fits {
        let fitting: BTreeSet<NodeId> = self
            .nodes
            .values()
            .filter(|node| pod.placement.fits(node))
            .filter_map(|node| ids.node(&node.name, &node.uid))
            .collect();
        if fitting.len() == self.nodes.len() { Fits::Any } else { Fits::Only(fitting) }
    }
}

/// Where pods of one placement fit, found once in a look: pods of one template share theirs.
#[derive(Default, Debug)]
pub struct Fitting(Vec<(Arc<Placement>, Fits)>);

/// What is remembered of one pool between two looks at the world, beside the policy's own state.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Names and numbers.
    pub ids: Ids,
    /// On nodes without an agent: until when a pod that vanished is held.
    pub release_at: BTreeMap<JobId, Millis>,
    /// Grace periods of pods that hold GPUs, for the time when their objects are gone.
    pub grace: BTreeMap<JobId, Millis>,
    /// Pods whose GPUs were released, while an agent's report may still name them as holders.
    pub released: BTreeMap<String, Released>,
    /// Since when nodes, by name, lack the pod of an agent that reported once.
    pub agent_missing: BTreeMap<String, Millis>,
    /// How the nodes' agents stand.
    pub agents: BTreeMap<NodeId, AgentWord>,
    /// When each waiting pod starts at the latest, as it was told.
    pub promises: Promises,
}

/// What a release rested on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    /// The pod had been bound, and is known to be over.
    Over,
    /// The pod had never been bound, and never can be.
    NeverBound,
}

impl Known {
    /// Gives numbers to whatever in the world has none.
    pub fn learn(&mut self, world: &World, pool: &Pool) {
        for node in world.nodes.values() {
            self.ids.learn_node(&node.name, &node.uid);
        }
        for pod in world.ours() {
            self.ids.tenant(&pod.who.namespace);
        }
        self.ids.learn_pods(world.ours().map(AsRef::as_ref).filter(|pod| pod.ended.is_none()));
        let mut foreign = Vec::new();
        for pod in world.pods.values().filter(|pod| pod.ended.is_none()) {
            let node = pod.node.as_ref().and_then(|name| world.nodes.get(name));
            if let Some(node) = node.filter(|_| pod.gpus(world.resource()) > 0)
                && !self.accounts_for(&pod.who.uid, node, pool)
            {
                foreign.push(&pod.who);
            }
        }
        for node in world.nodes.values() {
            for who in world.ledger(node).into_iter().flat_map(holders) {
                if !self.accounts_for(&who.uid, node, pool) {
                    foreign.push(who);
                }
            }
        }
        for who in foreign {
            self.ids.learn_foreign(who);
        }
    }

    /// Whether the policy knows of the pod's GPUs on this node as promised or held by its rule.
    pub fn accounts_for(&self, uid: &str, node: &NodeFacts, pool: &Pool) -> bool {
        let job = self.ids.job(uid);
        job.and_then(|job| pool.node_of(job))
            .is_some_and(|id| self.ids.node(&node.name, &node.uid) == Some(id))
    }

    /// Remembers what later looks need of these inputs. `pool` is the state before them.
    pub fn note(&mut self, inputs: &[Input], world: &World, pool: &Pool) {
        for input in inputs {
            match *input {
                Input::Vanished { job } => {
                    let grace = self.grace.get(&job).copied().unwrap_or(UNKNOWN_GRACE);
                    self.release_at.insert(job, world.now + grace + VANISHED_MARGIN);
                }
                Input::Released { job, .. } => {
                    let bound = pool.holding(job).is_some_and(|h| h.stage > Stage::Reserved);
                    if let Some(who) = self.ids.pod(job) {
                        let pod = world.pods.get(&who.uid).or(world.last_words.get(&who.uid));
                        let over = bound || pod.is_some_and(|pod| !pod.can_be_bound());
                        let released = if over { Released::Over } else { Released::NeverBound };
                        self.released.insert(who.uid.clone(), released);
                    }
                    self.drop_job(job);
                }
                Input::Withdrawn { job } => self.drop_job(job),
                Input::Queued(ref job) => self.recall(job, world),
                Input::NodeGone { .. }
                | Input::Configured(_)
                | Input::NodeChanged { .. }
                | Input::Bound { .. }
                | Input::Started { .. }
                | Input::Holds { .. }
                | Input::Foreign { .. }
                | Input::BindFailed { .. } => {}
            }
        }
    }

    /// Remembers what the world shows of pods that hold GPUs, and forgets what nobody needs.
    pub fn tidy(&mut self, world: &World, pool: &Pool) {
        for (uid, pod) in &world.pods {
            let job = self.ids.job(uid).or_else(|| self.ids.foreign(uid));
            if let Some(job) = job.filter(|job| pool.node_of(*job).is_some()) {
                self.grace.insert(job, pod.grace);
            }
        }
        let holds = |job: &JobId| pool.node_of(*job).is_some();
        self.grace.retain(|job, _| holds(job));
        self.release_at.retain(|job, _| holds(job));
        let lacks = |node: &&Arc<NodeFacts>| {
            let reports = world.ledger(node).is_some_and(|status| status.agent_seen.is_some());
            reports && !world.agents.contains_key(&node.name)
        };
        let missing = world.nodes.values().filter(lacks).map(|node| {
            let since = self.agent_missing.get(&node.name).copied();
            let since = since.or_else(|| agents::gone_since(world.ledger(node)?));
            (node.name.clone(), since.unwrap_or(world.now))
        });
        self.agent_missing = missing.collect();
        self.agents = agents::words(world, pool, self);
        let mentioned: BTreeSet<&str> = world
            .nodes
            .values()
            .filter_map(|node| world.ledger(node))
            .flat_map(|status| {
                let reserved = status.reservations.iter().map(|r| r.uid.as_str());
                holders(status).map(|who| who.uid.as_str()).chain(reserved)
            })
            .collect();
        self.released.retain(|uid, _| mentioned.contains(uid.as_str()));
        self.ids.forget(
            |uid| world.pods.contains_key(uid) || mentioned.contains(uid),
            |job| holds(&job) || pool.waiting(job).is_some(),
            |node| pool.nodes().contains_key(&node),
        );
    }

    /// The next time at which a hold ends, or a limit is outlasted, without anything else happening.
    pub fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let releases = self.release_at.values().copied().filter(|&at| at > now);
        releases.chain(self.promises.next_wakeup(now)).min()
    }

    /// What the last leader told a pod that waits is on the pod.
    fn recall(&mut self, job: &Job, world: &World) {
        let pod = self.ids.pod(job.id).and_then(|who| world.pods.get(&who.uid));
        if let Some(told) = pod.and_then(|pod| pod.told_to_wait()?.latest_start()) {
            self.promises.recall(job, told);
        }
    }

    fn drop_job(&mut self, job: JobId) {
        self.release_at.remove(&job);
        self.grace.remove(&job);
    }
}

/// The pods that the node's agent found to hold GPUs, without those that it cannot identify.
pub fn holders(status: &GpuNodeStatus) -> impl Iterator<Item = &PodRef> {
    let named = |who: &&PodRef| !who.uid.is_empty();
    status.gpus.iter().filter_map(|gpu| gpu.holder.as_ref()).filter(named)
}
