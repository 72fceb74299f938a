//! Pure: how facts about the world change the state, before anything is decided.

use super::{
    Decision, GpuSet, Holding, Input, Job, JobId, Kind, Millis, Node, NodeId, NodeSpec, Outcome,
    Pool, Shape, Stage, UnreserveReason, Violation, Waiting,
};

/// A large that fails sooner than this has not had its turn: the drain for it is already paid.
pub(super) const EARLY_FAILURE: Millis = Millis::from_secs(60);

impl Pool {
    pub(super) fn apply(&mut self, input: Input, now: Millis, out: &mut Vec<Decision>) {
        match input {
            Input::Released { job, outcome } => self.release(job, outcome, now, out),
            Input::Withdrawn { job } => self.withdraw(job),
            Input::NodeGone { node } => self.remove_node(node, now, out),
            Input::Configured(config) => {
                if config.check().is_ok() {
                    self.config = *config;
                }
            }
            Input::NodeChanged { node, spec } => self.change_node(node, spec, now, out),
            Input::Bound { job } => self.update(job, |holding| {
                holding.stage = holding.stage.max(Stage::Bound);
                holding.expires = None;
            }),
            Input::Started { job, latest_end } => self.start(job, latest_end),
            Input::Vanished { job } => self.update(job, |holding| holding.stage = Stage::Releasing),
            Input::Holds { job, gpus } => self.holds(job, gpus, now, out),
            Input::Foreign { job, node, count, gpus, latest_end } => {
                self.foreign(job, node, count, gpus, latest_end, now, out);
            }
            Input::BindFailed { job } => {
                self.unreserve(job, UnreserveReason::BindFailed, now, out);
            }
            Input::Queued(job) => self.enqueue(*job, now),
        }
    }

    fn update(&mut self, job: JobId, change: impl FnOnce(&mut Holding)) {
        let Some(node) = self.node_of(job) else { return };
        if let Some(holding) = self.nodes.get_mut(&node).and_then(|n| n.holdings.get_mut(&job)) {
            change(holding);
        }
    }

    fn start(&mut self, job: JobId, latest_end: Option<Millis>) {
        self.update(job, |holding| {
            holding.stage = holding.stage.max(Stage::Running);
            holding.expires = None;
            // The real start tightens the figure; it never loosens what a drain was told.
            holding.latest_end = match (holding.latest_end, latest_end) {
                (Some(promised), Some(end)) => Some(promised.min(end)),
                (promised, end) => promised.or(end),
            };
        });
    }

    fn release(&mut self, job: JobId, outcome: Outcome, now: Millis, out: &mut Vec<Decision>) {
        let Some(id) = self.node_of(job) else { return };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(holding) = node.holdings.remove(&job) else {
            out.push(Decision::Observed { node: id, violation: Violation::ReleasedTwice(job) });
            return;
        };
        self.placed.remove(&job);
        self.foreign.remove(&job);
        let Some(shape) = holding.shape else { return };
        let counters = node.counters.of(shape);
        match outcome {
            Outcome::Completed => counters.completed += 1,
            Outcome::Failed => counters.failed += 1,
            Outcome::Cancelled => counters.cancelled += 1,
        }
        if let (Shape::Large, Some(turn)) = (shape, &mut node.turn) {
            let lasted = now.since(holding.since);
            let in_vain = if holding.stage == Stage::Reserved {
                outcome != Outcome::Completed
            } else {
                outcome == Outcome::Failed && lasted < EARLY_FAILURE
            };
            turn.end(in_vain, lasted);
        }
    }

    fn withdraw(&mut self, job: JobId) {
        if let Some(waiting) = self.stop_waiting(job) {
            self.elsewhere.of(waiting.job.shape).cancelled += 1;
        }
    }

    fn enqueue(&mut self, job: Job, now: Millis) {
        let id = job.id;
        if let Some((_, known)) = self.placed.get_mut(&id) {
            // The shape of who holds GPUs is what it was promised them for.
            known.job = Job { shape: known.job.shape, ..job };
            return;
        }
        if let Some(&node) = self.foreign.get(&id) {
            // It holds GPUs already. If the rule gave them, the ledger knew of it before its pod.
            if self.holding(id).is_some_and(|holding| holding.shape == Some(job.shape)) {
                self.foreign.remove(&id);
                self.placed.insert(id, (node, job.into()));
            }
            return;
        }
        let waiting = match self.stop_waiting(id) {
            Some(known) => Waiting { job, ..known },
            None => job.into(),
        };
        self.wait(waiting, now);
    }

    fn change_node(&mut self, id: NodeId, spec: NodeSpec, now: Millis, out: &mut Vec<Decision>) {
        let spec = NodeSpec { healthy: spec.healthy.intersection(spec.gpus), ..spec };
        let node = self.nodes.entry(id).or_insert_with(|| Node::new(spec, now));
        node.spec = spec;
        let promises = node.holdings.iter().filter(|(_, h)| h.stage == Stage::Reserved);
        let unfit: Vec<JobId> = promises
            .filter(|(_, h)| {
                let whole = h.shape != Some(Shape::Large) || h.gpus == spec.gpus;
                !spec.schedulable || !h.gpus.is_within(spec.healthy) || !whole
            })
            .map(|(&job, _)| job)
            .collect();
        for job in unfit {
            if spec.schedulable {
                self.move_or_unreserve(id, job, UnreserveReason::NodeUnfit, now, out);
            } else {
                self.unreserve(job, UnreserveReason::NodeUnfit, now, out);
            }
        }
    }

    fn remove_node(&mut self, id: NodeId, now: Millis, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get(&id) else { return };
        let reserved: Vec<JobId> = node
            .holdings
            .iter()
            .filter(|(_, h)| h.stage == Stage::Reserved)
            .map(|(&job, _)| job)
            .collect();
        for job in reserved {
            self.unreserve(job, UnreserveReason::NodeGone, now, out);
        }
        let Some(mut node) = self.nodes.remove(&id) else { return };
        for (job, holding) in std::mem::take(&mut node.holdings) {
            self.placed.remove(&job);
            self.foreign.remove(&job);
            if let Some(shape) = holding.shape {
                node.counters.of(shape).failed += 1;
            }
        }
        self.elsewhere.add(&node.counters);
    }

    fn holds(&mut self, job: JobId, gpus: GpuSet, now: Millis, out: &mut Vec<Decision>) {
        let Some(id) = self.node_of(job) else { return };
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(holding) = node.holdings.get_mut(&job) else { return };
        // A node that does not say which has not said that it took them back.
        if holding.gpus == gpus || gpus.is_empty() {
            return;
        }
        holding.gpus = gpus;
        self.yield_to(id, job, gpus, now, out);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one input")]
    fn foreign(
        &mut self,
        job: JobId,
        id: NodeId,
        count: u32,
        gpus: Option<GpuSet>,
        latest_end: Option<Millis>,
        now: Millis,
        out: &mut Vec<Decision>,
    ) {
        if !self.nodes.contains_key(&id) || self.placed.get(&job).is_some_and(|(at, _)| *at == id) {
            return;
        }
        // Wherever it stood until now, it is here.
        self.unreserve(job, UnreserveReason::Displaced, now, out);
        self.stop_waiting(job);
        if self.placed.contains_key(&job) {
            return;
        }
        let nothing = gpus.map_or(count == 0, GpuSet::is_empty);
        if self.foreign.get(&job).is_some_and(|&at| at != id || nothing) {
            self.release(job, Outcome::Completed, now, out);
        }
        if nothing {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let count = count.min(node.spec.gpus.count());
        let known = node.holdings.get(&job).copied();
        let gpus = gpus.or(known.map(|h| h.gpus)).unwrap_or_else(|| node.likely_taken(count));
        let since = known.map_or(now, |h| h.since);
        let holding = Holding {
            shape: None,
            kind: Kind::Foreign,
            stage: known.map_or(Stage::Running, |h| h.stage.max(Stage::Running)),
            gpus,
            since,
            expires: None,
            latest_end,
            evicting: known.is_some_and(|h| h.evicting),
        };
        node.holdings.insert(job, holding);
        self.foreign.insert(job, id);
        if known.is_none_or(|h| h.gpus != gpus) {
            self.yield_to(id, job, gpus, now, out);
        }
    }

    /// Moves promises that have not started away from GPUs that `taker` really has.
    fn yield_to(
        &mut self,
        id: NodeId,
        taker: JobId,
        gpus: GpuSet,
        now: Millis,
        out: &mut Vec<Decision>,
    ) {
        let Some(node) = self.nodes.get(&id) else { return };
        let clashes: Vec<(JobId, Stage)> = node
            .holdings
            .iter()
            .filter(|&(&job, h)| job != taker && h.gpus.overlaps(gpus))
            .map(|(&job, h)| (job, h.stage))
            .collect();
        for (job, stage) in clashes {
            if stage < Stage::Running {
                self.move_or_unreserve(id, job, UnreserveReason::Displaced, now, out);
            }
        }
        let Some(node) = self.nodes.get(&id) else { return };
        for (&job, holding) in &node.holdings {
            if job != taker && holding.gpus.overlaps(gpus) {
                let violation = Violation::Overlap(job.min(taker), job.max(taker));
                out.push(Decision::Observed { node: id, violation });
            }
        }
    }

    /// Whether what was observed while facts came in is so now that all are in.
    pub(super) fn still_observed(&self, decision: &Decision) -> bool {
        let Decision::Observed { node, violation: Violation::Overlap(one, other) } = decision
        else {
            return true;
        };
        let gpus = |job| Some(self.nodes.get(node)?.holdings.get(job)?.gpus);
        gpus(one).zip(gpus(other)).is_some_and(|(one, other)| one.overlaps(other))
    }
}
