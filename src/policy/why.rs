//! Pure: why a job waits, as the state stands.

use serde::{Deserialize, Serialize};

use super::dispatch::BACKFILL_DEPTH;
use super::{
    Job, JobId, Millis, Node, NodeId, Phase, Pool, Shape, TenantId, UnreserveReason, Waiting,
};

/// The rule that holds a waiting job, with the facts that it rests on.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The pool admits nothing.
    Paused,
    /// Earlier reservations of it failed; it stands back.
    BackingOff {
        /// Until then.
        until: Millis,
        /// How many failed.
        attempts: u32,
        /// Where the last one was, and why it was taken back.
        last: Option<(NodeId, UnreserveReason)>,
    },
    /// Its tenant holds as many GPUs as it may.
    Quota {
        /// The tenant.
        tenant: TenantId,
        /// GPUs held.
        held: u32,
        /// GPUs allowed.
        most: u32,
    },
    /// Its tenant may hold more GPUs, and not all that it waits for: its jobs go in order.
    QuotaTurn {
        /// The tenant.
        tenant: TenantId,
        /// The first of its jobs, which goes before.
        earlier: JobId,
    },
    /// No node of the pool can take it as things are; it closes no gate.
    NoNodeFits(NoFit),
    /// Others of its shape are served first, for which it leaves a node that it fits, or the drain.
    Behind {
        /// How many stand before it.
        ahead: u32,
        /// The first for which it leaves something.
        first: JobId,
    },
    /// A large: a node is emptied for it.
    Draining {
        /// The node.
        node: NodeId,
        /// How many jobs still hold GPUs there.
        holders: u32,
        /// When the last of them ends at the latest.
        latest_end: Option<Millis>,
    },
    /// A large: one bounded wave of smalls runs first on the node that is next for it.
    Wave {
        /// The node.
        node: NodeId,
        /// When the wave ends at the latest.
        latest_end: Option<Millis>,
    },
    /// A large: the nodes that it fits are held by larges.
    NodesHeld {
        /// How many of them are.
        exclusive: u32,
    },
    /// A large: the nodes that it could have are kept open for smalls.
    KeptOpen {
        /// How many nodes are to stay open.
        keep: u32,
    },
    /// A small: the free GPUs are behind gates closed for larges.
    GateClosed {
        /// A node with a closed gate.
        node: NodeId,
        /// The large that it is closed for.
        job: JobId,
        /// Free GPUs behind it.
        free: u32,
        /// Why they are not given to it.
        gap: Gap,
    },
    /// A small: a large holds the node.
    Exclusive {
        /// The node.
        node: NodeId,
        /// The large.
        job: JobId,
    },
    /// A wide small: this open node's free GPUs are kept until there are enough for it.
    Gathering {
        /// The node.
        node: NodeId,
        /// GPUs free there now.
        free: u32,
        /// GPUs that it asks for.
        asked: u32,
        /// When enough are free at the latest, if the gate stays open so long.
        latest_end: Option<Millis>,
    },
    /// A small: the free GPUs of the open nodes are kept for a wide one before it.
    Kept {
        /// The node.
        node: NodeId,
        /// The wide small.
        job: JobId,
        /// GPUs free there now.
        free: u32,
    },
    /// A small: every GPU of the open nodes is held, or for a wide one too many of each node's.
    Busy {
        /// How many smalls wait before it.
        ahead: u32,
    },
}

/// Why free GPUs behind a closed gate are not given to a small.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// None is free.
    Full,
    /// The pool admits nobody there. For so long they stay idle at most, if something limits that.
    NotFilled(Option<Millis>),
    /// The drain has no known end.
    Endless,
    /// It may hold them for longer than the drain lasts, which is this.
    TooShort(Millis),
    /// It asks for more.
    TooFew,
    /// This older one waited when a gate opened over smalls that had been let in behind it, and is
    /// passed by nobody any more.
    Protects(JobId),
    /// So many stand before it that it is not looked at.
    TooDeep,
}

/// Why no node can take a job.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoFit {
    /// The pool has no nodes.
    NoNodes,
    /// None matches its selectors, affinity and tolerations.
    NoneMatches,
    /// Those that match take no new work (cordoned, not ready).
    Unschedulable,
    /// Those that match have another number of GPUs.
    WrongSize,
    /// Those that match have an unhealthy GPU.
    Unhealthy,
}

impl Pool {
    /// Why a job waits; `None` if it does not.
    pub fn why(&self, job: JobId, now: Millis) -> Option<Wait> {
        let waiting = self.waiting.get(&job)?;
        Some(self.held_back(waiting, now).unwrap_or_else(|| match waiting.job.shape {
            Shape::Large => self.why_large(waiting, now),
            Shape::Small | Shape::Wide(_) => self.why_small(waiting, now),
        }))
    }

    fn held_back(&self, waiting: &Waiting, now: Millis) -> Option<Wait> {
        let job = &waiting.job;
        if self.config.paused {
            return Some(Wait::Paused);
        }
        if waiting.retry_at > now {
            let Waiting { retry_at: until, attempts, taken_back: last, .. } = *waiting;
            return Some(Wait::BackingOff { until, attempts, last });
        }
        if !self.could_fit(job) {
            return Some(Wait::NoNodeFits(self.no_fit(waiting)));
        }
        if !self.within_quota(job) {
            let most = self.config.quotas.get(&job.tenant).copied().unwrap_or(u32::MAX);
            let (tenant, held) = (job.tenant, self.tenant_gpus(job.tenant));
            let turn = self.before_in_quota(job, most).min_by_key(|earlier| earlier.queue_key());
            let room = held.saturating_add(self.asked(job.shape)) <= most;
            return Some(match turn.filter(|_| room) {
                Some(earlier) => Wait::QuotaTurn { tenant, earlier: earlier.id },
                None => Wait::Quota { tenant, held, most },
            });
        }
        None
    }

    fn no_fit(&self, waiting: &Waiting) -> NoFit {
        let job = &waiting.job;
        let matching: Vec<&Node> =
            self.nodes.iter().filter(|&(&id, _)| job.fits.on(id)).map(|(_, node)| node).collect();
        // Of several reasons the one that is nearest to a fit.
        let asked = self.asked(job.shape);
        let whole = |node: &&&Node| match job.shape {
            Shape::Large => node.spec.gpus.count() == asked,
            Shape::Small | Shape::Wide(_) => node.spec.gpus.count() >= asked,
        };
        let schedulable = |node: &&Node| node.spec.schedulable;
        if self.nodes.is_empty() {
            NoFit::NoNodes
        } else if matching.is_empty() {
            NoFit::NoneMatches
        } else if matching.iter().filter(whole).any(schedulable) {
            NoFit::Unhealthy
        } else if matching.iter().any(schedulable) && !matching.iter().any(|node| whole(&node)) {
            NoFit::WrongSize
        } else {
            NoFit::Unschedulable
        }
    }

    fn why_large(&self, waiting: &Waiting, now: Millis) -> Wait {
        let job = &waiting.job;
        for (&node, state) in &self.nodes {
            let holders = u32::try_from(state.holdings.len()).unwrap_or(u32::MAX);
            let latest_end = state.latest_end(now);
            match state.phase {
                Phase::Draining(gate) if gate.job == job.id => {
                    return Wait::Draining { node, holders, latest_end };
                }
                Phase::Wave { gate, .. } if gate.job == job.id => {
                    return Wait::Wave { node, latest_end };
                }
                _ => {}
            }
        }
        let ahead = self.ahead(job.id).unwrap_or_default();
        let contends = |other: &Job| self.within_quota(other) && self.contends(other, job);
        let first = self.first(Shape::Large, contends).filter(|first| before(first, job));
        if let Some(first) = first {
            return Wait::Behind { ahead, first: first.id };
        }
        if self.awaits_an_open_node(job) {
            return Wait::KeptOpen { keep: self.config.keep_open };
        }
        let fitting = || self.nodes.iter().filter(|&(&id, _)| job.fits.on(id)).map(|(_, n)| n);
        let drainable = |n: &Node| n.is_open() && n.takes_larges(self.config.gpus_per_node);
        // It could have a node, and so many may drain at a time: those of others do.
        let drains = self.nodes.values().filter_map(|node| self.at_gate(node));
        let drains = drains.filter(|large| before(large, job)).min_by_key(|l| l.queue_key());
        if let Some(first) = drains.filter(|_| fitting().any(drainable)) {
            return Wait::Behind { ahead, first: first.id };
        }
        let held = fitting().filter(|n| matches!(n.phase, Phase::Exclusive(_))).count();
        Wait::NodesHeld { exclusive: u32::try_from(held).unwrap_or(u32::MAX) }
    }

    /// Whether two larges fit a node that takes larges.
    fn contends(&self, one: &Job, other: &Job) -> bool {
        self.nodes.iter().any(|(&id, node)| {
            let both = one.fits.on(id) && other.fits.on(id);
            both && node.takes_larges(self.config.gpus_per_node)
        })
    }

    /// The large that a node is emptied for.
    fn at_gate(&self, node: &Node) -> Option<&Job> {
        self.waiting.get(&node.gate()?.job).map(|waiting| &waiting.job)
    }

    fn why_small(&self, waiting: &Waiting, now: Millis) -> Wait {
        let usable = || self.nodes.iter().filter(|&(&id, _)| waiting.job.fits.on(id));
        let ahead = self.ahead(waiting.job.id).unwrap_or_default();
        if usable().any(|(_, node)| node.is_open() && node.spec.schedulable) {
            return self.why_not_on_an_open_node(waiting, now).unwrap_or(Wait::Busy { ahead });
        }
        let gates = usable().filter_map(|(&id, node)| node.gate().map(|gate| (id, node, gate)));
        let soonest = gates
            .min_by_key(|(id, node, _)| (node.latest_end(now).unwrap_or(Millis(u64::MAX)), *id));
        if let Some((node, state, gate)) = soonest {
            let gap = self.gap(&waiting.job, node, state, now);
            return Wait::GateClosed { node, job: gate.job, free: state.free().count(), gap };
        }
        let exclusive = usable().find_map(|(&id, node)| match node.phase {
            Phase::Exclusive(job) => Some(Wait::Exclusive { node: id, job }),
            Phase::Open | Phase::Draining(_) | Phase::Wave { .. } => None,
        });
        exclusive.unwrap_or(Wait::Busy { ahead })
    }

    /// What a wide small that gathers GPUs has to do with it, if it has.
    fn why_not_on_an_open_node(&self, waiting: &Waiting, now: Millis) -> Option<Wait> {
        let (node, wide) = self.kept(now)?;
        let state = self.nodes.get(&node).filter(|_| waiting.job.fits.on(node))?;
        let free = state.free().count();
        let asked = self.asked(waiting.job.shape);
        if wide == waiting.job.id {
            let latest_end = state.free_by(asked, now);
            return Some(Wait::Gathering { node, free, asked, latest_end });
        }
        (free >= asked).then_some(Wait::Kept { node, job: wide, free })
    }

    /// Why the free GPUs behind a closed gate are not given to a small, as `backfill` has it.
    fn gap(&self, job: &Job, id: NodeId, node: &Node, now: Millis) -> Gap {
        let drained = node.latest_end(now);
        let left = drained.map(|at| at.since(now));
        let in_time = |job: &Job| job.limit.zip(left).is_some_and(|(limit, left)| limit <= left);
        if node.free().is_empty() {
            return Gap::Full;
        }
        if !self.config.backfill {
            return Gap::NotFilled(left);
        }
        let Some(left) = left else { return Gap::Endless };
        if !in_time(job) {
            return Gap::TooShort(left);
        }
        if node.free().count() < self.asked(job.shape) {
            return Gap::TooFew;
        }
        let given_up = self.nodes.values().filter_map(|node| node.given_up).max();
        let mut earlier = self.runnable(Shape::Small).take(BACKFILL_DEPTH);
        let protected = earlier
            .by_ref()
            .take_while(|other| other.id != job.id)
            .filter(|other| other.fits.on(id) && self.within_quota(other) && !in_time(other))
            .find(|other| given_up.is_some_and(|at| other.created <= at));
        protected.map_or(Gap::TooDeep, |older| Gap::Protects(older.id))
    }
}

fn before(one: &Job, other: &Job) -> bool {
    one.queue_key() < other.queue_key()
}
