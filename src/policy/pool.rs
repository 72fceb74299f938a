//! Pure: the state of a pool, and how facts change it.

use std::collections::BTreeMap;

use super::{
    Config, ConfigError, Counters, Decision, GpuSet, Holding, Input, Job, JobId, Kind, Millis,
    Node, NodeId, NodeSpec, Outcome, Phase, QueueKey, Shape, Stage, TenantId, UnreserveReason,
    Violation,
};

/// A large that fails sooner than this has not had its turn: the drain for it is already paid.
pub(super) const EARLY_FAILURE: Millis = Millis::from_secs(60);
/// How long a job stands back after its first failed reservation; doubled for each further one.
const BACK_OFF: Millis = Millis::from_secs(5);
/// The longest back-off.
const BACK_OFF_MAX: Millis = Millis::from_secs(300);

/// A job that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The job.
    pub job: Job,
    /// Reservations of it that failed.
    pub attempts: u32,
    /// Not before then is it admitted again.
    pub retry_at: Millis,
}

/// Queues and nodes under one policy.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) config: Config,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) smalls: BTreeMap<QueueKey, JobId>,
    pub(super) larges: BTreeMap<QueueKey, JobId>,
    pub(super) waiting: BTreeMap<JobId, Waiting>,
    /// Jobs that hold GPUs: where, and what they were (a foreign job is not kept here).
    pub(super) placed: BTreeMap<JobId, (NodeId, Waiting)>,
    pub(super) foreign: BTreeMap<JobId, NodeId>,
    /// Ends that no node counts: cancelled while waiting, or on a node that is gone.
    pub(super) elsewhere: Counters,
}

impl Pool {
    /// A pool without nodes.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            nodes: BTreeMap::new(),
            smalls: BTreeMap::new(),
            larges: BTreeMap::new(),
            waiting: BTreeMap::new(),
            placed: BTreeMap::new(),
            foreign: BTreeMap::new(),
            elsewhere: Counters::default(),
        })
    }

    /// A pool as ledgers recorded it. `jobs` are those that hold GPUs of the nodes; a holding
    /// whose job is not among them is taken for foreign. What waits is told by the next step.
    pub fn restore(
        config: Config,
        nodes: BTreeMap<NodeId, Node>,
        jobs: impl IntoIterator<Item = Job>,
        elsewhere: Counters,
    ) -> Result<Self, ConfigError> {
        let mut pool = Self::new(config)?;
        let mut known: BTreeMap<JobId, Job> = jobs.into_iter().map(|job| (job.id, job)).collect();
        for (&id, node) in &nodes {
            for &job in node.holdings.keys() {
                if let Some(job_found) = known.remove(&job) {
                    let waiting =
                        Waiting { job: job_found, attempts: 0, retry_at: Millis::default() };
                    pool.placed.insert(job, (id, waiting));
                } else {
                    pool.foreign.insert(job, id);
                }
            }
        }
        pool.nodes = nodes;
        pool.elsewhere = elsewhere;
        Ok(pool)
    }

    /// Applies what happened at one instant, then decides. Inputs may be given in any order.
    /// `now` must not be before the `now` of an earlier step for waits to mean anything; a step
    /// back in time is tolerated, since wall clocks do that.
    pub fn step(&mut self, inputs: Vec<Input>, now: Millis) -> Vec<Decision> {
        let mut ordered = inputs;
        ordered.sort_by_key(Input::rank);
        let mut out = Vec::new();
        for input in ordered {
            self.apply(input, now, &mut out);
        }
        self.dispatch(now, &mut out);
        out
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The nodes, by id.
    pub fn nodes(&self) -> &BTreeMap<NodeId, Node> {
        &self.nodes
    }

    /// A job that waits.
    pub fn waiting(&self, job: JobId) -> Option<&Waiting> {
        self.waiting.get(&job)
    }

    /// The jobs of a shape that wait, in the order in which they are served.
    pub fn queue(&self, shape: Shape) -> impl Iterator<Item = &Waiting> {
        self.queue_of(shape).values().filter_map(|id| self.waiting.get(id))
    }

    /// The node on which a job holds GPUs.
    pub fn node_of(&self, job: JobId) -> Option<NodeId> {
        self.placed.get(&job).map(|(node, _)| *node).or_else(|| self.foreign.get(&job).copied())
    }

    /// The GPUs that a job holds.
    pub fn holding(&self, job: JobId) -> Option<&Holding> {
        self.nodes.get(&self.node_of(job)?)?.holdings.get(&job)
    }

    /// What is known of a job that waits or holds GPUs; nothing of a foreign one.
    pub fn job(&self, job: JobId) -> Option<&Job> {
        let waiting = self.waiting.get(&job);
        waiting.or_else(|| self.placed.get(&job).map(|(_, waiting)| waiting)).map(|w| &w.job)
    }

    /// Counters of the whole pool: of its nodes, of nodes that are gone, and of jobs cancelled
    /// while they waited.
    pub fn counters(&self) -> Counters {
        let mut sum = self.elsewhere;
        for node in self.nodes.values() {
            sum.add(&node.counters);
        }
        sum
    }

    /// The part of [`Pool::counters`] that no node's ledger holds, for [`Pool::restore`].
    pub fn counters_elsewhere(&self) -> &Counters {
        &self.elsewhere
    }

    /// When something is due without a new fact: a reservation expires, a back-off ends, a drain
    /// becomes overdue. [`Pool::step`] without inputs is to be called then.
    pub fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let expiries = self.nodes.values().flat_map(|node| {
            node.holdings.values().filter(|h| h.stage == Stage::Reserved).filter_map(|h| h.expires)
        });
        let retries = self.waiting.values().map(|waiting| waiting.retry_at);
        let overdue = self.nodes.values().filter_map(|node| self.overdue_at(node));
        let later = expiries.chain(retries.filter(|&at| at > now)).chain(overdue);
        later.min().map(|at| at.max(now))
    }

    pub(super) fn queue_of(&self, shape: Shape) -> &BTreeMap<QueueKey, JobId> {
        match shape {
            Shape::Small => &self.smalls,
            Shape::Large => &self.larges,
        }
    }

    fn queue_of_mut(&mut self, shape: Shape) -> &mut BTreeMap<QueueKey, JobId> {
        match shape {
            Shape::Small => &mut self.smalls,
            Shape::Large => &mut self.larges,
        }
    }

    /// GPUs that a tenant's jobs hold.
    pub(super) fn tenant_gpus(&self, tenant: TenantId) -> u32 {
        let jobs = self.placed.iter().filter(|(_, (_, waiting))| waiting.job.tenant == tenant);
        jobs.filter_map(|(job, _)| self.holding(*job)).map(|holding| holding.gpus.count()).sum()
    }

    fn apply(&mut self, input: Input, now: Millis, out: &mut Vec<Decision>) {
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
            Input::Queued(job) => self.enqueue(*job),
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
        if shape == Shape::Large {
            if holding.stage == Stage::Reserved {
                // It never ran: nobody owes the smalls anything for it.
                node.enter(Phase::Open, now);
            } else if let Some(turn) = &mut node.turn {
                let early = now.since(holding.since) < EARLY_FAILURE;
                turn.failed_early = outcome == Outcome::Failed && early;
                turn.early_failures += u32::from(turn.failed_early);
            }
        }
    }

    fn withdraw(&mut self, job: JobId) {
        if let Some(waiting) = self.waiting.remove(&job) {
            let shape = waiting.job.shape;
            self.queue_of_mut(shape).remove(&waiting.job.queue_key());
            self.elsewhere.of(shape).cancelled += 1;
        }
    }

    fn enqueue(&mut self, job: Job) {
        if let Some((_, waiting)) = self.placed.get_mut(&job.id) {
            waiting.job = job;
            return;
        }
        let id = job.id;
        let known = self.waiting.remove(&id);
        if let Some(old) = &known {
            self.queue_of_mut(old.job.shape).remove(&old.job.queue_key());
        }
        self.queue_of_mut(job.shape).insert(job.queue_key(), id);
        let (attempts, retry_at) =
            known.map_or((0, Millis::default()), |w| (w.attempts, w.retry_at));
        self.waiting.insert(id, Waiting { job, attempts, retry_at });
    }

    fn change_node(&mut self, id: NodeId, spec: NodeSpec, now: Millis, out: &mut Vec<Decision>) {
        let node = self.nodes.entry(id).or_insert_with(|| Node::new(spec, now));
        node.spec = spec;
        let unfit: Vec<JobId> = node
            .holdings
            .iter()
            .filter(|(_, h)| h.stage == Stage::Reserved && !h.gpus.is_within(spec.healthy))
            .map(|(&job, _)| job)
            .collect();
        for job in unfit {
            self.move_or_unreserve(id, job, UnreserveReason::NodeUnfit, now, out);
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
        if holding.gpus == gpus {
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
        if self.placed.contains_key(&job) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let count = count.min(node.spec.gpus.count());
        let known = node.holdings.get(&job).copied();
        // Where the node does not say which, the highest are taken: the rule hands out the lowest.
        let gpus = gpus.or(known.map(|h| h.gpus)).unwrap_or_else(|| {
            let free = node.free();
            free.highest(count).unwrap_or_else(|| {
                let rest = node.spec.gpus.minus(free).highest(count - free.count());
                free.union(rest.unwrap_or_default())
            })
        });
        let since = known.map_or(now, |h| h.since);
        let holding = Holding {
            shape: None,
            kind: Kind::Foreign,
            stage: Stage::Running,
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

    /// Gives a promise other GPUs of the same node; where there are none and it is not bound yet,
    /// takes it back.
    fn move_or_unreserve(
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
        let moved = holding.shape != Some(Shape::Large);
        if let Some(gpus) = free.lowest(holding.gpus.count()).filter(|_| moved) {
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
    pub(super) fn unreserve(
        &mut self,
        job: JobId,
        reason: UnreserveReason,
        now: Millis,
        out: &mut Vec<Decision>,
    ) {
        if self.holding(job).is_none_or(|holding| holding.stage > Stage::Reserved) {
            return;
        }
        let Some((id, mut waiting)) = self.placed.remove(&job) else { return };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.holdings.remove(&job);
            let counters = node.counters.of(waiting.job.shape);
            counters.admitted = counters.admitted.saturating_sub(1);
            if waiting.job.shape == Shape::Large {
                node.enter(Phase::Open, now);
            }
        }
        match reason {
            UnreserveReason::Expired | UnreserveReason::BindFailed => {
                waiting.attempts += 1;
                waiting.retry_at = now + back_off(waiting.attempts);
            }
            UnreserveReason::NodeUnfit | UnreserveReason::Displaced | UnreserveReason::NodeGone => {
                waiting.retry_at = now;
            }
        }
        let retry_at = waiting.retry_at;
        self.queue_of_mut(waiting.job.shape).insert(waiting.job.queue_key(), job);
        self.waiting.insert(job, waiting);
        out.push(Decision::Unreserved { job, node: id, reason, retry_at });
    }
}

/// How long a job stands back after so many failed reservations.
fn back_off(attempts: u32) -> Millis {
    let doublings = attempts.saturating_sub(1).min(16);
    Millis(BACK_OFF.0 << doublings).min(BACK_OFF_MAX)
}
