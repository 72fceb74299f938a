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

use serde::{Deserialize, Serialize};

use super::facts::EARLY_FAILURE;
use super::node::EARLY_FAILURES_MAX;
use super::{Holding, Job, JobId, Millis, Phase, Pool, Shape};

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
    /// This running job has no enforced limit.
    Unlimited(JobId),
    /// The pool enforces no limit on this shape.
    NoLimit(Shape),
    /// It is held back for a reason that no time bounds: paused, quota, no node that fits.
    HeldBack,
    /// It is a wide small: it is served in its turn, and no figure is promised.
    Wide,
}

impl Pool {
    /// When at the latest a job starts as things stand; `None` if it does not wait.
    pub fn bound(&self, job: JobId, now: Millis) -> Option<Bound> {
        let waiting = self.waiting.get(&job)?;
        let none = |basis| Some(Bound { latest_start: None, basis });
        if self.held_back_for_ever(&waiting.job) {
            return none(Basis::HeldBack);
        }
        if let Shape::Wide(_) = waiting.job.shape {
            return none(Basis::Wide);
        }
        let place = self.ahead(job)?.saturating_add(1);
        if let Some(latest_start) = self.drained_for(job, place, now) {
            return Some(Bound { latest_start: Some(latest_start), basis: Basis::Drain });
        }
        let (Some(small), large) = (self.config.small_limit, self.config.large_limit) else {
            return none(Basis::NoLimit(Shape::Small));
        };
        let Some(large) = large else { return none(Basis::NoLimit(Shape::Large)) };
        if let Some(unlimited) = self.unlimited_for(&waiting.job, now) {
            return none(Basis::Unlimited(unlimited));
        }
        let s = self.longest(Shape::Small, small, now);
        let l = self.longest(Shape::Large, large, now);
        let span = match waiting.job.shape {
            Shape::Large => self.large_span(place, s, l),
            Shape::Small | Shape::Wide(_) => {
                let rounds = self.rounds(&waiting.job, place);
                Millis(rounds.saturating_mul((self.turn_span(l) + s + s).0))
            }
        };
        let latest_start = now.max(waiting.retry_at) + span;
        Some(Bound { latest_start: Some(latest_start), basis: Basis::Place(place) })
    }

    /// Whether a reason holds the job back, or may do so, that no time bounds.
    fn held_back_for_ever(&self, job: &Job) -> bool {
        let takers = self.nodes.values().filter(|node| node.spec.schedulable).count();
        let kept_open = job.shape == Shape::Large && takers <= self.config.keep_open as usize;
        self.config.paused
            || !self.could_fit(job)
            || !self.within_quota(job)
            || self.quota_may_bind(job.tenant)
            || kept_open
    }

    /// When the node is empty whose gate is closed for the first large. Another's gate says
    /// nothing: whoever stands before it takes the node that comes free first.
    fn drained_for(&self, job: JobId, place: u32, now: Millis) -> Option<Millis> {
        let mut nodes = self.nodes.values().filter(|_| place == 1);
        let node = nodes.find(|node| node.gate().is_some_and(|gate| gate.job == job))?;
        let kept = node.holdings.values().all(|h| h.latest_end.is_some_and(|end| end >= now));
        node.latest_end(now).filter(|_| kept)
    }

    /// A job that may hold up another for longer than anything enforces: it holds GPUs without a
    /// limit or beyond it, or it waits without a limit and is served first.
    fn unlimited_for(&self, job: &Job, now: Millis) -> Option<JobId> {
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        let holder = holdings.filter(|(_, h)| h.latest_end.is_none_or(|end| end < now));
        let waits = |shape: Shape| {
            let unlimited = self.queue_of(shape).longer_than(Millis(u64::MAX));
            let jobs = unlimited.filter_map(|id| self.waiting.get(&id)).map(|waiting| &waiting.job);
            jobs.filter(|other| other.shape != job.shape || other.queue_key() <= job.queue_key())
                .map(|job| job.id)
                .next()
        };
        holder
            .map(|(&job, _)| job)
            .min()
            .or_else(|| waits(Shape::Small))
            .or_else(|| waits(Shape::Large))
    }

    /// The longest that a job of a shape still holds GPUs, or will: the pool's limit, unless one
    /// that runs or waits has a greater one.
    fn longest(&self, shape: Shape, limit: Millis, now: Millis) -> Millis {
        let large = |holding: &Holding| holding.shape == Some(Shape::Large);
        let holdings = self.nodes.values().flat_map(|node| node.holdings.values());
        let running = holdings
            .filter(|&holding| large(holding) == (shape == Shape::Large))
            .filter_map(|holding| holding.latest_end)
            .map(|end| end.since(now));
        let waiting = self.queue_of(shape).longer_than(limit).next();
        let waiting = waiting.and_then(|job| self.job(job)?.limit);
        running.chain(waiting).fold(limit, Millis::max)
    }

    /// How many waves, or as much service on open nodes, a small waits for. In each at least so
    /// many GPUs go to those before it that the widest of them would not fit into what is left.
    fn rounds(&self, job: &Job, place: u32) -> u64 {
        let wide = self.queue_of(job.shape).wide_before(job);
        let (more, widest) = wide.fold((0_u64, 1), |(more, widest), gpus| {
            (more + u64::from(gpus.saturating_sub(1)), widest.max(gpus))
        });
        let left = self.config.gpus_per_node.saturating_sub(widest - 1);
        let each = u64::from(self.config.wave_size.min(left).max(1));
        (u64::from(place) + more).div_ceil(each)
    }

    /// How long larges follow one another without a wave, those that fail at once included.
    fn turn_span(&self, large: Millis) -> Millis {
        let in_vain = EARLY_FAILURE.max(self.config.reservation_timeout).min(large);
        let turn = self.config.turn.map_or(large, |turn| turn.max(large));
        turn + Millis(in_vain.0.saturating_mul(EARLY_FAILURES_MAX.into()))
    }

    fn large_span(&self, place: u32, s: Millis, l: Millis) -> Millis {
        let runs = self.nodes.values().any(|node| matches!(node.phase, Phase::Exclusive(_)));
        let cycles = u64::from(if runs { place } else { place - 1 });
        let first = if runs { Millis::default() } else { s };
        let span = first + Millis(cycles.saturating_mul((l + s).0));
        // Where nodes are kept open, one must open before the one that a large fits may close.
        if self.config.keep_open > 0 {
            span + Millis((l + s).0.saturating_mul(place.into()))
        } else {
            span
        }
    }

    /// A job that holds GPUs without an enforced limit.
    pub fn unlimited(&self) -> Option<JobId> {
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        holdings.filter(|(_, holding)| holding.latest_end.is_none()).map(|(&job, _)| job).min()
    }
}
