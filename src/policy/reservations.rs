//! Pure: promises of GPUs, made in one place and taken back in one place.

use super::invariants::check_commit;
use super::{
    Decision, GpuSet, Holding, JobId, Kind, Millis, NodeId, Phase, Pool, Shape, Stage,
    UnreserveReason,
};

/// How long a job stands back after its first failed reservation; doubled for each further one.
const BACK_OFF: Millis = Millis::from_secs(5);
/// The longest back-off.
const BACK_OFF_MAX: Millis = Millis::from_secs(300);

impl Pool {
    pub(super) fn reserve_small(
        &mut self,
        job: JobId,
        id: NodeId,
        kind: Kind,
        now: Millis,
        out: &mut Vec<Decision>,
    ) -> bool {
        let asked = self.waiting.get(&job).map(|waiting| self.asked(waiting.job.shape));
        let gpus = self.nodes.get(&id).zip(asked).and_then(|(node, n)| node.free().lowest(n));
        let reserved = gpus.is_some_and(|gpus| self.reserve(job, id, gpus, kind, now, out));
        if reserved
            && kind == Kind::Wave
            && let Some(Phase::Wave { admitted, .. }) =
                self.nodes.get_mut(&id).map(|node| &mut node.phase)
        {
            *admitted += 1;
        }
        reserved
    }

    /// The one place where GPUs are promised. A commit that would break an invariant is refused
    /// and reported, and changes nothing.
    pub(super) fn reserve(
        &mut self,
        job: JobId,
        id: NodeId,
        gpus: GpuSet,
        kind: Kind,
        now: Millis,
        out: &mut Vec<Decision>,
    ) -> bool {
        let Some(waiting) = self.waiting.get(&job) else { return false };
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let shape = waiting.job.shape;
        let holding = Holding {
            shape: Some(shape),
            kind,
            stage: Stage::Reserved,
            gpus,
            since: now,
            expires: Some(now + self.config.reservation_timeout),
            latest_end: waiting.job.limit.map(|limit| now + limit),
            evicting: false,
        };
        if let Err(violation) = check_commit(&self.config, node, job, &holding, now) {
            out.push(Decision::Refused { job, node: id, violation });
            return false;
        }
        node.holdings.insert(job, holding);
        node.counters.of(shape).admitted += 1;
        if let Some(waiting) = self.stop_waiting(job) {
            self.charge(waiting.job.tenant, gpus);
            self.placed.insert(job, (id, waiting));
        }
        out.push(Decision::Reserved { job, node: id, gpus, kind });
        true
    }

    pub(super) fn expire_reservations(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let expired: Vec<JobId> = self
            .nodes
            .values()
            .flat_map(|node| &node.holdings)
            .filter(|(_, h)| h.stage == Stage::Reserved && h.expires.is_some_and(|at| at <= now))
            .map(|(&job, _)| job)
            .collect();
        for job in expired {
            self.unreserve(job, UnreserveReason::Expired, now, out);
        }
    }

    /// Gives a promise other GPUs of the same node; where there are none and it is not bound yet,
    /// takes it back.
    pub(super) fn move_or_unreserve(
        &mut self,
        id: NodeId,
        job: JobId,
        reason: UnreserveReason,
        now: Millis,
        out: &mut Vec<Decision>,
    ) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(mut holding) = node.holdings.remove(&job) else { return };
        let free = node.free();
        let (stage, kind) = (holding.stage, holding.kind);
        let movable = holding.shape != Some(Shape::Large);
        if let Some(gpus) = free.lowest(holding.gpus.count()).filter(|_| movable) {
            holding.gpus = gpus;
            node.holdings.insert(job, holding);
            out.push(Decision::Reserved { job, node: id, gpus, kind });
            return;
        }
        node.holdings.insert(job, holding);
        if stage == Stage::Reserved {
            self.unreserve(job, reason, now, out);
        }
    }

    /// Takes a promise back; the job waits again, after a back-off where it was its own doing.
    /// A node that was promised to a large keeps its phase until the credit is settled.
    pub(super) fn unreserve(
        &mut self,
        job: JobId,
        reason: UnreserveReason,
        now: Millis,
        out: &mut Vec<Decision>,
    ) {
        let Some(id) = self.node_of(job) else { return };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(holding) = node.holdings.get(&job).copied() else { return };
        if holding.stage > Stage::Reserved {
            return;
        }
        node.holdings.remove(&job);
        if let Some(shape) = holding.shape {
            let counters = node.counters.of(shape);
            counters.admitted = counters.admitted.saturating_sub(1);
        }
        if let (Some(Shape::Large), Some(turn)) = (holding.shape, &mut node.turn) {
            turn.end(true, now.since(holding.since));
        }
        // A promise of which only the ledger knows has nobody who could wait again.
        self.foreign.remove(&job);
        let mut retry_at = now;
        if let Some((_, mut waiting)) = self.placed.remove(&job) {
            match reason {
                UnreserveReason::Expired | UnreserveReason::BindFailed => {
                    waiting.attempts = waiting.attempts.saturating_add(1);
                    retry_at = now + back_off(waiting.attempts);
                }
                UnreserveReason::NodeUnfit
                | UnreserveReason::Displaced
                | UnreserveReason::NodeGone => {}
            }
            waiting.retry_at = retry_at;
            waiting.taken_back = Some((id, reason));
            self.wait(waiting, now);
        }
        out.push(Decision::Unreserved { job, node: id, reason, retry_at });
    }
}

/// How long a job stands back after so many failed reservations.
fn back_off(attempts: u32) -> Millis {
    let doublings = attempts.saturating_sub(1).min(16);
    Millis(BACK_OFF.0 << doublings).min(BACK_OFF_MAX)
}
