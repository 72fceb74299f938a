//! Pure: the state of a pool, and how facts change it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::queue::Queue;
use super::{
    Config, ConfigError, Counters, Decision, GpuSet, Holding, Input, Job, JobId, Millis, Node,
    NodeId, Stage, TenantId, UnreserveReason,
};

/// A job that waits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// The job.
    pub job: Job,
    /// Reservations of it that failed.
    pub attempts: u32,
    /// Not before then is it admitted again.
    pub retry_at: Millis,
    /// Where its last reservation was, and why that was taken back.
    pub taken_back: Option<(NodeId, UnreserveReason)>,
}

impl From<Job> for Waiting {
    fn from(job: Job) -> Self {
        Self { job, attempts: 0, retry_at: Millis::default(), taken_back: None }
    }
}

/// Queues and nodes under one policy.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) config: Config,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) smalls: Queue,
    pub(super) larges: Queue,
    pub(super) waiting: BTreeMap<JobId, Waiting>,
    /// Waiting jobs that are not admitted before a certain time.
    pub(super) standing_back: BTreeSet<(Millis, JobId)>,
    /// Jobs that hold GPUs: where, and what they were (a foreign job is not kept here).
    pub(super) placed: BTreeMap<JobId, (NodeId, Waiting)>,
    pub(super) foreign: BTreeMap<JobId, NodeId>,
    /// GPUs that jobs of a tenant with a quota hold, as of the last decision.
    pub(super) charged: BTreeMap<TenantId, u32>,
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
            smalls: Queue::default(),
            larges: Queue::default(),
            waiting: BTreeMap::new(),
            standing_back: BTreeSet::new(),
            placed: BTreeMap::new(),
            foreign: BTreeMap::new(),
            charged: BTreeMap::new(),
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
                    pool.placed.insert(job, (id, job_found.into()));
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
        ordered.sort_by_key(|input| (input.rank(), input.subject()));
        let mut out = Vec::new();
        for input in ordered {
            self.apply(input, now, &mut out);
        }
        // Jobs that swapped GPUs are told one after the other: only what is left counts.
        out.retain(|decision| self.still_observed(decision));
        out.dedup();
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
    /// becomes overdue, a holder outlasts its limit on the node that is kept for a wide small, which
    /// may then have a better one. [`Pool::step`] without inputs is to be called then.
    pub fn next_wakeup(&self, now: Millis) -> Option<Millis> {
        let expiries = self.nodes.values().flat_map(|node| {
            node.holdings.values().filter(|h| h.stage == Stage::Reserved).filter_map(|h| h.expires)
        });
        let retries = self.standing_back.first().map(|&(retry_at, _)| retry_at);
        let overdue = self.nodes.values().filter_map(|node| self.overdue_at(node));
        let kept = self.kept(now).and_then(|(node, _)| self.nodes.get(&node));
        let outlasts = kept.into_iter().flat_map(|node| node.holdings.values());
        let outlasts = outlasts.filter_map(|h| h.latest_end).filter(|&end| end >= now);
        let outlasts = outlasts.map(|end| end + Millis(1));
        expiries.chain(retries).chain(overdue).chain(outlasts).min().map(|at| at.max(now))
    }

    /// GPUs that a tenant's jobs hold.
    pub(super) fn tenant_gpus(&self, tenant: TenantId) -> u32 {
        self.charged.get(&tenant).copied().unwrap_or_default()
    }

    /// Charges GPUs to a tenant, if it has a quota.
    pub(super) fn charge(&mut self, tenant: TenantId, gpus: GpuSet) {
        if self.config.quotas.contains_key(&tenant) {
            *self.charged.entry(tenant).or_default() += gpus.count();
        }
    }

    /// Counts what each tenant with a quota holds: facts may have changed any of it.
    pub(super) fn charge_all(&mut self) {
        self.charged.clear();
        if self.config.quotas.is_empty() {
            return;
        }
        let held: Vec<(TenantId, GpuSet)> = self
            .placed
            .iter()
            .filter_map(|(&job, (_, waiting))| Some((waiting.job.tenant, self.holding(job)?.gpus)))
            .collect();
        for (tenant, gpus) in held {
            self.charge(tenant, gpus);
        }
    }
}
