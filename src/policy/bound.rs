//! Pure: when at the latest a waiting job starts, and what that rests on.
//!
//! With S and L the greatest enforced occupancy of a small and a large, and B the longest time
//! that larges follow one another without a wave, the large at place k of its queue starts within
//! k(L+S), and within S + (k-1)(L+S) if no large runs; the small at place p within
//! ceil(p/wave)(B+2S). Occupancy counts from reservation until the GPUs are free again.
//!
//! With wide smalls before it a small counts by GPUs: those before it and it ask for A together,
//! the widest of them for w, and it starts within ceil(A/m)(B+2S), m the smaller of the wave's size
//! and the node's GPUs less w-1 (`docs/wide.md`). No figure is given for a wide small itself.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use super::facts::EARLY_FAILURE;
use super::node::EARLY_FAILURES_MAX;
use super::{Holding, Job, JobId, Millis, Node, NodeId, Phase, Pool, Shape, TenantId, Waiting};

/// The latest start of a waiting job.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// When it starts at the latest, if that can be said.
    pub latest_start: Option<Millis>,
    /// What that rests on.
    pub basis: Basis,
}

/// What a bound rests on, or why there is none.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The limits of the jobs that hold the node which is emptied for it.
    Drain,
    /// Its place in the queue and the greatest limit of each shape.
    Place(u32),
    /// This job has no enforced limit: it holds GPUs, or is served first.
    Unlimited(JobId),
    /// This job holds GPUs for longer than its limit allows.
    Outlasted(JobId),
    /// The pool enforces no limit on this shape.
    NoLimit(Shape),
    /// It is held back for a reason that no time bounds: paused, no node that fits, all kept open.
    HeldBack,
    /// The quota of its tenant holds it back, or may.
    Quota(TenantId),
    /// It is a wide small: it is served in its turn, and no figure is promised.
    Wide,
}

/// The spans of time that figures by place are made of.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rests {
    /// S: the longest that a small holds its GPUs.
    pub small: Millis,
    /// L: the longest that a large does.
    pub large: Millis,
    /// How long larges may follow one another without a wave: L, or the turn if that is longer.
    pub turn: Millis,
    /// What larges that fail at once add to that.
    pub failures: Millis,
    /// What is waited once, from now.
    pub once: Millis,
    /// How many rounds are waited besides.
    pub rounds: u64,
    /// The longest that one of them takes.
    pub round: Millis,
    /// Whether the time that is told was counted from before now.
    pub told_before: bool,
}

/// A setting that leaves no node to larges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllKeptOpen {
    /// How many nodes the setting keeps open.
    pub kept_open: u32,
    /// How many nodes take new work.
    pub takers: u32,
}

/// A figure and how it comes about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Figure {
    /// What a person is told.
    pub(super) bound: Bound,
    /// How it grows with the place, where it rests on that.
    pub(super) by_place: Option<ByPlace>,
}

/// A latest start as a function of the place in the queue: one more who is served first moves it by
/// what the proof gives that one, counted from when the figure was told.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct ByPlace {
    /// When the wait counts from, and what is waited whatever the place.
    start: Millis,
    /// GPUs that those before it and it ask for, or larges.
    places: u64,
    /// One round.
    round: Millis,
    /// Of the places, how many one round serves.
    served: NonZeroU32,
    /// Rounds that need not be waited for.
    spared: u64,
}

impl ByPlace {
    /// The latest start if so many more are served first.
    pub(super) fn latest_start(self, more: u64) -> Millis {
        self.start + Millis(self.round.0.saturating_mul(self.rounds(more)))
    }

    fn rounds(self, more: u64) -> u64 {
        let places = self.places.saturating_add(more);
        places.div_ceil(NonZeroU64::from(self.served).get()).saturating_sub(self.spared)
    }
}

/// Who is served before a waiting job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// How many.
    pub(super) jobs: u32,
    /// How many more GPUs than one each the wide ones among them ask for.
    more: u64,
    /// GPUs of the widest.
    widest: u32,
}

impl Before {
    /// One more goes before.
    pub(super) fn add(&mut self, job: &Job) {
        self.jobs += 1;
        if let Shape::Wide(gpus) = job.shape {
            self.widen(gpus);
        }
    }

    fn widen(&mut self, gpus: u32) {
        self.more += u64::from(gpus.saturating_sub(1));
        self.widest = self.widest.max(gpus);
    }
}

/// What every figure of a pool rests on at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    /// The longest that a small holds a GPU, and who that is if it is more than the pool allows.
    pub(super) small: (Millis, Option<JobId>),
    /// The same of larges.
    pub(super) large: (Millis, Option<JobId>),
    /// A holder without an enforced limit, or beyond it.
    unlimited: Option<JobId>,
    /// Whether a large runs.
    large_runs: bool,
}

impl Pool {
    /// When at the latest a job starts as things stand; `None` if it does not wait.
    pub fn bound(&self, job: JobId, now: Millis) -> Option<Bound> {
        Some(self.figure_of(job, now)?.bound)
    }

    /// The figure of a job as things stand; `None` if it does not wait.
    pub(super) fn figure_of(&self, job: JobId, now: Millis) -> Option<Figure> {
        let waiting = self.waiting.get(&job)?;
        let mut before = Before { jobs: self.ahead(job)?, ..Before::default() };
        for gpus in self.queue_of(waiting.job.shape).wide_before(&waiting.job) {
            before.widen(gpus);
        }
        Some(self.figure(self.terms(now), waiting, before, now))
    }

    /// What figures rest on now.
    pub(super) fn terms(&self, now: Millis) -> Terms {
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        let unlimited = holdings.filter(|(_, h)| h.latest_end.is_none_or(|end| end < now));
        Terms {
            small: self.longest(Shape::Small, self.config.small_limit.unwrap_or_default(), now),
            large: self.longest(Shape::Large, self.config.large_limit.unwrap_or_default(), now),
            unlimited: unlimited.map(|(&job, _)| job).min(),
            large_runs: self.nodes.values().any(|n| matches!(n.phase, Phase::Exclusive(_))),
        }
    }

    /// The figure of the job at a place of its queue.
    pub(super) fn figure(
        &self,
        terms: Terms,
        waiting: &Waiting,
        before: Before,
        now: Millis,
    ) -> Figure {
        let (job, place) = (&waiting.job, before.jobs.saturating_add(1));
        let none = |basis| Figure { bound: Bound { latest_start: None, basis }, by_place: None };
        if self.held_back_for_ever(job) {
            return none(Basis::HeldBack);
        }
        if !self.within_quota(job) || self.quota_may_bind(job.tenant) {
            return none(Basis::Quota(job.tenant));
        }
        if let Shape::Wide(_) = job.shape {
            return none(Basis::Wide);
        }
        if let Some(at) = self.drained_for(job.id, place, now) {
            let bound = Bound { latest_start: Some(at), basis: Basis::Drain };
            return Figure { bound, by_place: None };
        }
        if self.config.small_limit.is_none() {
            return none(Basis::NoLimit(Shape::Small));
        }
        if self.config.large_limit.is_none() {
            return none(Basis::NoLimit(Shape::Large));
        }
        if let Some(unlimited) = terms.unlimited.or_else(|| self.unlimited_before(job)) {
            return none(Basis::Unlimited(unlimited));
        }
        let start = now.max(waiting.retry_at);
        // While it stands back others pass, so a large may run by then.
        let terms = Terms { large_runs: terms.large_runs || start > now, ..terms };
        let by_place = match job.shape {
            Shape::Small | Shape::Wide(_) => self.small_by_place(job, before, terms, start),
            Shape::Large => self.large_by_place(place, terms, start),
        };
        let latest_start = Some(by_place.latest_start(0));
        let bound = Bound { latest_start, basis: Basis::Place(place) };
        Figure { bound, by_place: Some(by_place) }
    }

    /// In each span of a turn and two smalls, a wave's worth of smalls start from the front: at
    /// least so many GPUs go to them that the widest would not fit into what is left.
    ///
    /// Where fewer GPUs are in a state to serve it, those it is, in the time of one small.
    fn small_by_place(&self, job: &Job, before: Before, terms: Terms, start: Millis) -> ByPlace {
        let places = u64::from(before.jobs) + before.more + 1;
        let usable = |(id, node): (&NodeId, &Node)| {
            (node.spec.schedulable && job.fits.on(*id)).then(|| node.ever_free().count())
        };
        let mut usable = self.nodes.iter().filter_map(usable);
        let full = self.config.gpus_per_node;
        let usable = usable.try_fold(0, |sum: u32, gpus| (sum < full).then(|| sum + gpus));
        let left = usable.unwrap_or(full).min(full);
        let left = left.saturating_sub(before.widest.saturating_sub(1));
        let served = NonZeroU32::new(self.config.wave_size.min(left)).unwrap_or(NonZeroU32::MIN);
        let (s, l) = (terms.small.0, terms.large.0);
        // Once, smalls admitted behind a gate that then opens may hold up those in front.
        let start = if self.config.backfill { start + s } else { start };
        ByPlace { start, places, round: self.turn_span(l) + s + s, served, spared: 0 }
    }

    /// In each span of a large and a small, a large starts; the first sooner if none runs.
    fn large_by_place(&self, place: u32, terms: Terms, start: Millis) -> ByPlace {
        let (s, l) = (terms.small.0, terms.large.0);
        let (first, spared) = if terms.large_runs { (Millis::default(), 0) } else { (s, 1) };
        // Where nodes are kept open, one must open before the one that a large fits may close.
        let (first, round) = match (self.config.keep_open > 0, terms.large_runs) {
            (false, _) => (first, l + s),
            (true, true) => (first, l + s + l + s),
            (true, false) => (first + l + s, l + s + l + s),
        };
        let served = NonZeroU32::MIN;
        ByPlace { start: start + first, places: place.into(), round, served, spared }
    }

    /// Whether a reason holds the job back, or may do so, that no time bounds.
    fn held_back_for_ever(&self, job: &Job) -> bool {
        let kept_open = job.shape == Shape::Large && self.no_node_for_larges().is_some();
        let usable = |(id, node): (&NodeId, &Node)| {
            node.spec.schedulable && job.fits.on(*id) && !node.ever_free().is_empty()
        };
        self.config.paused || !self.could_fit(job) || !self.nodes.iter().any(usable) || kept_open
    }

    /// Whether so many nodes are kept open for smalls that no large ever starts.
    pub fn no_node_for_larges(&self) -> Option<AllKeptOpen> {
        let kept_open = self.config.keep_open;
        if kept_open == 0 {
            return None;
        }
        let takers = self.nodes.values().filter(|node| node.spec.schedulable).count();
        let takers = u32::try_from(takers).unwrap_or(u32::MAX);
        (takers > 0 && takers <= kept_open).then_some(AllKeptOpen { kept_open, takers })
    }

    /// When the node is empty whose gate is closed for the first large. Another's gate says
    /// nothing: whoever stands before it takes the node that comes free first.
    fn drained_for(&self, job: JobId, place: u32, now: Millis) -> Option<Millis> {
        if place > 1 {
            return None;
        }
        let node =
            self.nodes.values().find(|node| node.gate().is_some_and(|gate| gate.job == job))?;
        let kept = node.holdings.values().all(|h| h.latest_end.is_some_and(|end| end >= now));
        node.latest_end(now).filter(|_| kept)
    }

    /// A job that waits without a limit and may run before this one starts.
    fn unlimited_before(&self, job: &Job) -> Option<JobId> {
        let waits = |shape: Shape| {
            let unlimited = self.queue_of(shape).longer_than(Millis(u64::MAX));
            let jobs = unlimited.filter_map(|id| self.waiting.get(&id)).map(|waiting| &waiting.job);
            jobs.filter(|other| other.shape != job.shape || other.queue_key() <= job.queue_key())
                .map(|job| job.id)
                .next()
        };
        waits(Shape::Small).or_else(|| waits(Shape::Large))
    }

    /// The longest that a job of a shape still holds GPUs, or will: the pool's limit, unless one
    /// that runs or waits has a greater one.
    fn longest(&self, shape: Shape, limit: Millis, now: Millis) -> (Millis, Option<JobId>) {
        let large = |holding: &Holding| holding.shape == Some(Shape::Large);
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        let running = holdings
            .filter(|(_, holding)| large(holding) == (shape == Shape::Large))
            .filter_map(|(&job, holding)| Some((holding.latest_end?.since(now), Some(job))));
        let waiting = self.queue_of(shape).longer_than(limit).next();
        let waiting = waiting.and_then(|job| Some((self.job(job)?.limit?, Some(job))));
        running
            .chain(waiting)
            .fold((limit, None), |most, one| if one.0 > most.0 { one } else { most })
    }

    /// How long larges follow one another without a wave, those that fail at once included.
    fn turn_span(&self, large: Millis) -> Millis {
        let (turn, failures) = self.turn_and_failures(large);
        turn + failures
    }

    fn turn_and_failures(&self, large: Millis) -> (Millis, Millis) {
        let in_vain = EARLY_FAILURE.max(self.config.reservation_timeout).min(large);
        let turn = self.config.turn.map_or(large, |turn| turn.max(large));
        (turn, Millis(in_vain.0.saturating_mul(EARLY_FAILURES_MAX.into())))
    }

    /// What a figure is made of.
    pub(super) fn rests(&self, figure: Figure, now: Millis) -> Rests {
        let terms = self.terms(now);
        let (small, large) = (terms.small.0, terms.large.0);
        let (turn, failures) = self.turn_and_failures(large);
        let none = (Millis::default(), 0, Millis::default());
        let by_place = figure.by_place.map(|by| (by.start.since(now), by.rounds(0), by.round));
        let (once, rounds, round) = by_place.unwrap_or(none);
        Rests { small, large, turn, failures, once, rounds, round, told_before: false }
    }

    /// A job that holds GPUs without an enforced limit.
    pub fn unlimited(&self) -> Option<JobId> {
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        holdings.filter(|(_, holding)| holding.latest_end.is_none()).map(|(&job, _)| job).min()
    }
}
