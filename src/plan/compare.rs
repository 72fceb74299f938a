//! Pure side: the ladder of policies over one problem.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Schedule;
use super::check::{Violation, check};
use super::metrics::{Metrics, measure};
use crate::sim::phase_fair::{PhaseFair, Unfit};
use crate::sim::queues::{Order, Pass, Queue, Realtime};
use crate::sim::{self, Policy, Problem};

/// A policy, by the name that the command line knows it by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Name {
    /// First come, first served; the first blocks everybody; services reserved at their peak.
    FifoStrictPeak,
    /// As before, but whoever fits passes.
    FifoSkipPeak,
    /// As before, but whoever passes must not delay the first.
    EasyPeak,
    /// Strict FIFO with services held to their forecast.
    FifoStrictElastic,
    /// Skipping FIFO with services held to their forecast.
    FifoSkipElastic,
    /// EASY backfill with services held to their forecast.
    EasyElastic,
    /// Whatever fits starts, by priority.
    Greedy,
    /// The widest first; nobody passes.
    StrictLarge,
    /// The live rule.
    PhaseFair,
}

impl Name {
    /// Every policy, from the simplest up.
    pub const ALL: [Self; 9] = [
        Self::FifoStrictPeak,
        Self::FifoSkipPeak,
        Self::EasyPeak,
        Self::FifoStrictElastic,
        Self::FifoSkipElastic,
        Self::EasyElastic,
        Self::Greedy,
        Self::StrictLarge,
        Self::PhaseFair,
    ];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FifoStrictPeak => "fifo-strict-peak",
            Self::FifoSkipPeak => "fifo-skip-peak",
            Self::EasyPeak => "easy-peak",
            Self::FifoStrictElastic => "fifo-strict-elastic",
            Self::FifoSkipElastic => "fifo-skip-elastic",
            Self::EasyElastic => "easy-elastic",
            Self::Greedy => "greedy",
            Self::StrictLarge => "strict-large",
            Self::PhaseFair => "phase-fair",
        }
    }

    /// Whether it reserves the peak of each service all day.
    pub fn reserves_peak(self) -> bool {
        matches!(self, Self::FifoStrictPeak | Self::FifoSkipPeak | Self::EasyPeak)
    }

    fn policy(self, problem: &Problem) -> Result<Box<dyn Policy>, Error> {
        let queue = |order, pass, realtime| Box::new(Queue::new(order, pass, realtime));
        let (arrival, peak, elastic) = (Order::Arrival, Realtime::Peak, Realtime::Elastic);
        Ok(match self {
            Self::FifoStrictPeak => queue(arrival, Pass::Nobody, peak),
            Self::FifoSkipPeak => queue(arrival, Pass::Anybody, peak),
            Self::EasyPeak => queue(arrival, Pass::Harmless, peak),
            Self::FifoStrictElastic => queue(arrival, Pass::Nobody, elastic),
            Self::FifoSkipElastic => queue(arrival, Pass::Anybody, elastic),
            Self::EasyElastic => queue(arrival, Pass::Harmless, elastic),
            Self::Greedy => queue(Order::Priority, Pass::Anybody, elastic),
            Self::StrictLarge => queue(Order::Widest, Pass::Nobody, elastic),
            Self::PhaseFair => Box::new(PhaseFair::new(problem)?),
        })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|name| name.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str);
            format!("no policy is called {text:?}; there are {}", names.join(", "))
        })
    }
}

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Why a policy gave no schedule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It cannot serve such work.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It did what cannot be done.
    #[error("the policy is at fault: {0}")]
    Fault(#[from] sim::Fault),
}

/// What a policy made of the problem.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The policy.
    pub name: Name,
    /// Who ran where.
    pub schedule: Schedule,
    /// What that is worth.
    pub metrics: Metrics,
}

impl Entry {
    /// What is not legal about it.
    pub fn violations(&self, problem: &Problem) -> Vec<Violation> {
        check(problem, &self.schedule)
    }
}

/// Runs one policy over a problem.
pub fn play(problem: &Problem, name: Name) -> Result<Entry, Error> {
    let mut policy = name.policy(problem)?;
    let outcome = sim::run(problem, policy.as_mut())?;
    let schedule = Schedule::new(problem, outcome.runs, outcome.rejected);
    let metrics = measure(problem, &schedule);
    Ok(Entry { name, schedule, metrics })
}
