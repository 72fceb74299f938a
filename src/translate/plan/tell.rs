//! Pure: what each pod is told, and when its wording is worth another write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Action, Admitted, Nomination, Target, shape_name};
use super::{Holding, JobId, Known, Millis, NodeId, PodFacts, Pool, Shape, Stage, World};
use crate::api::GpuNode;
use crate::explain::decision::reserved as reserved_for;
use crate::explain::{Outside, wait};
use crate::policy::{Config, Node};
use crate::translate::agents::AgentWord;
use crate::translate::text::Words;

/// How often the wording alone of a pod's condition changes at most: its place in the queue moves
/// with every pod that starts.
const REWORD_EVERY: Millis = Millis::from_secs(10);

/// How often it is looked whether a waiting pod should be told something else. With more than
/// [`LOOKS_PER_SECOND`] pods waiting, less often.
const LOOK_EVERY: Millis = Millis::from_secs(1);
const LOOKS_PER_SECOND: u64 = 500;
/// Waiting pods that are looked at in one round: more would hold up what is decided.
const LOOKS_PER_ROUND: u32 = 64;

/// What was told and found, between two looks. It saves work and never decides.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    told_at: BTreeMap<String, Millis>,
    look_at: BTreeMap<String, Millis>,
    /// Nodes whose ledger showed the policy's state and how the agent stands: these, and the ledger.
    clean: BTreeMap<NodeId, (Node, Arc<GpuNode>, Option<AgentWord>)>,
    config: Option<Config>,
    looks_left: u32,
}

impl Memory {
    /// Forgets pods that are gone.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.told_at.retain(|uid, _| keep(uid));
        self.look_at.retain(|uid, _| keep(uid));
    }

    /// What was found holds for these settings only.
    pub(super) fn settings(&mut self, config: &Config) {
        if self.config.as_ref() != Some(config) {
            self.config = Some(config.clone());
            self.clean.clear();
        }
    }

    /// Whether this ledger was found to show this state.
    pub(super) fn is_clean(
        &self,
        id: NodeId,
        node: &Node,
        ledger: &Arc<GpuNode>,
        agent: Option<&AgentWord>,
    ) -> bool {
        self.clean.get(&id).is_some_and(|(state, seen, word)| {
            Arc::ptr_eq(seen, ledger) && state == node && word.as_ref() == agent
        })
    }

    /// This ledger shows this state.
    pub(super) fn clean(
        &mut self,
        id: NodeId,
        node: &Node,
        ledger: &Arc<GpuNode>,
        agent: Option<&AgentWord>,
    ) {
        self.clean.insert(id, (node.clone(), Arc::clone(ledger), agent.cloned()));
    }

    /// A round begins.
    pub(super) fn round(&mut self) {
        self.looks_left = LOOKS_PER_ROUND;
    }

    /// Whether to look at what a waiting pod is told: now and then, and where there is `news`.
    fn is_due(&mut self, look: &Look<'_>, uid: &str, news: bool) -> bool {
        let now = look.world.now;
        let rests = self.look_at.get(uid).is_some_and(|&at| now < at);
        if self.looks_left == 0 || (rests && !news) {
            return false;
        }
        self.looks_left -= 1;
        let pause = LOOK_EVERY.0.max(look.waiting * 1_000 / LOOKS_PER_SECOND);
        self.look_at.insert(uid.to_owned(), now + Millis(pause));
        true
    }
}

/// The states that are compared, with what can be looked up once for all pods.
pub(super) struct Look<'a> {
    pub(super) world: &'a World,
    pub(super) pool: &'a Pool,
    pub(super) known: &'a Known,
    /// Objects to which nothing can be written now.
    off_limits: &'a BTreeSet<Target>,
    /// Waiting pods that are nominated and gated, by node: kube-scheduler keeps GPUs for them.
    nominated: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Nodes whose gate is closed for a large and where nothing else can still be bound.
    settled_gates: BTreeMap<JobId, NodeId>,
    /// Pods that wait.
    waiting: u64,
}

impl<'a> Look<'a> {
    pub(super) fn new(
        world: &'a World,
        pool: &'a Pool,
        known: &'a Known,
        off_limits: &'a BTreeSet<Target>,
    ) -> Self {
        let mut nominated: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in world.ours().filter(|pod| pod.gated && pod.can_be_bound()) {
            let job = known.ids.job(&pod.who.uid);
            let waits = job.is_none_or(|job| pool.node_of(job).is_none());
            if let Some(node) = pod.nominated.as_ref().filter(|_| waits) {
                nominated.entry(node).or_default().insert(&pod.who.uid);
            }
        }
        let settled_gates = pool
            .nodes()
            .iter()
            .filter(|(_, node)| node.holdings.values().all(|h| h.stage != Stage::Reserved))
            .filter_map(|(&id, node)| Some((node.gate()?.job, id)))
            .collect();
        let waiting = pool.queue(Shape::Small).count() + pool.queue(Shape::Large).count();
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        Self { world, pool, known, off_limits, nominated, settled_gates, waiting }
    }

    fn words(&self) -> Words<'_> {
        Words { pool: self.pool, known: self.known, world: self.world }
    }

    /// Whether another pod waits that is nominated to the node.
    pub(super) fn nominated_elsewise(&self, pod: &PodFacts, node: &str) -> bool {
        let there = self.nominated.get(node);
        there.is_some_and(|uids| uids.iter().any(|uid| **uid != pod.who.uid))
    }

    /// The node that a waiting pod should be nominated to: a large to the node that is emptied for
    /// it, once the ledger says so and everything admitted there before is bound.
    fn nomination(&self, pod: &PodFacts, job: Option<JobId>) -> Option<String> {
        let id = self.settled_gates.get(&job.filter(|_| pod.gated)?)?;
        let name = self.known.ids.node_name(*id)?;
        let status = self.world.nodes.get(name).and_then(|facts| self.world.ledger(facts))?;
        let drain = status.drain.as_ref()?;
        (drain.pod.uid == pod.who.uid).then(|| name.to_owned())
    }
}

/// What a pod without GPUs is told.
pub(super) fn waiting(
    look: &Look<'_>,
    pod: &PodFacts,
    job: Option<JobId>,
    memory: &mut Memory,
) -> Option<Action> {
    let nominate = look.nomination(pod, job);
    if look.off_limits.contains(&Target::Pod(pod.who.uid.clone())) {
        return None;
    }
    let news = pod.admitted.as_ref().is_none_or(|told| told.yes);
    // However many others have news, a nomination is looked at.
    if pod.nominated == nominate && !memory.is_due(look, &pod.who.uid, news) {
        return None;
    }
    let wanted = if look.world.shape_agrees(pod) {
        let job = job?;
        let explanation = look.known.promises.glance(look.pool, job, look.world.now)?;
        let (reason, message) = wait::condition(&explanation, &look.words().context())?;
        Admitted { yes: false, reason: reason.to_owned(), message }
    } else {
        not_admitted(&shape_mismatch(look.world, pod))
    };
    tell(look.world.now, pod, wanted, nominate, memory)
}

/// What a pod is told whose GPUs the ledger shows.
pub(super) fn reserved(
    look: &Look<'_>,
    pod: &PodFacts,
    id: NodeId,
    holding: &Holding,
    memory: &mut Memory,
) -> Option<Action> {
    let message = reserved_for(&look.words().plain(), id, holding.gpus);
    let wanted = Admitted { yes: true, reason: "Reserved".to_owned(), message };
    let name = look.known.ids.node_name(id)?.to_owned();
    // Once bound, the nomination is the API server's business; and kube-scheduler drops that of a
    // pod that it tried in vain, which is not worth a contest.
    let keep = pod.node.is_some() || (!pod.gated && is_told(pod, &wanted));
    let nominate = if keep { pod.nominated.clone() } else { Some(name) };
    tell(look.world.now, pod, wanted, nominate, memory)
}

/// What a pod is told whose pool does not exist.
pub fn no_such_pool(pod: &PodFacts, now: Millis, memory: &mut Memory) -> Option<Action> {
    let wanted = not_admitted(&Outside::NoSuchPool { pool: pod.pool.clone() });
    tell(now, pod, wanted, None, memory)
}

fn not_admitted(why: &Outside) -> Admitted {
    let (reason, message) = why.said();
    Admitted { yes: false, reason: reason.to_owned(), message }
}

/// Why a pod whose label and request disagree is not admitted.
pub fn shape_mismatch(world: &World, pod: &PodFacts) -> Outside {
    let shape = world.shape(pod).unwrap_or(Shape::Small);
    let expected = match shape {
        Shape::Wide(_) => format!("2 to {}", world.config.gpus_per_node.saturating_sub(1)),
        Shape::Small | Shape::Large => world.asked(shape).to_string(),
    };
    Outside::ShapeMismatch {
        label: shape_name(shape).to_owned(),
        expected,
        requested: pod.gpus(world.resource()),
        resource: world.resource().to_owned(),
        pool: world.name.clone(),
    }
}

fn is_told(pod: &PodFacts, wanted: &Admitted) -> bool {
    pod.admitted.as_ref().is_some_and(|now| now.yes == wanted.yes && now.reason == wanted.reason)
}

fn tell(
    now: Millis,
    pod: &PodFacts,
    wanted: Admitted,
    nominate: Option<String>,
    memory: &mut Memory,
) -> Option<Action> {
    let same_words = pod.admitted.as_ref() == Some(&wanted);
    let same_node = pod.nominated == nominate;
    if same_words && same_node {
        return None;
    }
    let rewords = same_node && is_told(pod, &wanted);
    let recently = memory.told_at.get(&pod.who.uid).is_some_and(|at| now < *at + REWORD_EVERY);
    if rewords && recently {
        return None;
    }
    // kube-scheduler acts on a nomination and a gate waits for an admission; nobody acts on why a
    // pod waits.
    let urgent = !same_node || wanted.yes;
    memory.told_at.insert(pod.who.uid.clone(), now);
    Some(Action::Tell {
        pod: pod.who.clone(),
        flips: pod.admitted.as_ref().is_none_or(|before| before.yes != wanted.yes),
        admitted: wanted,
        nominate: match nominate {
            _ if same_node => Nomination::Keep,
            None => Nomination::Clear,
            Some(node) => Nomination::Node(node),
        },
        urgent,
    })
}
