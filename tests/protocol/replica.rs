//! One replica of the controller: what it sees, what it believes, and what it has sent.
//!
//! A round is the engine's: the same functions in the same order. What the engine's tasks and
//! timers do, when a round comes and when an answer, is left open here: it comes at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice::api::{GpuNode, GpuNodeStatus, GpuPool};
use sluice::policy::{Config, Decision, Millis, Pool};
use sluice::translate::ledger::owned;
use sluice::translate::plan::{Action, Memory, Nomination, Target, plan};
use sluice::translate::pod::version;
use sluice::translate::restore::restore;
use sluice::translate::{Known, NodeFacts, PodFacts, World, diff};

use super::key;
use super::mutants::Mutant;
use super::server::{PodEvent, Server};

/// What no replica changes.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) pool: Arc<GpuPool>,
    pub(crate) config: Config,
    pub(crate) nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// Whether writes count for which nothing waits.
    pub(crate) all_writes: bool,
    pub(crate) mutant: Option<Mutant>,
}

/// A write that a leader has sent.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) action: Arc<Action>,
    /// The key of what it says.
    pub(crate) key: u64,
    /// What became of it, where it has arrived and the leader has not heard of that.
    pub(crate) arrived: Option<Outcome>,
}

/// What became of a write.
#[derive(Clone)]
pub(crate) enum Outcome {
    Ledger(Arc<GpuNode>),
    Pod(Arc<PodFacts>),
    /// Somebody else wrote the ledger.
    Conflict,
    /// The pod is gone.
    Gone,
}

/// One replica.
#[expect(clippy::struct_excessive_bools, reason = "independent facts of a process")]
#[derive(Clone, Default)]
pub(crate) struct Replica {
    /// What its watches have shown, or answers to its writes: each may trail the server.
    pub(crate) ledgers: BTreeMap<String, Arc<GpuNode>>,
    pub(crate) pods: BTreeMap<String, Arc<PodFacts>>,
    pub(crate) gone: BTreeMap<String, Arc<PodFacts>>,
    /// What its watches are still to show, in order.
    pub(crate) ledgers_to_see: Vec<Arc<GpuNode>>,
    pub(crate) pods_to_see: Vec<PodEvent>,
    /// Its state while it believes that it leads.
    pub(crate) run: Option<Arc<(Pool, Known)>>,
    /// The key of that.
    pub(crate) run_key: u64,
    /// Writes that it has sent and not heard of.
    pub(crate) sent: Vec<Sent>,
    /// Whether it starts over once it has heard of all that it sent.
    pub(crate) starts_over: bool,
    /// Whether there is anything new since its last round.
    pub(crate) news: bool,
    /// Whether its process is stopped in its tracks.
    pub(crate) paused: bool,
    /// Whether it woke after its time was over: the engine's round that was begun is its last, and
    /// rests on what was known before.
    pub(crate) late: bool,
}

impl Replica {
    /// Whether it believes that it leads.
    pub(crate) fn believes(&self) -> bool {
        self.run.is_some() || self.starts_over
    }

    /// Its watch of the ledgers shows so many events more.
    pub(crate) fn see_ledgers(&mut self, count: usize) {
        for ledger in self.ledgers_to_see.drain(..count) {
            let name = ledger.metadata.name.clone().unwrap_or_default();
            self.ledgers.insert(name, ledger);
        }
        self.news |= count > 0;
    }

    /// Its watch of the pods shows so many events more.
    pub(crate) fn see_pods(&mut self, count: usize) {
        for event in self.pods_to_see.drain(..count) {
            match event {
                PodEvent::Is(pod) => {
                    self.pods.insert(pod.who.uid.clone(), pod);
                }
                PodEvent::Gone(last) => {
                    self.pods.remove(&last.who.uid);
                    self.gone.insert(last.who.uid.clone(), last);
                }
            }
        }
        self.news |= count > 0;
    }

    /// An answer shows a ledger. What the watch shows of earlier versions is no news any more.
    fn heard_ledger(&mut self, ledger: &Arc<GpuNode>) {
        let name = ledger.metadata.name.clone().unwrap_or_default();
        let number = |of: &GpuNode| version(of.metadata.resource_version.as_deref());
        let of = number(ledger);
        if self.ledgers.get(&name).is_some_and(|known| number(known) >= of) {
            return;
        }
        self.ledgers_to_see
            .retain(|event| event.metadata.name.as_deref() != Some(&name) || number(event) > of);
        self.ledgers.insert(name, Arc::clone(ledger));
    }

    /// An answer shows a pod.
    fn heard_pod(&mut self, pod: &Arc<PodFacts>) {
        let uid = &pod.who.uid;
        if self.pods.get(uid).is_none_or(|known| known.version >= pod.version) {
            return;
        }
        self.pods_to_see.retain(|event| match event {
            PodEvent::Is(other) => other.who.uid != *uid || other.version > pod.version,
            PodEvent::Gone(_) => true,
        });
        self.pods.insert(uid.clone(), Arc::clone(pod));
    }

    /// It believes that it leads, and begins with a consistent list.
    pub(crate) fn lead(&mut self, server: &Server, settings: &Settings, now: Millis) {
        self.stop();
        self.ledgers.clone_from(&server.ledgers);
        self.pods.clone_from(&server.pods);
        self.news = true;
        let mut world = self.world(settings, now);
        if let Some(mutant) = settings.mutant {
            mutant.spoil_restored(&mut world);
        }
        let (pool, known) = restore(&world).unwrap();
        self.believe((pool, known));
    }

    fn believe(&mut self, run: (Pool, Known)) {
        self.run_key = key::of_run(&run);
        self.run = Some(Arc::new(run));
    }

    fn world(&self, settings: &Settings, now: Millis) -> World {
        World {
            now,
            name: "default".to_owned(),
            pool: Arc::clone(&settings.pool),
            config: settings.config.clone(),
            pods: self.pods.clone(),
            last_words: self.gone.clone(),
            nodes: settings.nodes.clone(),
            leaving: BTreeSet::new(),
            ledgers: self.ledgers.clone(),
            agents: BTreeMap::new(),
        }
    }

    /// Looks, decides and sends. Returns whether a commit was refused.
    pub(crate) fn round(&mut self, settings: &Settings, now: Millis) -> bool {
        self.news = false;
        let Some(run) = self.run.as_mut() else { return false };
        let mut state = (**run).clone();
        let (pool, known) = (&mut state.0, &mut state.1);
        let mut world = self.world(settings, now);
        if let Some(mutant) = settings.mutant {
            mutant.spoil_world(&mut world);
        }
        known.learn(&world, pool);
        let mut inputs = diff(&world, pool, known);
        if let Some(mutant) = settings.mutant {
            mutant.spoil_inputs(&mut inputs);
        }
        known.note(&inputs, &world, pool);
        let decisions = pool.step(inputs, now);
        known.tidy(&world, pool);
        let mut busy: BTreeSet<Target> = self.sent.iter().map(|s| s.action.target()).collect();
        let mut plan = plan(&world, pool, known, &busy, &mut Memory::default());
        let refused = decisions.iter().any(|d| matches!(d, Decision::Refused { .. }));
        if let Some(mutant) = settings.mutant {
            mutant.spoil_plan(&mut plan, &world, pool);
        }
        // What is remembered of pods that nothing rests on any more decides nothing.
        self.gone
            .retain(|uid, _| known.ids.job(uid).is_some_and(|job| pool.node_of(job).is_some()));
        self.believe(state);
        if plan.rebuild.is_some() {
            self.start_over();
            return refused;
        }
        let wanted = plan.actions.into_iter().filter(|action| matters(action, settings));
        for action in wanted {
            if busy.insert(action.target()) {
                let key = key::of_action(&action);
                self.sent.push(Sent { action: Arc::new(action), key, arrived: None });
            }
        }
        refused
    }

    /// It hears what became of a write, or reads the ledger instead.
    pub(crate) fn hear(
        &mut self,
        action: &Action,
        outcome: &Outcome,
        server: &Server,
        mutant: Option<Mutant>,
    ) {
        if self.run.is_none() || (self.late && mutant != Some(Mutant::LooksAgain)) {
            // It starts over, and reads everything anew; or its time is over, and it looks at
            // nothing any more.
            return;
        }
        match (outcome, action) {
            (Outcome::Ledger(written), _) => {
                self.heard_ledger(written);
                self.news = true;
            }
            (Outcome::Pod(pod), _) => {
                self.heard_pod(pod);
                self.news = true;
            }
            (Outcome::Conflict, _) if mutant == Some(Mutant::GivesUp) => {}
            (Outcome::Conflict, Action::WriteLedger { object, read, .. }) => {
                let fresh = &server.ledgers[object.metadata.name.as_deref().unwrap_or_default()];
                self.overtaken(read, fresh);
            }
            // It is tried again, to no effect, until the watch shows that the pod is gone.
            (Outcome::Conflict | Outcome::Gone, _) => {
                self.news |= mutant == Some(Mutant::TriesAgain);
            }
        }
    }

    /// A ledger's write was refused or not answered: the ledger itself was read.
    fn overtaken(&mut self, read: &GpuNodeStatus, fresh: &Arc<GpuNode>) {
        self.heard_ledger(fresh);
        self.news = true;
        let status = fresh.status.clone().unwrap_or_default();
        if owned(read) != owned(&status) {
            self.start_over();
        }
    }

    fn start_over(&mut self) {
        let late = self.late;
        let sent = self.stop();
        *self = Self { sent, late, starts_over: true, ..Self::default() };
    }

    /// It no longer believes that it leads, and keeps nothing. Returns what it had sent.
    pub(crate) fn stop(&mut self) -> Vec<Sent> {
        std::mem::take(self).sent
    }
}

/// Whether anybody acts on what an action writes. Words alone are left out, and what only a cluster
/// autoscaler reads; and in most runs how far a pod has come.
fn matters(action: &Action, settings: &Settings) -> bool {
    match action {
        Action::Tell { admitted, nominate, .. } => admitted.yes || *nominate != Nomination::Keep,
        Action::WriteLedger { urgent, .. } => *urgent || settings.all_writes,
        Action::Spare { .. } => false,
        Action::Number { .. }
        | Action::CreateLedger(_)
        | Action::DeleteLedger { .. }
        | Action::Ungate { .. }
        | Action::Evict { .. } => true,
    }
}
