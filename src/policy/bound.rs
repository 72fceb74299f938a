//! Pure: when at the latest a waiting job starts, and what that rests on.
//!
//! With S and L the greatest enforced occupancy of a small and a large, and B the longest time
//! that larges follow one another without a wave, the large at place k of its queue starts within
//! k(L+S), and within S + (k-1)(L+S) if no large runs; the small at place p within
//! ceil(p/wave)(B+2S). Occupancy counts from reservation until the GPUs are free again.

use serde::{Deserialize, Serialize};

use super::{JobId, Millis, Phase, Pool, Shape};

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
}

impl Pool {
    /// When at the latest a job starts as things stand; `None` if it does not wait.
    pub fn bound(&self, job: JobId, now: Millis) -> Option<Bound> {
        let waiting = self.waiting.get(&job)?;
        let none = |basis| Some(Bound { latest_start: None, basis });
        if self.config.paused || !self.could_fit(&waiting.job) || !self.within_quota(job) {
            return none(Basis::HeldBack);
        }
        if waiting.job.shape == Shape::Large {
            let drained = self
                .nodes
                .values()
                .find(|node| matches!(node.phase, Phase::Draining(gate) if gate.job == job));
            if let Some(latest_start) = drained.and_then(|node| node.latest_end(now)) {
                return Some(Bound { latest_start: Some(latest_start), basis: Basis::Drain });
            }
        }
        if let Some(unlimited) = self.unlimited() {
            return none(Basis::Unlimited(unlimited));
        }
        let (Some(s), l) = (self.config.small_limit, self.config.large_limit) else {
            return none(Basis::NoLimit(Shape::Small));
        };
        let Some(l) = l else { return none(Basis::NoLimit(Shape::Large)) };
        let place = self.ahead(job)?.saturating_add(1);
        let from = now.max(waiting.retry_at);
        let span = match waiting.job.shape {
            Shape::Large => self.large_span(place, s, l),
            Shape::Small => {
                let rounds = u64::from(place.div_ceil(self.config.wave_size));
                let turn = self.config.turn.map_or(l, |turn| turn.max(l));
                Millis(rounds.saturating_mul((turn + s + s).0))
            }
        };
        Some(Bound { latest_start: Some(from + span), basis: Basis::Place(place) })
    }

    fn large_span(&self, place: u32, s: Millis, l: Millis) -> Millis {
        let runs = self.nodes.values().any(|node| matches!(node.phase, Phase::Exclusive(_)));
        let cycles = u64::from(if runs { place } else { place - 1 });
        let first = if runs { Millis::default() } else { s };
        first + Millis(cycles.saturating_mul((l + s).0))
    }

    /// A job that holds GPUs without an enforced limit.
    pub fn unlimited(&self) -> Option<JobId> {
        let holdings = self.nodes.values().flat_map(|node| &node.holdings);
        holdings.filter(|(_, holding)| holding.latest_end.is_none()).map(|(&job, _)| job).min()
    }
}
