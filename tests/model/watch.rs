//! What the rule is seen to do, compared with what was so before.

use sluice::policy::{
    Credit, Decision, Holding, JobId, Kind, NodeId, OpenReason, Phase, Shape, Stage,
    UnreserveReason,
};

use super::setup::ticks;
use super::state::{Fault, Grip, JobFact, Marks, Place, State};
use super::steps::Rule;
use super::world::{grip_mut, waiting_of};

impl Rule {
    /// Compares what the ledgers hold now with what was so before the rule decided.
    pub(super) fn observe(&self, before: &State, state: &mut State) {
        let mut waves = vec![0_u32; state.nodes.len()];
        let ids: Vec<JobId> = state.numbered().map(|(id, _)| id).collect();
        for id in ids {
            let now = state.pool.node_of(id).zip(state.pool.holding(id).copied());
            let Some(fact) = state.job(id).copied() else { continue };
            match (fact.place, now) {
                (Place::Waits, Some((node, holding))) => {
                    self.admitted(before, state, id, node, &holding, &mut waves);
                }
                (Place::Holds(grip), Some((node, holding))) => {
                    let same = grip.node == node.0 && ticks(grip.since) == holding.since;
                    if !same && grip.stage == Stage::Reserved {
                        self.admitted(before, state, id, node, &holding, &mut waves);
                    } else if !same || holding.gpus != grip.gpus && moved_in_vain(&fact, grip) {
                        state.fault.get_or_insert(Fault::TakenFromRunning);
                    } else if let Some(grip) = grip_mut(state, id) {
                        grip.gpus = holding.gpus;
                    }
                }
                (Place::Holds(grip), None) if grip.stage == Stage::Reserved => {
                    if let Some(job) = state.job_mut(id) {
                        job.place = Place::Waits;
                    }
                }
                (Place::Holds(_), None) => {
                    state.fault.get_or_insert(Fault::TakenFromRunning);
                }
                (Place::Gone, Some(_)) => {
                    state.fault.get_or_insert(Fault::NotWaiting);
                }
                (Place::Waits | Place::Gone, None) => {}
            }
        }
        if self.setup.bounds && waves.iter().any(|&wave| wave > 0) {
            for large in waiting_of(state, Shape::Large) {
                large.passed += 1;
            }
        }
        if waves.iter().any(|&wave| wave > self.setup.config.wave_size) {
            state.fault.get_or_insert(Fault::WaveTooLarge);
        }
    }

    fn admitted(
        &self,
        before: &State,
        state: &mut State,
        id: JobId,
        node: NodeId,
        holding: &Holding,
        waves: &mut [u32],
    ) {
        let since = state.now;
        let Some(job) = state.job_mut(id) else { return };
        let end = job.limit.map(|limit| since + limit);
        let reserved = Stage::Reserved;
        let grip =
            Grip { node: node.0, gpus: holding.gpus, stage: reserved, since, end, evicted: false };
        *job = JobFact { place: Place::Holds(grip), rank: 0, passed: 0, overtaken: 0, ..*job };
        (job.due, job.told, job.tells, job.by_place) = (None, None, None, false);
        if job.shape == Some(Shape::Large) {
            return;
        }
        if self.setup.bounds {
            for large in waiting_of(state, Shape::Large) {
                large.overtaken += 1;
            }
        }
        let open = state.pool.nodes().get(&node).is_some_and(|node| node.phase == Phase::Open);
        let fault = match holding.kind {
            Kind::Direct => (!open).then_some(Fault::BehindGate),
            Kind::Wave => {
                waves[node.0 as usize] += 1;
                (!large_left(before, state, node.0)).then_some(Fault::WaveUnearned)
            }
            Kind::Backfill => {
                state.marks.set(Marks::BACKFILLED);
                (!self.ends_in_time(state, id, grip)).then_some(Fault::BehindGate)
            }
            Kind::Foreign => Some(Fault::BehindGate),
        };
        if let Some(fault) = fault {
            state.fault.get_or_insert(fault);
        }
    }

    /// Whether a small that was let in behind a gate is over before the others there are.
    fn ends_in_time(&self, state: &State, id: JobId, grip: Grip) -> bool {
        let mut others = state.grips_on(grip.node).filter(|(other, _, _)| *other != id);
        let longest = others.try_fold(0, |most, (_, _, other)| other.end.map(|end| most.max(end)));
        let in_time = grip.end.zip(longest).is_some_and(|(end, longest)| end <= longest);
        self.setup.config.backfill && in_time
    }
}

/// Whether a large has left a node in this step: its end is what a wave is owed for.
fn large_left(before: &State, state: &State, node: u32) -> bool {
    let was: Vec<JobId> = before
        .grips_on(node)
        .filter(|(_, job, _)| job.shape == Some(Shape::Large))
        .map(|(id, _, _)| id)
        .collect();
    was.iter().any(|&id| !state.grips_on(node).any(|(other, _, _)| other == id))
}

/// Whether the GPUs of somebody changed who has started on them.
fn moved_in_vain(fact: &JobFact, grip: Grip) -> bool {
    fact.shape.is_some() && grip.stage >= Stage::Running
}

/// What is worth being reached, by the rule's own words.
pub(super) fn note(state: &mut State, decision: &Decision) {
    let mark = match *decision {
        Decision::CreditSettled { credit, .. } => match credit {
            Credit::NoLargeWaits => Marks::CREDIT_CONSUMED,
            Credit::OtherNodeOpen => Marks::OTHER_OPEN,
            Credit::TurnContinues => Marks::TURN_CONTINUES,
            Credit::NodeUnfit => Marks::UNFIT,
            Credit::OtherNodeNext => Marks::OTHER_NEXT,
            Credit::Wave | Credit::NoSmallWaits => return,
        },
        Decision::GateOpened { reason: OpenReason::NodeUnfit, .. } => Marks::GATE_UNFIT,
        Decision::GateOpened { .. } => Marks::DRAIN_ABORTED,
        Decision::GateRetargeted { .. } => Marks::RETARGETED,
        Decision::Unreserved { reason, .. } => match reason {
            UnreserveReason::Expired => {
                state.left.expiries = state.left.expiries.saturating_sub(1);
                Marks::EXPIRED
            }
            UnreserveReason::BindFailed => Marks::REFUSED,
            UnreserveReason::Displaced => Marks::DISPLACED,
            UnreserveReason::NodeUnfit => Marks::UNFIT,
            UnreserveReason::NodeGone => Marks::NODE_GONE,
        },
        Decision::Evict { job, .. } => {
            if let Some(grip) = grip_mut(state, job) {
                grip.evicted = true;
            }
            Marks::EVICTED
        }
        Decision::Refused { .. } | Decision::Observed { .. } => {
            state.fault.get_or_insert(Fault::Refused);
            return;
        }
        Decision::Reserved { .. }
        | Decision::GateClosed { .. }
        | Decision::WaveStarted { .. }
        | Decision::DrainOverdue { .. } => return,
    };
    state.marks.set(mark);
}
