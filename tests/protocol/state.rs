//! One state of the protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sluice::api::GpuNode;
use sluice::extender::promise::Claimed;
use sluice::policy::{Millis, Outcome};
use sluice::translate::PodFacts;

use super::key;
use super::replica::{Replica, Sent};
use super::server::{PodEvent, START, Server};

/// A pod on its way to being bound by an extender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Binding {
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) claimed: Claimed,
    pub(crate) stage: BindStage,
}

/// How far an extender has come with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BindStage {
    /// It found the claim and the pod on no node: the claim is to be made anew.
    Renew,
    /// The Binding is to be posted: the first or second try.
    Post(u32),
    /// The claim is to be given back.
    GiveBack,
}

/// A Binding that was sent and whose sender has heard nothing: it may still arrive, until the API
/// server would have ended the request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Underway {
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) until: Millis,
}

/// Containers that live on although their pod's object is gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    pub(crate) node: String,
    pub(crate) gpus: u32,
}

/// How often each kind of trouble may still come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Troubles {
    /// An answer is lost, or the request.
    pub(crate) losses: u8,
    /// A leader crashes, or an extender; what it has sent may still arrive.
    pub(crate) crashes: u8,
    /// A leader is stopped in its tracks, and wakes later.
    pub(crate) pauses: u8,
    /// A replica takes the lease of one that is at work: a clock was wrong.
    pub(crate) usurpers: u8,
    /// A second kube-scheduler asks for a pod that is being bound.
    pub(crate) rivals: u8,
    /// A pod is deleted.
    pub(crate) deletions: u8,
    /// A pod is deleted by force: its object goes before its containers.
    pub(crate) forced: u8,
    /// The API server refuses a Binding.
    pub(crate) refusals: u8,
    /// An extender is stopped between judging a ledger and writing the claim.
    pub(crate) sleepers: u8,
    /// Time passes while other things could happen: every reservation that is not bound runs out.
    pub(crate) ticks: u8,
}

/// What a step did wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fault {
    /// A gate went that no ledger had ever spoken for.
    UngatedUnpromised,
    /// A pod was bound to a node whose ledger had no claim of it.
    BoundUnclaimed,
    /// A pod was bound although it was deleted.
    BoundCancelled,
    /// A leader's write took away GPUs of a pod that is bound or may yet be.
    DroppedClaim,
    /// The policy refused a commit of its own.
    CommitRefused,
}

/// What has happened, where a run wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Marks(pub(crate) u16);

impl Marks {
    pub(crate) const TAKEOVER: Self = Self(1);
    pub(crate) const CONFLICT: Self = Self(1 << 1);
    pub(crate) const LOST_DONE: Self = Self(1 << 2);
    pub(crate) const LOST_UNDONE: Self = Self(1 << 3);
    pub(crate) const OLD_REFUSED: Self = Self(1 << 4);
    pub(crate) const GIVEN_BACK: Self = Self(1 << 5);
    pub(crate) const NOT_GIVEN_BACK: Self = Self(1 << 6);
    pub(crate) const TAKEN_BACK: Self = Self(1 << 7);
    pub(crate) const LATE_BINDING: Self = Self(1 << 8);
    pub(crate) const STARTED_OVER: Self = Self(1 << 9);
    pub(crate) const LATE_GATE: Self = Self(1 << 10);
    pub(crate) const RENEWED: Self = Self(1 << 11);
    pub(crate) const LATE_CLAIM: Self = Self(1 << 12);
    pub(crate) const AWAKENED: Self = Self(1 << 13);
}

/// One state.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) now: Millis,
    pub(crate) server: Server,
    /// Who holds the lease.
    pub(crate) lease: Option<usize>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) underway: Vec<Underway>,
    /// What replicas had sent that crashed or no longer lead.
    pub(crate) adrift: Vec<Sent>,
    /// Containers without a pod, by the pod's UID.
    pub(crate) containers: BTreeMap<String, Left>,
    /// Pods that a ledger has ever shown as promised, with its node.
    pub(crate) promised: BTreeSet<(String, String)>,
    /// When each ledger was last written.
    pub(crate) written_at: BTreeMap<String, Millis>,
    /// Pods that were created.
    pub(crate) created: usize,
    pub(crate) left: Troubles,
    /// How often time passed because nothing else could happen.
    pub(crate) idle: u8,
    pub(crate) marks: Marks,
    pub(crate) fault: Option<Fault>,
    pub(crate) key: u64,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl State {
    /// At the start: nodes with empty ledgers, two replicas of which none leads.
    pub(crate) fn new(nodes: &[String], troubles: Troubles) -> Self {
        Self {
            now: START,
            server: Server::new(nodes),
            lease: None,
            replicas: vec![Replica::default(); 2],
            bindings: Vec::new(),
            underway: Vec::new(),
            adrift: Vec::new(),
            containers: BTreeMap::new(),
            promised: BTreeSet::new(),
            written_at: BTreeMap::new(),
            created: 0,
            left: troubles,
            idle: 0,
            marks: Marks::default(),
            fault: None,
            key: 0,
        }
    }

    /// Recomputes the key; to be called when a step is over.
    pub(crate) fn seal(&mut self, marked: bool) {
        self.key = key::of(self, marked);
    }

    pub(crate) fn mark(&mut self, mark: Marks) {
        self.marks.0 |= mark.0;
    }

    pub(crate) fn did(&self, mark: Marks) -> bool {
        self.marks.0 & mark.0 != 0
    }

    pub(crate) fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// A ledger is written, if it is still the one that the write was made from.
    pub(crate) fn write_ledger(&mut self, ledger: &GpuNode) -> Option<Arc<GpuNode>> {
        let written = self.server.write_ledger(ledger)?;
        let node = written.metadata.name.clone().unwrap_or_default();
        for of in written.status.iter().flat_map(|status| &status.reservations) {
            self.promised.insert((of.uid.clone(), node.clone()));
        }
        self.written_at.insert(node, self.now);
        for replica in self.replicas.iter_mut().filter(|replica| replica.run.is_some()) {
            replica.ledgers_to_see.push(Arc::clone(&written));
        }
        Some(written)
    }

    /// The watches of pods have this to show.
    pub(crate) fn pod_changed(&mut self, event: &PodEvent) {
        for replica in self.replicas.iter_mut().filter(|replica| replica.run.is_some()) {
            replica.pods_to_see.push(event.clone());
        }
    }

    /// A pod is changed, if it is there.
    pub(crate) fn write_pod(
        &mut self,
        pod: &PodFacts,
        change: impl FnOnce(&mut PodFacts),
    ) -> Option<Arc<PodFacts>> {
        let written = self.server.write_pod(&pod.who, change)?;
        self.pod_changed(&PodEvent::Is(Arc::clone(&written)));
        Some(written)
    }

    /// A pod's object goes.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        if let Some(last) = self.server.remove(uid) {
            self.pod_changed(&PodEvent::Gone(last));
        }
    }

    /// A pod that is bound ends.
    pub(crate) fn end_pod(&mut self, uid: &str) {
        let Some(pod) = self.server.pods.get(uid).cloned() else { return };
        let outcome = if pod.deleting { Outcome::Cancelled } else { Outcome::Completed };
        self.write_pod(&pod, |pod| pod.ended = Some(outcome));
    }

    /// GPUs that pods bound to a node have or are about to get, and containers that live on there.
    pub(crate) fn in_use(&self, node: &str) -> u32 {
        let bound = self.server.pods.values().filter(|pod| pod.ended.is_none());
        let bound = bound.filter(|pod| pod.node.as_deref() == Some(node));
        let left = self.containers.values().filter(|left| left.node == node);
        bound.map(|pod| pod.gpus(super::server::RESOURCE)).sum::<u32>()
            + left.map(|left| left.gpus).sum::<u32>()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", (self.now.0 - START.0) / 1_000)?;
        for (name, ledger) in &self.server.ledgers {
            let status = ledger.status.clone().unwrap_or_default();
            write!(f, "; {name} {:?}", status.phase)?;
            for of in &status.reservations {
                write!(f, " {}:{:?}{:?}", of.uid, of.state, of.gpus)?;
            }
        }
        for (uid, pod) in &self.server.pods {
            let gate = if pod.gated { "gated" } else { "open" };
            write!(f, "; {uid} {gate}")?;
            if let Some(node) = &pod.node {
                write!(f, " on {node}")?;
            }
            if let Some(ended) = pod.ended {
                write!(f, " {ended:?}")?;
            }
        }
        write!(f, "; lease {:?}", self.lease)?;
        for (index, replica) in self.replicas.iter().enumerate() {
            let (leads, paused) = (replica.believes(), replica.paused);
            let (sent, news) = (replica.sent.len(), replica.news);
            let to_see = (replica.ledgers_to_see.len(), replica.pods_to_see.len());
            write!(f, "; r{index}")?;
            if leads || sent > 0 {
                write!(f, " leads={leads} paused={paused} sent={sent} news={news} see={to_see:?}")?;
            }
        }
        for of in &self.bindings {
            write!(f, "; binding {} to {}: {:?}", of.uid, of.node, of.stage)?;
        }
        write!(f, "; underway {} adrift {}", self.underway.len(), self.adrift.len())?;
        self.fault.map_or(Ok(()), |fault| write!(f, "; FAULT {fault:?}"))
    }
}
