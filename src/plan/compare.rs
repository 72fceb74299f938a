//! Pure side: the ladder of policies over one problem.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;

use super::Schedule;
use super::check::{Violation, check};
use super::explain::{Explained, Explanation, Reason};
use super::metrics::{Metrics, measure};
use super::planner::{Planner, Settings};
use super::score::Weights;
use super::search::Control;
use crate::sim::phase_fair::{PhaseFair, Unfit};
use crate::sim::queues::{Order, Pass, Queue, Realtime};
use crate::sim::{self, Problem};

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
    /// The planner, which sees no future arrival.
    PlanOnline,
    /// The planner, which knows every arrival.
    PlanOffline,
}

impl Name {
    /// Every policy, from the simplest up.
    pub const ALL: [Self; 11] = [
        Self::FifoStrictPeak,
        Self::FifoSkipPeak,
        Self::EasyPeak,
        Self::FifoStrictElastic,
        Self::FifoSkipElastic,
        Self::EasyElastic,
        Self::Greedy,
        Self::StrictLarge,
        Self::PhaseFair,
        Self::PlanOnline,
        Self::PlanOffline,
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
            Self::PlanOnline => "plan-online",
            Self::PlanOffline => "plan-offline",
        }
    }

    /// Whether it reserves the peak of each service all day.
    pub fn reserves_peak(self) -> bool {
        matches!(self, Self::FifoStrictPeak | Self::FifoSkipPeak | Self::EasyPeak)
    }

    fn queue(self) -> Option<Queue> {
        let (order, pass, realtime) = match self {
            Self::FifoStrictPeak => (Order::Arrival, Pass::Nobody, Realtime::Peak),
            Self::FifoSkipPeak => (Order::Arrival, Pass::Anybody, Realtime::Peak),
            Self::EasyPeak => (Order::Arrival, Pass::Harmless, Realtime::Peak),
            Self::FifoStrictElastic => (Order::Arrival, Pass::Nobody, Realtime::Elastic),
            Self::FifoSkipElastic => (Order::Arrival, Pass::Anybody, Realtime::Elastic),
            Self::EasyElastic => (Order::Arrival, Pass::Harmless, Realtime::Elastic),
            Self::Greedy => (Order::Priority, Pass::Anybody, Realtime::Elastic),
            Self::StrictLarge => (Order::Widest, Pass::Nobody, Realtime::Elastic),
            Self::PhaseFair | Self::PlanOnline | Self::PlanOffline => return None,
        };
        Some(Queue::new(order, pass, realtime))
    }

    fn settings(self, effort: &Effort) -> Settings {
        let Effort { seed, weights, control, online, offline } = effort;
        let (mut settings, schedules) = match self {
            Self::PlanOffline => (Settings::offline(*seed), offline),
            _ => (Settings::online(*seed), online),
        };
        settings.schedules = *schedules;
        settings.weights = *weights;
        settings.control.clone_from(control);
        settings
    }
}

/// How hard planners try.
#[derive(Clone, Debug, Default)]
pub struct Effort {
    /// Seed of the search.
    pub seed: u64,
    /// What the terms of the score weigh.
    pub weights: Weights,
    /// Whoever watches the search.
    pub control: Option<Arc<Control>>,
    /// Schedules that the online planner may try each time that it plans, where not the usual.
    pub online: Option<u32>,
    /// Schedules that the offline planner may try, where not the usual.
    pub offline: Option<u32>,
}

impl Effort {
    /// Schedules that a policy may try each time that it plans; zero for one that does not plan.
    /// `jobs` are those that it plans.
    pub fn budget(&self, name: Name, jobs: usize) -> u64 {
        match name {
            Name::PlanOnline | Name::PlanOffline => u64::from(name.settings(self).budget(jobs)),
            _ => 0,
        }
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
    /// Planners know one line of GPUs.
    #[error("planners plan one node, and there are {0}")]
    Nodes(usize),
    /// Too long a grid.
    #[error(
        "{0} steps are too many for a plan (at most {PLAN_STEPS_MAX}): use a longer --step or a shorter --horizon"
    )]
    Steps(u64),
    /// Too many jobs.
    #[error("{0} jobs are too many for a plan (at most {PLAN_JOBS_MAX})")]
    Jobs(usize),
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
    /// Why each job was started and what that was worth, in order of start; empty where there is
    /// too much work for it.
    pub explanations: Vec<Explanation>,
}

impl Entry {
    /// What is not legal about it.
    pub fn violations(&self, problem: &Problem) -> Vec<Violation> {
        check(problem, &self.schedule)
    }
}

/// The longest grid that planners are asked to plan on.
const PLAN_STEPS_MAX: u64 = 4_096;
/// The most jobs that one plan can hold.
const PLAN_JOBS_MAX: usize = 4_096;

/// Runs one policy over a problem.
pub fn play(problem: &Problem, name: Name, effort: &Effort) -> Result<Entry, Error> {
    if let Some(mut queue) = name.queue() {
        return watched(problem, name, effort, &mut queue, |_| BTreeMap::new());
    }
    if name == Name::PhaseFair {
        let mut rule = PhaseFair::new(problem)?;
        return watched(problem, name, effort, &mut rule, |_| BTreeMap::new());
    }
    plannable(problem)?;
    let mut planner = Planner::new(name.settings(effort));
    watched(problem, name, effort, &mut planner, |planner| planner.reasons().clone())
}

/// Plays a policy and explains what it does; `reasons` are those that it gives itself.
fn watched<P: sim::Policy>(
    problem: &Problem,
    name: Name,
    effort: &Effort,
    policy: &mut P,
    reasons: impl FnOnce(&P) -> BTreeMap<usize, Reason>,
) -> Result<Entry, Error> {
    let each = explainable(problem);
    let mut explained = Explained::new(policy, effort.weights, effort.control.as_deref(), each);
    let outcome = sim::run(problem, &mut explained)?;
    let mut explanations = explained.finish();
    let reasons = reasons(policy);
    for why in &mut explanations {
        why.reason = reasons.get(&why.job).copied().unwrap_or(why.reason);
    }
    let schedule = Schedule::new(problem, outcome.runs, outcome.rejected);
    let metrics = measure(problem, &schedule);
    Ok(Entry { name, schedule, metrics, explanations })
}

/// Whether there is little enough work to explain each start of it.
fn explainable(problem: &Problem) -> bool {
    problem.jobs.len() <= PLAN_JOBS_MAX && problem.steps() <= PLAN_STEPS_MAX
}

/// Whether planners can plan it, and bounds be proved within seconds.
pub fn plannable(problem: &Problem) -> Result<(), Error> {
    if problem.nodes > 1 {
        return Err(Error::Nodes(problem.nodes));
    }
    if problem.steps() > PLAN_STEPS_MAX {
        return Err(Error::Steps(problem.steps()));
    }
    if problem.jobs.len() > PLAN_JOBS_MAX {
        return Err(Error::Jobs(problem.jobs.len()));
    }
    Ok(())
}
