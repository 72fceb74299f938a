//! Pure: everything that can be said of one job at one moment, as one value: its rank, the rule
//! that holds it, what must happen first, when it starts at the latest, and what would change
//! that. Sentences, JSON and conditions are renderings of it (`src/explain`).

use serde::{Deserialize, Serialize};

use super::{
    Basis, Bound, GpuSet, Holding, Job, JobId, Millis, NoFit, Node, NodeId, Phase, Pool, Shape,
    Stage, TenantId, Wait, Waiting,
};

/// Jobs and nodes that are named one by one in an explanation; of more the rest is counted.
const NAMED_MAX: usize = 16;

/// What can be said of one job.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The job.
    pub job: JobId,
    /// The moment.
    pub now: Millis,
    /// What it is; nothing of a foreign one.
    pub known: Option<Job>,
    /// Where it stands.
    pub standing: Standing,
}

/// Whether a job waits or has its GPUs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It waits.
    Waits(Box<Waits>),
    /// It has GPUs.
    Holds(Box<Holds>),
}

/// A job that waits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Waits {
    /// Its place in its queue, from 1.
    pub place: u32,
    /// How many wait in that queue.
    pub of: u32,
    /// The rule that holds it.
    pub wait: Wait,
    /// What must happen first, in this order.
    pub needs: Vec<Need>,
    /// When it starts at the latest, and what that rests on.
    pub bound: Bound,
    /// What would change that.
    pub changes: Vec<Change>,
}

impl Waits {
    /// Takes what the job was told before for its latest start.
    pub fn promised(&mut self, told: Bound) {
        if let Basis::Outlasted(_) = self.bound.basis {
            self.bound.latest_start = told.latest_start;
        } else {
            self.bound = told;
        }
    }
}

/// A job that has GPUs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Holds {
    /// The node.
    pub node: NodeId,
    /// Its GPUs, how it came by them, how far it has come, and until when at the latest.
    pub holding: Holding,
    /// The large that waits for the node to be empty.
    pub emptied_for: Option<JobId>,
}

/// Something that must happen before a job can start.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// The settings must change: nothing else helps.
    Setting,
    /// A time must come.
    Time {
        /// Which.
        until: Millis,
    },
    /// A node must become one that the job fits.
    Fit {
        /// What is wrong with each that there is.
        nodes: Vec<(NodeId, Unfit)>,
        /// How many more there are.
        more: u32,
    },
    /// Jobs must give GPUs back.
    Ends {
        /// On this node; anywhere, if it is none in particular.
        node: Option<NodeId>,
        /// Which: those that end soonest first, those without an end last.
        holders: Vec<Holder>,
        /// How many more there are.
        more: u32,
        /// How much of it is enough.
        enough: Enough,
    },
    /// Jobs must start before it.
    Starts {
        /// Which, the next one first.
        jobs: Vec<JobId>,
        /// How many more there are.
        more: u32,
    },
    /// A job that waits must run and end.
    Runs {
        /// Which.
        job: JobId,
        /// The longest that takes, if something enforces it.
        limit: Option<Millis>,
    },
}

/// How many of some jobs must end.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enough {
    /// Every one.
    All,
    /// One.
    One,
    /// So many that this many GPUs are free.
    Gpus(u32),
}

/// A job that holds GPUs which another waits for.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Which.
    pub job: JobId,
    /// Its GPUs.
    pub gpus: GpuSet,
    /// How far it has come.
    pub stage: Stage,
    /// When it ends at the latest, if something enforces it.
    pub latest_end: Option<Millis>,
}

/// What is wrong with a node for a job.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It does not match the job's selectors, affinity and tolerations.
    NotMatched,
    /// It takes no new work.
    Unschedulable,
    /// It has so many GPUs, and the job needs another number.
    Size(u32),
    /// These GPUs are not healthy.
    Unhealthy(GpuSet),
}

/// Something that would change when a job starts, or what can be said of it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The pool admits again.
    Resume,
    /// The tenant may hold at least so many GPUs.
    Quota(TenantId, u32),
    /// What keeps it from being bound is put right.
    Binding,
    /// A node becomes fit for it.
    NodeFit(NodeId, Unfit),
    /// A node with at least so many GPUs joins.
    NodeJoins(u32),
    /// It is created anew so that it matches a node.
    Placement,
    /// Those that hold the GPUs end before their limits.
    EarlyEnds,
    /// It is created anew with a higher priority than this job's.
    Priority(JobId),
    /// Fewer nodes are kept open.
    KeepFewerOpen,
    /// The pool admits smalls behind a closed gate; its own limit is this or less.
    Backfill(Millis),
    /// Its own limit is this or less, since the pool admits smalls behind a closed gate.
    ShorterLimit(Millis),
    /// This job has a limit.
    LimitOn(JobId),
    /// The pool enforces a limit on this shape.
    LimitOf(Shape),
    /// A job of its queue with a higher priority arrives.
    Overtaken,
    /// The node that is emptied for it can take no large any more.
    NodeLost(NodeId),
    /// Those that hold up a drain that has outlasted its limit are evicted.
    Evict(NodeId),
}

/// What a change changes.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// It starts sooner, or at all.
    Sooner,
    /// A latest start can be given.
    Bounded,
    /// It starts later.
    Later,
}

impl Change {
    /// What it changes.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Overtaken | Self::NodeLost(_) => Effect::Later,
            Self::LimitOn(_) | Self::LimitOf(_) => Effect::Bounded,
            Self::Resume
            | Self::Quota(..)
            | Self::Binding
            | Self::NodeFit(..)
            | Self::NodeJoins(_)
            | Self::Placement
            | Self::EarlyEnds
            | Self::Priority(_)
            | Self::KeepFewerOpen
            | Self::Evict(_)
            | Self::Backfill(_)
            | Self::ShorterLimit(_) => Effect::Sooner,
        }
    }
}

impl Pool {
    /// What can be said of a job; nothing of one that neither waits nor holds GPUs.
    pub fn explain(&self, job: JobId, now: Millis) -> Option<Explanation> {
        let known = self.job(job).cloned();
        let standing = match self.waiting.get(&job) {
            Some(waiting) => Standing::Waits(Box::new(self.explain_wait(waiting, now)?)),
            None => Standing::Holds(Box::new(self.explain_hold(job)?)),
        };
        Some(Explanation { job, now, known, standing })
    }

    fn explain_hold(&self, job: JobId) -> Option<Holds> {
        let node = self.node_of(job)?;
        let state = self.nodes.get(&node)?;
        let holding = *state.holdings.get(&job)?;
        let emptied_for = state.gate().map(|gate| gate.job);
        Some(Holds { node, holding, emptied_for })
    }

    fn explain_wait(&self, waiting: &Waiting, now: Millis) -> Option<Waits> {
        let job = waiting.job.id;
        let (wait, mut bound) = (self.why(job, now)?, self.bound(job, now)?);
        if let Basis::Unlimited(other) = bound.basis
            && self.holding(other).is_some_and(|holding| holding.latest_end.is_some())
        {
            bound.basis = Basis::Outlasted(other);
        }
        let of = self.waiting_beside(waiting.job.shape);
        let place = self.ahead(job)?.saturating_add(1);
        let needs = self.needs(&waiting.job, &wait, now);
        let changes = self.changes(waiting, &wait, bound, now);
        Some(Waits { place, of, wait, needs, bound, changes })
    }

    fn needs(&self, job: &Job, wait: &Wait, now: Millis) -> Vec<Need> {
        match *wait {
            Wait::Paused => vec![Need::Setting],
            Wait::BackingOff { until, .. } => vec![Need::Time { until }],
            Wait::Quota { tenant, held, most } => self.needs_quota(job, tenant, held, most),
            Wait::QuotaTurn { tenant, .. } => {
                let most = self.config.quotas.get(&tenant).copied().unwrap_or(u32::MAX);
                let earlier = self.before_in_quota(job, most).map(|earlier| earlier.id);
                vec![starts(earlier.collect::<Vec<_>>().into_iter())]
            }
            Wait::NoNodeFits(_) => vec![self.needs_fit(job)],
            Wait::Behind { first, .. } => {
                let its = self.waiting.get(&first).map(|waiting| &waiting.job);
                let its = its.map(|job| self.needs_of_first(job, now)).unwrap_or_default();
                its.into_iter().chain(self.needs_turn(job)).collect()
            }
            Wait::Draining { node, .. } | Wait::Wave { node, .. } => {
                vec![self.needs_node(node, Enough::All)]
            }
            Wait::NodesHeld { .. } | Wait::KeptOpen { .. } => self.needs_a_large_to_end(job),
            Wait::GateClosed { node, job: large, .. } => {
                let limit = self.waiting.get(&large).and_then(|waiting| waiting.job.limit);
                let runs = Need::Runs { job: large, limit };
                [self.needs_node(node, Enough::All), runs]
                    .into_iter()
                    .chain(self.needs_turn(job))
                    .collect()
            }
            Wait::Exclusive { node, .. } => [self.needs_node(node, Enough::All)]
                .into_iter()
                .chain(self.needs_turn(job))
                .collect(),
            Wait::Gathering { node, free, asked, .. } => {
                vec![self.needs_node(node, Enough::Gpus(asked.saturating_sub(free)))]
            }
            Wait::Kept { node, job: wide, free } => {
                let asked = self.job(wide).map_or(0, |job| self.asked(job.shape));
                let lacking = Enough::Gpus(asked.saturating_sub(free));
                [self.needs_node(node, lacking)].into_iter().chain(self.needs_turn(job)).collect()
            }
            Wait::Busy { .. } => {
                self.needs_turn(job).into_iter().chain([self.needs_room(job)]).collect()
            }
        }
    }

    /// What the first of a queue waits for, which those behind it wait for too. It is not itself
    /// behind another.
    fn needs_of_first(&self, first: &Job, now: Millis) -> Vec<Need> {
        match self.why(first.id, now) {
            None | Some(Wait::Behind { .. }) => Vec::new(),
            Some(wait) => self.needs(first, &wait, now),
        }
    }

    fn needs_quota(&self, job: &Job, tenant: TenantId, held: u32, most: u32) -> Vec<Need> {
        let asked = self.asked(job.shape);
        if asked > most {
            return vec![Need::Setting];
        }
        let own = self.placed.iter().filter(|(_, (_, waiting))| waiting.job.tenant == tenant);
        let own = own.filter_map(|(&job, _)| Some((job, self.holding(job)?)));
        let enough = Enough::Gpus(held.saturating_add(asked).saturating_sub(most));
        vec![ends(None, own, enough)]
    }

    fn needs_fit(&self, job: &Job) -> Need {
        let unfit = |(&id, node): (&NodeId, &Node)| Some((id, self.unfit(job, id, node)?));
        let all: Vec<(NodeId, Unfit)> = self.nodes.iter().filter_map(unfit).collect();
        let more = count(all.len().saturating_sub(NAMED_MAX));
        Need::Fit { nodes: all.into_iter().take(NAMED_MAX).collect(), more }
    }

    fn unfit(&self, job: &Job, id: NodeId, node: &Node) -> Option<Unfit> {
        let (asked, has) = (self.asked(job.shape), node.spec.gpus.count());
        let wrong_size = if job.shape.is_small() { has < asked } else { has != asked };
        let sick = node.spec.gpus.minus(node.spec.healthy);
        let too_few = if job.shape.is_small() { has - sick.count() < asked } else { true };
        if !job.fits.on(id) {
            Some(Unfit::NotMatched)
        } else if wrong_size {
            Some(Unfit::Size(has))
        } else if !node.spec.schedulable {
            Some(Unfit::Unschedulable)
        } else {
            (too_few && !sick.is_empty()).then_some(Unfit::Unhealthy(sick))
        }
    }

    /// Those before it in its queue, if there are any.
    fn needs_turn(&self, job: &Job) -> Option<Need> {
        let ahead = self.queue(job.shape).map(|waiting| &waiting.job);
        let ahead = ahead.take_while(|other| other.queue_key() < job.queue_key());
        let named: Vec<JobId> = ahead.take(NAMED_MAX).map(|other| other.id).collect();
        let all = self.ahead(job.id).unwrap_or_default();
        let more = all.saturating_sub(count(named.len()));
        (all > 0).then_some(Need::Starts { jobs: named, more })
    }

    fn needs_node(&self, node: NodeId, enough: Enough) -> Need {
        let state = self.nodes.get(&node);
        let holdings = state.into_iter().flat_map(|state| &state.holdings);
        ends(Some(node), holdings.map(|(&job, holding)| (job, holding)), enough)
    }

    fn needs_a_large_to_end(&self, job: &Job) -> Vec<Need> {
        let fitting = self.nodes.iter().filter(|&(&id, _)| job.fits.on(id));
        let held = fitting.filter(|(_, node)| matches!(node.phase, Phase::Exclusive(_)));
        let larges: Vec<(JobId, &Holding)> =
            held.flat_map(|(_, node)| &node.holdings).map(|(&job, h)| (job, h)).collect();
        if larges.is_empty() {
            return vec![Need::Setting];
        }
        vec![ends(None, larges.into_iter(), Enough::One)]
    }

    /// GPUs of nodes that are open for a small.
    fn needs_room(&self, job: &Job) -> Need {
        let open = self.nodes.iter().filter(|&(&id, node)| job.fits.on(id) && node.is_open());
        let held = open.flat_map(|(_, node)| &node.holdings);
        let asked = Enough::Gpus(self.asked(job.shape));
        ends(None, held.map(|(&job, holding)| (job, holding)), asked)
    }

    fn changes(&self, waiting: &Waiting, wait: &Wait, bound: Bound, now: Millis) -> Vec<Change> {
        let job = &waiting.job;
        let mut changes = match *wait {
            Wait::Paused => vec![Change::Resume],
            Wait::BackingOff { .. } => vec![Change::Binding],
            Wait::Quota { tenant, held, most } => {
                let asked = self.asked(job.shape);
                let ends = (asked <= most).then_some(Change::EarlyEnds);
                let wanted = Change::Quota(tenant, held.saturating_add(asked));
                ends.into_iter().chain([wanted]).collect()
            }
            Wait::QuotaTurn { tenant, earlier } => {
                let between = self.job(earlier).map_or(0, |earlier| self.asked(earlier.shape));
                let held = self.tenant_gpus(tenant);
                let wanted = held.saturating_add(between).saturating_add(self.asked(job.shape));
                vec![Change::Quota(tenant, wanted), Change::Priority(earlier)]
            }
            Wait::NoNodeFits(why) => self.fit_changes(job, why),
            Wait::Behind { first, .. } => vec![Change::EarlyEnds, Change::Priority(first)],
            Wait::Draining { node, .. } | Wait::Wave { node, .. } => {
                let gate = self.nodes.get(&node).and_then(Node::gate);
                let overdue = gate.is_some_and(|gate| gate.overdue);
                let evict = (overdue && !self.config.evict_overdue).then_some(Change::Evict(node));
                let always = [Change::EarlyEnds, Change::NodeLost(node)];
                always.into_iter().chain(evict).collect()
            }
            Wait::NodesHeld { .. } | Wait::Exclusive { .. } | Wait::Gathering { .. } => {
                vec![Change::EarlyEnds]
            }
            Wait::KeptOpen { .. } => vec![Change::KeepFewerOpen],
            Wait::GateClosed { node, .. } => {
                [Change::EarlyEnds].into_iter().chain(self.behind_gate(job, node, now)).collect()
            }
            Wait::Kept { job: wide, .. } => vec![Change::EarlyEnds, Change::Priority(wide)],
            Wait::Busy { ahead } => {
                let first = self.queue(job.shape).next().filter(|_| ahead > 0);
                let first = first.map(|first| Change::Priority(first.job.id));
                [Change::EarlyEnds].into_iter().chain(first).collect()
            }
        };
        changes.extend(match bound.basis {
            Basis::Unlimited(job) => Some(Change::LimitOn(job)),
            Basis::NoLimit(shape) => Some(Change::LimitOf(shape)),
            _ => None,
        });
        if !matches!(wait, Wait::Paused | Wait::NoNodeFits(_)) {
            changes.push(Change::Overtaken);
        }
        changes.sort_by_key(Change::effect);
        changes
    }

    fn fit_changes(&self, job: &Job, why: NoFit) -> Vec<Change> {
        let Need::Fit { nodes, .. } = self.needs_fit(job) else { return Vec::new() };
        let mendable = |&(_, unfit): &(NodeId, Unfit)| {
            matches!(unfit, Unfit::Unschedulable | Unfit::Unhealthy(_))
        };
        let mended = nodes.into_iter().filter(mendable).map(|(id, u)| Change::NodeFit(id, u));
        let joins = Change::NodeJoins(self.asked(job.shape));
        let anew = (why == NoFit::NoneMatches).then_some(Change::Placement);
        mended.chain(anew).chain([joins]).collect()
    }

    /// What would let a small start behind a closed gate.
    fn behind_gate(&self, job: &Job, node: NodeId, now: Millis) -> Option<Change> {
        let state = self.nodes.get(&node).filter(|state| !state.free().is_empty())?;
        let left = state.latest_end(now)?.since(now);
        let fits = job.limit.is_some_and(|limit| limit <= left);
        match (self.config.backfill, fits) {
            _ if left == Millis::default() => None,
            (true, false) => Some(Change::ShorterLimit(left)),
            (false, _) => Some(Change::Backfill(left)),
            (true, true) => None,
        }
    }
}

/// Jobs that must give back what they hold, in the order of their ends.
fn ends<'a>(
    node: Option<NodeId>,
    holdings: impl Iterator<Item = (JobId, &'a Holding)>,
    enough: Enough,
) -> Need {
    let holder = |(job, holding): (JobId, &Holding)| {
        let Holding { gpus, stage, latest_end, .. } = *holding;
        Holder { job, gpus, stage, latest_end }
    };
    let mut holders: Vec<Holder> = holdings.map(holder).collect();
    let all = holders.len();
    let order = |h: &Holder| (h.latest_end.unwrap_or(Millis(u64::MAX)), h.job);
    if all > NAMED_MAX {
        // Of a large pool only those that end first are put in order.
        holders.select_nth_unstable_by_key(NAMED_MAX, order);
        holders.truncate(NAMED_MAX);
    }
    holders.sort_unstable_by_key(order);
    Need::Ends { node, more: count(all - holders.len()), holders, enough }
}

fn starts(jobs: impl ExactSizeIterator<Item = JobId>) -> Need {
    let all = jobs.len();
    let jobs: Vec<JobId> = jobs.take(NAMED_MAX).collect();
    Need::Starts { more: count(all - jobs.len()), jobs }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
