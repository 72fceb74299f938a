//! Rules that are wrong on purpose, so that each property is known to be able to fail.
//!
//! The real rule decides here too; what it is told, what it has decided or what is recorded of it
//! is then spoilt as a fault in that place would.

use std::collections::BTreeMap;

use sluice::policy::{
    GpuSet, Holding, Input, Job, JobId, Kind, Node, NodeId, Outcome, Phase, Pool, Shape, Stage,
};

use super::setup::ticks;
use super::state::{Place, State};
use super::world::job;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// A small gets a free GPU although the gate is closed.
    SkipsGate,
    /// A wave goes on as long as smalls wait.
    RenewsWave,
    /// Two smalls get the same GPU.
    PromisesTwice,
    /// A small gets two GPUs.
    GivesTwo,
    /// A large starts before the last GPU is back.
    StartsEarly,
    /// A deleted pod's GPUs are taken for free while its containers live.
    FreesEarly,
    /// What ended is not noticed.
    MissesRelease,
    /// Each success is counted twice.
    CountsTwice,
    /// That a waiting pod was deleted is not noticed.
    KeepsDeleted,
    /// Larges go first, always.
    LargesFirst,
    /// Smalls go first, always.
    SmallsFirst,
    /// A ledger does not record gates.
    ForgetsGates,
    /// A ledger does not record who holds what.
    ForgetsHolders,
    /// What could be decided now is left for later.
    Hesitates,
    /// A pod that starts is said to have every GPU of its node.
    Misreports,
    /// Everybody is told to start at once.
    Boasts,
    /// What was told is forgotten, and everybody told anew.
    Forgets,
    /// A crash costs nothing, so that there may be any number of them.
    CrashesOn,
}

impl Mutant {
    /// What the rule is not told, or told wrongly.
    pub(crate) fn spoil_inputs(self, state: &State, inputs: &mut Vec<Input>) {
        match self {
            Self::FreesEarly => {
                for input in inputs {
                    if let Input::Vanished { job } = *input {
                        *input = Input::Released { job, outcome: Outcome::Cancelled };
                    }
                }
            }
            Self::MissesRelease => inputs.retain(|i| !matches!(i, Input::Released { .. })),
            Self::KeepsDeleted => inputs.retain(|i| !matches!(i, Input::Withdrawn { .. })),
            Self::Misreports => {
                let started = inputs.iter().find_map(|input| match *input {
                    Input::Started { job, .. } => Some(job),
                    _ => None,
                });
                let gpus = GpuSet::first(state.pool.config().gpus_per_node);
                inputs.extend(started.map(|job| Input::Holds { job, gpus }));
            }
            Self::LargesFirst => withhold(state, inputs, Shape::Small),
            Self::SmallsFirst => withhold(state, inputs, Shape::Large),
            _ => {}
        }
    }

    /// What is recorded otherwise than it was decided.
    pub(crate) fn spoil_decisions(self, state: &mut State) {
        let mut nodes = state.pool.nodes().clone();
        for node in nodes.values_mut() {
            self.spoil_node(state, node);
        }
        if &nodes != state.pool.nodes() {
            let waits = |job: &Job| !nodes.values().any(|n| n.holdings.contains_key(&job.id));
            let known = state.numbered().map(|(id, _)| id);
            let known = known.filter(|&id| state.pool.job(id).is_some());
            let (waiting, placed): (Vec<Job>, Vec<Job>) =
                known.map(|id| job(state, id)).partition(waits);
            let config = state.pool.config().clone();
            let elsewhere = *state.pool.counters_elsewhere();
            let mut pool = Pool::restore(config, nodes, placed, elsewhere).expect("valid settings");
            if self != Self::Hesitates {
                let told = waiting.into_iter().map(|job| Input::Queued(Box::new(job)));
                pool.step(told.collect(), ticks(state.now));
            }
            state.pool = pool;
        }
    }

    fn spoil_node(self, state: &State, node: &mut Node) {
        let small = || {
            let waits = |id: &JobId| state.pool.waiting(*id).is_some();
            let shape = |id: &JobId| state.job(*id).and_then(|job| job.shape);
            let ids = state.numbered().map(|(id, _)| id).filter(waits);
            ids.filter(|id| shape(id) == Some(Shape::Small)).min()
        };
        let free = node.free().lowest(1);
        match (self, node.phase) {
            (Self::SkipsGate, Phase::Draining(_)) => {
                if let Some((job, gpu)) = small().zip(free) {
                    node.holdings.insert(job, promise(state, Kind::Direct, gpu));
                }
            }
            (Self::RenewsWave, Phase::Wave { .. }) => {
                if let Some((job, gpu)) = small().zip(free) {
                    node.holdings.insert(job, promise(state, Kind::Wave, gpu));
                }
            }
            (Self::PromisesTwice, Phase::Open) => {
                for holding in node.holdings.values_mut() {
                    if holding.stage == Stage::Reserved {
                        holding.gpus = GpuSet::single(0);
                    }
                }
            }
            (Self::GivesTwo, Phase::Open) => {
                let promised = node.holdings.values_mut().next();
                if let Some(holding) = promised.filter(|h| h.stage == Stage::Reserved) {
                    holding.gpus = holding.gpus.union(free.unwrap_or_default());
                }
            }
            (Self::StartsEarly, Phase::Draining(gate)) if free.is_some() => {
                let rest = free.unwrap_or_default();
                let mut holding = promise(state, Kind::Direct, rest);
                holding.shape = Some(Shape::Large);
                node.holdings.insert(gate.job, holding);
                node.phase = Phase::Exclusive(gate.job);
            }
            (Self::Hesitates, Phase::Open) if node.holdings.is_empty() => {
                node.phase = Phase::Exclusive(JobId(u64::MAX));
            }
            (Self::CountsTwice, _) => node.counters.small.completed *= 2,
            _ => {}
        }
    }

    /// What a ledger does not record.
    pub(crate) fn spoil_ledgers(self, nodes: &mut BTreeMap<NodeId, Node>) {
        for node in nodes.values_mut() {
            match self {
                Self::ForgetsGates if node.gate().is_some() => node.phase = Phase::Open,
                Self::ForgetsHolders => node.holdings.clear(),
                _ => {}
            }
        }
    }
}

fn promise(state: &State, kind: Kind, gpus: GpuSet) -> Holding {
    let now = ticks(state.now);
    Holding {
        shape: Some(Shape::Small),
        kind,
        stage: Stage::Reserved,
        gpus,
        since: now,
        expires: Some(now + state.pool.config().reservation_timeout),
        latest_end: None,
        evicting: false,
    }
}

/// Jobs of a shape are told only once nothing of the other shape is left.
fn withhold(state: &State, inputs: &mut Vec<Input>, shape: Shape) {
    let others = |place: Place| place != Place::Gone;
    let others = state.jobs.iter().any(|job| job.shape != Some(shape) && others(job.place));
    if others {
        inputs.retain(|input| !matches!(input, Input::Queued(job) if job.shape == shape));
        return;
    }
    let unknown = state.waiting().filter(|(id, _)| state.pool.waiting(*id).is_none());
    inputs.extend(unknown.map(|(id, _)| Input::Queued(Box::new(job(state, id)))));
}
