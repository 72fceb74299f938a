//! Pure: what would change when a job starts, or what can be said of it.

use serde::{Deserialize, Serialize};

use super::{Bound, Job, JobId, Millis, NodeId, Pool, Shape, Unfit, Wait, Waiting, Waits};
use crate::policy::{Basis, Gap, NoFit, Node, Phase, TenantId};

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
    /// Another node that it fits is empty before the one that is emptied for it.
    OtherNode,
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
    /// This large, which is served first and is held back, can be served.
    Servable(JobId),
    /// A job of the other queue arrives.
    Arrival(Shape),
    /// This large ends by then: the next one then follows in the same turn.
    TurnGoesOn {
        /// The large that holds a node.
        ends: JobId,
        /// By then.
        by: Millis,
        /// The one that follows.
        then: JobId,
    },
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
    /// It starts later, or may.
    Later,
}

impl Change {
    /// What it changes.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Overtaken
            | Self::Servable(_)
            | Self::NodeLost(_)
            | Self::Arrival(_)
            | Self::TurnGoesOn { .. } => Effect::Later,
            Self::LimitOn(_) | Self::LimitOf(_) => Effect::Bounded,
            Self::Resume
            | Self::Quota(..)
            | Self::Binding
            | Self::NodeFit(..)
            | Self::NodeJoins(_)
            | Self::Placement
            | Self::EarlyEnds
            | Self::OtherNode
            | Self::Priority(_)
            | Self::KeepFewerOpen
            | Self::Evict(_)
            | Self::Backfill(_)
            | Self::ShorterLimit(_) => Effect::Sooner,
        }
    }
}

impl Pool {
    /// What would change when a job starts that waits as `waits` says.
    pub(super) fn changes(&self, waiting: &Waiting, waits: &Waits, now: Millis) -> Vec<Change> {
        let (job, wait) = (&waiting.job, &waits.wait);
        let mut changes = self.changes_of(job, wait, now);
        // Ends before limits are of use where there are limits.
        let ends = !matches!(wait, Wait::BackingOff { .. }) && waits.foreseen.is_some();
        changes.extend(ends.then_some(Change::EarlyEnds));
        changes.extend(limit_wanted(waits.bound));
        if !matches!(wait, Wait::Paused | Wait::NoNodeFits(_)) {
            changes.push(Change::Overtaken);
            changes.extend(self.turn_goes_on(job, now));
            changes.extend(self.arrival(job, wait));
        }
        changes.sort_by_key(|change| (change.effect(), *change != Change::EarlyEnds));
        changes
    }

    fn changes_of(&self, job: &Job, wait: &Wait, now: Millis) -> Vec<Change> {
        match *wait {
            Wait::Paused => vec![Change::Resume],
            Wait::BackingOff { .. } => vec![Change::Binding],
            Wait::Quota { tenant, held, .. } => {
                vec![Change::Quota(tenant, held.saturating_add(self.asked(job.shape)))]
            }
            Wait::QuotaTurn { tenant, earlier } => {
                let between = self.job(earlier).map_or(0, |earlier| self.asked(earlier.shape));
                let held = self.tenant_gpus(tenant);
                let wanted = held.saturating_add(between).saturating_add(self.asked(job.shape));
                vec![Change::Quota(tenant, wanted), Change::Priority(earlier)]
            }
            Wait::NoNodeFits(why) => self.fit_changes(job, why),
            Wait::Behind { first, .. } => vec![Change::Priority(first)],
            Wait::Draining { node, .. } | Wait::Wave { node, .. } => {
                self.drain_changes(job, node, now)
            }
            Wait::KeptOpen { .. } => {
                vec![Change::KeepFewerOpen, Change::NodeJoins(self.asked(job.shape))]
            }
            Wait::NodesHeld { .. } => vec![Change::NodeJoins(self.asked(job.shape))],
            Wait::GateClosed { gap, .. } => gap_change(gap).into_iter().collect(),
            Wait::Kept { job: wide, .. } => vec![Change::Priority(wide)],
            Wait::Busy { ahead } => {
                let first = self.queue(job.shape).next().filter(|_| ahead > 0);
                first.map(|first| Change::Priority(first.job.id)).into_iter().collect()
            }
            Wait::Exclusive { .. } | Wait::Gathering { .. } => Vec::new(),
        }
    }

    fn fit_changes(&self, job: &Job, why: NoFit) -> Vec<Change> {
        let mendable = |&(_, unfit): &(NodeId, Unfit)| {
            matches!(unfit, Unfit::Unschedulable | Unfit::Unhealthy(_))
        };
        let mended = self.unfit_nodes(job).into_iter().filter(mendable).take(super::NAMED_MAX);
        let mended = mended.map(|(id, unfit)| Change::NodeFit(id, unfit));
        let joins = Change::NodeJoins(self.asked(job.shape));
        let anew = (why == NoFit::NoneMatches).then_some(Change::Placement);
        mended.chain(anew).chain([joins]).collect()
    }

    fn drain_changes(&self, job: &Job, node: NodeId, now: Millis) -> Vec<Change> {
        let gate = self.nodes.get(&node).and_then(Node::gate);
        let overdue = gate.is_some_and(|gate| gate.overdue);
        let evict = (overdue && !self.config.evict_overdue).then_some(Change::Evict(node));
        let mut others = self.nodes.iter().filter(|&(&id, _)| id != node && job.fits.on(id));
        let other = others.any(|(_, other)| other.takes_larges(self.config.gpus_per_node));
        let other = other.then_some(Change::OtherNode);
        let ahead = self.queue(Shape::Large).take_while(|other| other.job.id != job.id);
        let mut held = ahead.filter(|other| !self.is_servable(other, now));
        let held = held.next().map(|other| Change::Servable(other.job.id));
        other.into_iter().chain([Change::NodeLost(node)]).chain(evict).chain(held).collect()
    }

    /// Whether one that arrives in the other queue may be served before it.
    fn arrival(&self, job: &Job, wait: &Wait) -> Option<Change> {
        match (job.shape, wait) {
            (Shape::Large, Wait::Behind { .. } | Wait::NodesHeld { .. }) => {
                Some(Change::Arrival(Shape::Small))
            }
            // Nothing that arrives is admitted behind its gate to end later than the drain.
            (Shape::Large, _) => None,
            (Shape::Small | Shape::Wide(_), _) => {
                let fits = |node: &Node| node.takes_larges(self.config.gpus_per_node);
                self.nodes.values().any(fits).then_some(Change::Arrival(Shape::Large))
            }
        }
    }

    /// A large that ends early may leave time in its turn for the next one.
    fn turn_goes_on(&self, job: &Job, now: Millis) -> Option<Change> {
        let budget = self.config.turn.filter(|_| job.shape.is_small())?;
        self.nodes.iter().filter(|&(&id, _)| job.fits.on(id)).find_map(|(&id, node)| {
            let Phase::Exclusive(ends) = node.phase else { return None };
            let served = |job: &Job| job.fits.on(id) && self.within_quota(job);
            let then = self.first(Shape::Large, served)?;
            let over = node.turn?.since + budget;
            let by = Millis(over.0.checked_sub(then.limit?.0)?);
            // Where it ends by then in any case, the next one is among what must happen.
            let latest = node.holdings.get(&ends)?.latest_end;
            let open = by >= now && latest.is_none_or(|end| end > by);
            open.then_some(Change::TurnGoesOn { ends, by, then: then.id })
        })
    }
}

fn limit_wanted(bound: Bound) -> Option<Change> {
    match bound.basis {
        Basis::Unlimited(job) => Some(Change::LimitOn(job)),
        Basis::NoLimit(shape) => Some(Change::LimitOf(shape)),
        _ => None,
    }
}

/// What would let a small start behind a closed gate.
fn gap_change(gap: Gap) -> Option<Change> {
    match gap {
        Gap::NotFilled(left) => left.filter(|&left| left > Millis::default()).map(Change::Backfill),
        Gap::TooShort(left) => {
            Some(left).filter(|&left| left > Millis::default()).map(Change::ShorterLimit)
        }
        Gap::Protects(job) => Some(Change::Priority(job)),
        Gap::Full | Gap::Endless | Gap::TooFew | Gap::TooDeep => None,
    }
}
