//! Pure: the decision, once per step, after the facts of one instant are in.

use std::ops::Bound;

use super::invariants::check_commit;
use super::{
    Credit, Decision, Gate, GpuSet, Holding, Job, JobId, Kind, Millis, Node, NodeId, OpenReason,
    Phase, Pool, QueueKey, Shape, Stage, Turn, UnreserveReason,
};

/// Larges that may fail at once in one turn without ending it.
const EARLY_FAILURES_MAX: u32 = 3;
/// How many waiting smalls are looked at for one gap behind a gate: bounds the cost of a step.
const BACKFILL_DEPTH: usize = 300;

impl Pool {
    /// Decides until nothing more can be decided.
    pub(super) fn dispatch(&mut self, now: Millis, out: &mut Vec<Decision>) {
        self.expire_reservations(now, out);
        self.settle_ended_larges(now, out);
        if !self.config.paused {
            self.place_larges(now, out);
            self.assign_gates(now, out);
            self.place_smalls(now, out);
            if self.config.backfill {
                self.backfill(now, out);
            }
        }
        self.report_overdue(now, out);
    }

    fn expire_reservations(&mut self, now: Millis, out: &mut Vec<Decision>) {
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

    /// Credit exists only at the instant of a large's end: it becomes a wave now or is gone.
    fn settle_ended_larges(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let ended: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| {
                matches!(node.phase, Phase::Exclusive(job) if !node.holdings.contains_key(&job))
            })
            .map(|(&id, _)| id)
            .collect();
        for id in ended {
            let (credit, next) = self.credit(id, now);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.enter(Phase::Open, now);
                match credit {
                    // The turn goes on: whoever is placed next decides what becomes of it.
                    Credit::TurnContinues | Credit::OtherNodeOpen | Credit::NoSmallWaits => {}
                    Credit::Wave | Credit::NoLargeWaits | Credit::NodeUnfit => node.turn = None,
                }
            }
            out.push(Decision::CreditSettled { node: id, credit });
            if let (Credit::Wave, Some(next)) = (credit, next) {
                self.start_wave(id, next, now, out);
            }
        }
    }

    /// What a large's end on a node gives the smalls, and the large that is next there.
    fn credit(&self, id: NodeId, now: Millis) -> (Credit, Option<JobId>) {
        let Some(node) = self.nodes.get(&id) else { return (Credit::NodeUnfit, None) };
        if !node.spec.schedulable || self.config.paused {
            return (Credit::NodeUnfit, None);
        }
        let Some(next) = self.runnable(Shape::Large, now).find(|job| job.fits.on(id)) else {
            return (Credit::NoLargeWaits, None);
        };
        let small = self.runnable(Shape::Small, now).find(|job| job.fits.on(id));
        let Some(small) = small else { return (Credit::NoSmallWaits, Some(next.id)) };
        let credit = if self.another_serves(small, id) {
            Credit::OtherNodeOpen
        } else if self.turn_continues(node, next, now) {
            Credit::TurnContinues
        } else {
            Credit::Wave
        };
        (credit, Some(next.id))
    }

    fn another_serves(&self, small: &Job, than: NodeId) -> bool {
        self.nodes.iter().any(|(&id, node)| {
            let serves = node.is_open() && node.spec.schedulable && small.fits.on(id);
            id != than && serves && !node.spec.gpus.intersection(node.spec.healthy).is_empty()
        })
    }

    fn turn_continues(&self, node: &Node, next: &Job, now: Millis) -> bool {
        let Some(turn) = &node.turn else { return false };
        let in_time = match (self.config.turn, next.limit) {
            (Some(budget), Some(limit)) => now + limit <= turn.since + budget,
            _ => false,
        };
        in_time || (turn.failed_early && turn.early_failures <= EARLY_FAILURES_MAX)
    }

    fn start_wave(&mut self, id: NodeId, next: JobId, now: Millis, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let gate = Gate { job: next, since: now, overdue: false };
        node.enter(Phase::Wave { admitted: 0, gate }, now);
        let (mut admitted, mut last) = (0, None);
        while admitted < self.config.wave_size {
            let Some(small) = self.next_runnable(Shape::Small, last, now) else { break };
            last = Some(small.queue_key());
            let (job, fits) = (small.id, small.fits.on(id));
            if fits && self.within_quota(job) && self.reserve_small(job, id, Kind::Wave, now, out) {
                admitted += 1;
            }
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if admitted == 0 {
            node.enter(Phase::Open, now);
        } else {
            node.enter(Phase::Wave { admitted, gate }, now);
            out.push(Decision::WaveStarted { node: id, admitted, next });
        }
    }

    /// An empty node takes the first large that fits it, whichever gate was closed for it.
    fn place_larges(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let mut last = None;
        while self.nodes.keys().any(|&id| self.empty_for_larges(id)) {
            let Some(job) = self.next_runnable(Shape::Large, last, now) else { break };
            last = Some(job.queue_key());
            let large = job.id;
            let best = self
                .nodes
                .iter()
                .filter(|&(&id, _)| job.fits.on(id) && self.empty_for_larges(id))
                // A drained node first, its own before another's: an empty open one still serves.
                .min_by_key(|&(&id, node)| {
                    (node.gate().map_or(2, |g| u8::from(g.job != large)), id)
                })
                .map(|(&id, node)| (id, node.spec.gpus));
            let Some((id, gpus)) = best else { continue };
            if self.within_quota(large) && self.reserve(large, id, gpus, Kind::Direct, now, out) {
                let Some(node) = self.nodes.get_mut(&id) else { continue };
                node.enter(Phase::Exclusive(large), now);
                let turn = Turn { since: now, early_failures: 0, failed_early: false };
                node.turn = Some(node.turn.unwrap_or(turn));
            }
        }
    }

    fn empty_for_larges(&self, id: NodeId) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        node.holdings.is_empty()
            && node.takes_larges(self.config.gpus_per_node)
            && !matches!(node.phase, Phase::Exclusive(_))
            && (!node.is_open() || self.may_close(id))
    }

    /// Whether enough nodes stay open for smalls if this one closes.
    fn may_close(&self, id: NodeId) -> bool {
        let others = self
            .nodes
            .iter()
            .filter(|&(&other, node)| other != id && node.is_open() && node.spec.schedulable);
        self.config.keep_open == 0 || others.count() >= self.config.keep_open as usize
    }

    /// Closes as many gates as larges and the setting ask for, and opens the others.
    fn assign_gates(&mut self, now: Millis, out: &mut Vec<Decision>) {
        self.open_unfit_gates(now, out);
        let mut unmatched: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| n.gate().is_some()).map(|(&id, _)| id).collect();
        let mut closed = unmatched.len();
        let (mut last, mut head) = (None, true);
        // The head is never held up by a gate that it cannot use: it may close one more.
        while head || !unmatched.is_empty() || closed < self.config.max_drains as usize {
            let Some(job) = self.next_runnable(Shape::Large, last, now) else { break };
            last = Some(job.queue_key());
            let large = job.id;
            if !self.within_quota(large) {
                continue;
            }
            if let Some(id) = self.gate_for(large, &unmatched, now) {
                unmatched.retain(|&other| other != id);
                self.retarget(id, large, out);
            } else if (head || closed < self.config.max_drains as usize)
                && let Some(id) = self.node_to_drain(large, now)
            {
                self.close_gate(id, large, now, out);
                closed += 1;
            }
            head = false;
        }
        let reason = if last.is_none() { OpenReason::NoLargeWaits } else { OpenReason::NotNeeded };
        for id in unmatched {
            self.open_gate(id, reason, now, out);
        }
    }

    fn open_unfit_gates(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let unfit: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.gate().is_some() && !n.takes_larges(self.config.gpus_per_node))
            .map(|(&id, _)| id)
            .collect();
        for id in unfit {
            self.open_gate(id, OpenReason::NodeUnfit, now, out);
        }
    }

    /// The closed gate that serves a large: its own, else the one whose node is empty first.
    fn gate_for(&self, large: JobId, unmatched: &[NodeId], now: Millis) -> Option<NodeId> {
        let job = &self.waiting.get(&large)?.job;
        let usable = unmatched.iter().copied().filter(|&id| job.fits.on(id));
        usable
            .filter_map(|id| self.nodes.get(&id).map(|node| (id, node)))
            .min_by_key(|&(id, node)| {
                let foreign_gate = node.gate().is_none_or(|gate| gate.job != large);
                (foreign_gate, node.latest_end(now).unwrap_or(Millis(u64::MAX)), id)
            })
            .map(|(id, _)| id)
    }

    /// The open node that is empty soonest: least latest end, then fewest holders.
    fn node_to_drain(&self, large: JobId, now: Millis) -> Option<NodeId> {
        let job = &self.waiting.get(&large)?.job;
        self.nodes
            .iter()
            .filter(|&(&id, node)| {
                let usable = node.is_open() && node.takes_larges(self.config.gpus_per_node);
                usable && job.fits.on(id) && !node.holdings.is_empty() && self.may_close(id)
            })
            .min_by_key(|&(&id, node)| {
                let end = node.latest_end(now).unwrap_or(Millis(u64::MAX));
                (end, node.holdings.len(), id)
            })
            .map(|(&id, _)| id)
    }

    fn close_gate(&mut self, id: NodeId, job: JobId, now: Millis, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.enter(Phase::Draining(Gate { job, since: now, overdue: false }), now);
        node.turn = None;
        out.push(Decision::GateClosed { node: id, job, latest_end: node.latest_end(now) });
    }

    fn retarget(&mut self, id: NodeId, to: JobId, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let (Phase::Draining(gate) | Phase::Wave { gate, .. }) = &mut node.phase else { return };
        if gate.job != to {
            out.push(Decision::GateRetargeted { node: id, from: gate.job, to });
            gate.job = to;
        }
    }

    fn open_gate(&mut self, id: NodeId, reason: OpenReason, now: Millis, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(gate) = node.gate().copied() else { return };
        node.enter(Phase::Open, now);
        out.push(Decision::GateOpened { node: id, job: gate.job, reason });
    }

    /// Smalls in order, each to the open node that it keeps busy longest beyond what is there
    /// least, so that whole nodes come free.
    fn place_smalls(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let mut room = self.open_room();
        let mut last = None;
        while room > 0 {
            let Some(job) = self.next_runnable(Shape::Small, last, now) else { break };
            last = Some(job.queue_key());
            let small = job.id;
            let Some(id) = self.best_open_node(job, now) else { continue };
            if self.within_quota(small) && self.reserve_small(small, id, Kind::Direct, now, out) {
                room -= 1;
                if let Some(node) = self.nodes.get_mut(&id) {
                    // Unrestricted service consumes what the last large's turn left.
                    node.turn = None;
                }
            }
        }
    }

    fn open_room(&self) -> u32 {
        let open = self.nodes.values().filter(|node| node.is_open() && node.spec.schedulable);
        open.map(|node| node.free().count()).sum()
    }

    fn best_open_node(&self, job: &Job, now: Millis) -> Option<NodeId> {
        self.nodes
            .iter()
            .filter(|&(&id, node)| {
                let open = node.is_open() && node.spec.schedulable && job.fits.on(id);
                open && !node.free().is_empty()
            })
            .min_by_key(|&(&id, node)| {
                // A node that has no known end, or a job that has none, moves nothing.
                let moves = match (node.latest_end(now), job.limit) {
                    (Some(end), Some(limit)) => (now + limit).since(end),
                    _ => Millis::default(),
                };
                (moves, std::cmp::Reverse(node.held().count()), id)
            })
            .map(|(&id, _)| id)
    }

    /// Smalls whose limit ends no later than the drain behind whose gate they start.
    fn backfill(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let gated: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.gate().is_some() && n.spec.schedulable && !n.free().is_empty())
            .map(|(&id, _)| id)
            .collect();
        for id in gated {
            let Some(drained) = self.nodes.get(&id).and_then(|node| node.latest_end(now)) else {
                continue;
            };
            let fitting: Vec<JobId> = self
                .runnable(Shape::Small, now)
                .take(BACKFILL_DEPTH)
                .filter(|job| job.fits.on(id))
                .filter(|job| job.limit.is_some_and(|limit| now + limit <= drained))
                .map(|job| job.id)
                .collect();
            for small in fitting {
                let room = self.nodes.get(&id).is_some_and(|node| !node.free().is_empty());
                if room && self.within_quota(small) {
                    self.reserve_small(small, id, Kind::Backfill, now, out);
                }
            }
        }
    }

    fn report_overdue(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let due: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| self.overdue_at(node).is_some_and(|at| at <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            let evict = self.config.evict_overdue;
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let (Phase::Draining(gate) | Phase::Wave { gate, .. }) = &mut node.phase else {
                continue;
            };
            gate.overdue = true;
            let job = gate.job;
            let blockers: Vec<JobId> = node.holdings.keys().copied().collect();
            out.push(Decision::DrainOverdue { node: id, job, blockers });
            for (&job, holding) in &mut node.holdings {
                if evict && !holding.evicting && holding.stage < Stage::Releasing {
                    holding.evicting = true;
                    out.push(Decision::Evict { job, node: id });
                }
            }
        }
    }

    /// When a drain becomes overdue, unless it was found so already.
    pub(super) fn overdue_at(&self, node: &Node) -> Option<Millis> {
        let gate = node.gate().filter(|gate| !gate.overdue && !node.holdings.is_empty())?;
        let by_limits = node.latest_end(Millis::default()).map(|end| end + Millis(1));
        let by_setting = self.config.drain_limit.map(|limit| gate.since + limit);
        match (by_setting, by_limits) {
            (Some(setting), _) => Some(setting),
            (None, limits) => limits,
        }
    }

    /// The first job of a shape after `last` that may be admitted now. Loops that admit as they go
    /// walk the queue with it, so a step costs what it admits and not what waits.
    fn next_runnable(&self, shape: Shape, last: Option<QueueKey>, now: Millis) -> Option<&Job> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.queue_of(shape)
            .range((from, Bound::Unbounded))
            .filter_map(|(_, id)| self.waiting.get(id))
            .filter(|waiting| waiting.retry_at <= now)
            .map(|waiting| &waiting.job)
            .find(|job| self.could_fit(job))
    }

    /// Jobs of a shape that may be admitted now, in order: not standing back, and with a node in
    /// the pool that could ever take them.
    pub(super) fn runnable(&self, shape: Shape, now: Millis) -> impl Iterator<Item = &Job> {
        self.queue(shape)
            .filter(move |waiting| waiting.retry_at <= now)
            .map(|waiting| &waiting.job)
            .filter(|job| self.could_fit(job))
    }

    /// Whether a node of the pool takes new work, fits the job and is whole enough for its shape.
    pub(super) fn could_fit(&self, job: &Job) -> bool {
        self.nodes.iter().any(|(&id, node)| {
            job.fits.on(id)
                && match job.shape {
                    Shape::Small => node.spec.schedulable,
                    Shape::Large => node.takes_larges(self.config.gpus_per_node),
                }
        })
    }

    pub(super) fn within_quota(&self, job: JobId) -> bool {
        let Some(job) = self.waiting.get(&job).map(|waiting| &waiting.job) else { return false };
        self.config.quotas.get(&job.tenant).is_none_or(|&most| {
            let asked = match job.shape {
                Shape::Small => 1,
                Shape::Large => self.config.gpus_per_node,
            };
            self.tenant_gpus(job.tenant) + asked <= most
        })
    }

    fn reserve_small(
        &mut self,
        job: JobId,
        id: NodeId,
        kind: Kind,
        now: Millis,
        out: &mut Vec<Decision>,
    ) -> bool {
        let gpu = self.nodes.get(&id).and_then(|node| node.free().lowest(1));
        let reserved = gpu.is_some_and(|gpu| self.reserve(job, id, gpu, kind, now, out));
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
    fn reserve(
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
        let (shape, key) = (waiting.job.shape, waiting.job.queue_key());
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
        match shape {
            Shape::Small => self.smalls.remove(&key),
            Shape::Large => self.larges.remove(&key),
        };
        if let Some(waiting) = self.waiting.remove(&job) {
            self.placed.insert(job, (id, waiting));
        }
        out.push(Decision::Reserved { job, node: id, gpus, kind });
        true
    }
}
