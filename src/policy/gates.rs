//! Pure: which nodes drain, for whom, and what becomes of a drain that lasts too long.

use super::{
    Decision, Gate, Job, JobId, Kind, Millis, Node, NodeId, OpenReason, Phase, Pool, Shape, Stage,
};

impl Pool {
    /// Closes as many gates as larges and the setting ask for, and opens the others; says whether
    /// it opened one.
    pub(super) fn assign_gates(&mut self, now: Millis, out: &mut Vec<Decision>) -> bool {
        let mut opened = self.open_unfit_gates(now, out);
        let none_waits = self.heads(Shape::Large, |_| true).is_empty();
        let reason = if none_waits { OpenReason::NoLargeWaits } else { OpenReason::NotNeeded };
        loop {
            let (mut spare, mut used) = self.share_gates(now, out);
            // What a large gives back for a node that is empty sooner may serve a later one.
            if self.spare_the_latest(&mut spare, &mut used, now, out) {
                continue;
            }
            opened |= !spare.is_empty();
            for id in spare {
                self.open_gate(id, reason, now, out);
            }
            return opened;
        }
    }

    /// Gives each large in order its gate, or closes one; returns the gates that are left over, and
    /// those that are used.
    ///
    /// The setting counts every gate, one behind a wave as well as one of a drain. Otherwise, in a
    /// pool where no node is open, each large that ends owes a wave, each wave closes a gate behind
    /// it, and while larges wait no node ever opens again: all of them alternate, and a quarter of
    /// the GPU time or more is idle. What the setting does not cover opens, and a wave there becomes
    /// open service. The larges' bound needs no more than the head's gate: its node is empty within
    /// S, and where none can be gated a large ends within L; either way some large starts in every
    /// L + S, so the k-th does within k(L + S). So the head is always served.
    fn share_gates(
        &mut self,
        now: Millis,
        out: &mut Vec<Decision>,
    ) -> (Vec<NodeId>, Vec<(JobId, NodeId)>) {
        let mut spare: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| n.gate().is_some()).map(|(&id, _)| id).collect();
        let mut used: Vec<(JobId, NodeId)> = Vec::new();
        let most = self.config.max_drains as usize;
        // Gates that are used or were closed here: with the spare ones, all that are closed.
        let mut in_use = 0;
        let mut heads = self.heads(Shape::Large, |_| true);
        // The head is never held up by gates that it cannot use: it closes its own, and one of a
        // later large opens.
        let mut head = true;
        // An earlier large waits for a node to open: no gate is kept closed for another instead, not
        // even its own. If it opened only once a further node is free, the later large could have
        // that node too, before the smalls for which it came free.
        let mut awaited = false;
        while head || in_use < most {
            let Some(job) = heads.pop_first().and_then(|key| self.at(key)) else { break };
            if !self.within_quota(job) {
                continue;
            }
            let (large, next) = (job.id, self.after(job));
            if let Some(id) = self.gate_for(job, &spare, now).filter(|_| !awaited) {
                spare.retain(|&other| other != id);
                used.push((large, id));
                in_use += 1;
                heads.extend(next);
                self.retarget(id, large, out);
            } else if (head || spare.len() + in_use < most)
                && let Some(id) = self.node_to_drain(job, now)
            {
                heads.extend(next);
                self.close_gate(id, large, now, out);
                in_use += 1;
            } else {
                awaited |= self.awaits_an_open_node(job);
            }
            head = false;
        }
        (spare, used)
    }

    /// Of more gates than larges, those stay closed whose nodes are empty soonest: any other
    /// choice keeps more GPUs idle. Says whether one was exchanged.
    fn spare_the_latest(
        &mut self,
        spare: &mut [NodeId],
        used: &mut [(JobId, NodeId)],
        now: Millis,
        out: &mut Vec<Decision>,
    ) -> bool {
        let mut exchanged = false;
        let empty = |pool: &Self, id| pool.nodes.get(&id).map(|node| empty_soonest(node, now));
        for spared in spare {
            let sooner = empty(self, *spared);
            let latest = used
                .iter_mut()
                .filter(|(large, id)| {
                    let fits = self.job(*large).is_some_and(|job| job.fits.on(*spared));
                    fits && empty(self, *id) > sooner
                })
                .max_by_key(|(_, id)| (empty(self, *id), *id));
            if let Some((large, id)) = latest {
                std::mem::swap(id, spared);
                let (id, large) = (*id, *large);
                self.retarget(id, large, out);
                exchanged = true;
            }
        }
        exchanged
    }

    fn open_unfit_gates(&mut self, now: Millis, out: &mut Vec<Decision>) -> bool {
        let unfit: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.gate().is_some() && !n.takes_larges(self.config.gpus_per_node))
            .map(|(&id, _)| id)
            .collect();
        for &id in &unfit {
            self.open_gate(id, OpenReason::NodeUnfit, now, out);
        }
        !unfit.is_empty()
    }

    /// The closed gate that serves a large: its own, else the one whose node is empty soonest.
    fn gate_for(&self, large: &Job, spare: &[NodeId], now: Millis) -> Option<NodeId> {
        let usable = spare.iter().copied().filter(|&id| large.fits.on(id));
        usable
            .filter_map(|id| self.nodes.get(&id).map(|node| (id, node)))
            .map(|(id, node)| {
                let of_another = node.gate().is_none_or(|gate| gate.job != large.id);
                (of_another, empty_soonest(node, now), id)
            })
            .min()
            .map(|(_, _, id)| id)
    }

    /// The open node that is empty soonest: least latest end, then fewest holders.
    fn node_to_drain(&self, large: &Job, now: Millis) -> Option<NodeId> {
        self.nodes
            .iter()
            .filter(|&(&id, node)| {
                let usable = node.is_open() && node.takes_larges(self.config.gpus_per_node);
                usable && large.fits.on(id) && !node.holdings.is_empty() && self.may_close(id, 0)
            })
            .min_by_key(|&(&id, node)| (empty_soonest(node, now), node.holdings.len(), id))
            .map(|(&id, _)| id)
    }

    /// Whether enough nodes stay open if this one closes: as many as the setting says, and `kept`
    /// more.
    pub(super) fn may_close(&self, id: NodeId, kept: u32) -> bool {
        let others = self
            .nodes
            .iter()
            .filter(|&(&other, node)| other != id && node.is_open() && node.spec.schedulable);
        let least = self.config.keep_open.saturating_add(kept);
        self.config.keep_open == 0 || others.count() >= least as usize
    }

    /// Whether a large waits for an open node to close, which it may only while another is open.
    pub(super) fn needs_an_open_node(&self, large: &Job) -> bool {
        let fitting = || self.nodes.iter().filter(|&(&id, _)| large.fits.on(id)).map(|(_, n)| n);
        self.config.keep_open > 0
            && !fitting().any(|node| node.gate().is_some())
            && fitting().any(|n| n.is_open() && n.takes_larges(self.config.gpus_per_node))
    }

    /// Whether nothing but the setting keeps a large from draining a node.
    pub(super) fn awaits_an_open_node(&self, large: &Job) -> bool {
        let open = |(id, node): (&NodeId, &Node)| {
            let usable = node.is_open() && node.takes_larges(self.config.gpus_per_node);
            large.fits.on(*id) && usable
        };
        self.needs_an_open_node(large)
            && !self.nodes.iter().any(|(id, node)| open((id, node)) && self.may_close(*id, 0))
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
        if node.holdings.values().any(|holding| holding.kind == Kind::Backfill) {
            node.given_up = Some(now);
        }
        node.enter(Phase::Open, now);
        out.push(Decision::GateOpened { node: id, job: gate.job, reason });
    }

    pub(super) fn report_overdue(&mut self, now: Millis, out: &mut Vec<Decision>) {
        let due: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| self.overdue_at(node).is_some_and(|at| at <= now))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let (Phase::Draining(gate) | Phase::Wave { gate, .. }) = &mut node.phase else {
                continue;
            };
            gate.overdue = true;
            let job = gate.job;
            let blockers: Vec<JobId> = node.holdings.keys().copied().collect();
            out.push(Decision::DrainOverdue { node: id, job, blockers });
        }
        if self.config.evict_overdue {
            self.evict_overdue(out);
        }
    }

    /// Each holder of an overdue drain once, also where eviction was allowed only later.
    fn evict_overdue(&mut self, out: &mut Vec<Decision>) {
        for (&id, node) in &mut self.nodes {
            if !node.gate().is_some_and(|gate| gate.overdue) {
                continue;
            }
            for (&job, holding) in &mut node.holdings {
                if !holding.evicting && holding.stage < Stage::Releasing {
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
        by_setting.or(by_limits)
    }
}

/// Orders nodes by when they are empty at the latest, those of which nobody knows last.
fn empty_soonest(node: &Node, now: Millis) -> Millis {
    node.latest_end(now).unwrap_or(Millis(u64::MAX))
}
