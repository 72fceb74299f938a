//! Pure: everything that can be said of one job at one moment, as one value: its rank, the rule
//! that holds it, what must happen first, when it starts at the latest, and what would change
//! that. Sentences, JSON and conditions are renderings of it (`src/explain`).
//!
//! What must happen first is not reasoned out beside the rule: it is found by playing the rule
//! itself forward (`course.rs`), and `needs.rs` says what the list of it promises.

mod changes;
mod choice;
mod course;
mod needs;

use needs::Needs;
use serde::{Deserialize, Serialize};

use super::{Basis, Bound, Holding, Job, JobId, Millis, NodeId, Pool, Rests, Shape, Wait, Waiting};

pub use changes::{Change, Effect};

/// Jobs and nodes that are named one by one; of more the rest is counted.
const NAMED_MAX: usize = 16;

pub use needs::{Enough, Holder, Holders, Need, Unfit};

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
    /// Who still holds GPUs of the node that is emptied for it, or has its wave before it.
    pub holders: Holders,
    /// What must happen first, in this order. Nothing in a [`Pool::glance`].
    pub needs: Vec<Need>,
    /// Whether not all was tried, so that fewer of those may be enough, or others.
    pub rough: bool,
    /// When it starts if all of that takes as long as it may and nothing else arrives, where
    /// something limits each part of it.
    pub foreseen: Option<Millis>,
    /// When it starts at the latest, whatever arrives.
    pub bound: Bound,
    /// The spans of time that a bound by place is made of.
    pub rests: Rests,
    /// What would change that. Nothing in a [`Pool::glance`].
    pub changes: Vec<Change>,
}

impl Waits {
    /// Takes what the job was told before for its latest start.
    pub fn promised(&mut self, told: Bound) {
        self.rests.told_before = told.latest_start < self.bound.latest_start;
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

impl Pool {
    /// What can be said of a job; nothing of one that neither waits nor holds GPUs.
    pub fn explain(&self, job: JobId, now: Millis) -> Option<Explanation> {
        let mut explanation = self.glance(job, now)?;
        if let (Standing::Waits(waits), Some(waiting)) =
            (&mut explanation.standing, self.waiting.get(&job))
        {
            let Needs { first, rough, foreseen } = self.needs(waiting, &waits.wait, now);
            (waits.needs, waits.rough, waits.foreseen) = (first, rough, foreseen);
            waits.changes = self.changes(waiting, waits, now);
        }
        Some(explanation)
    }

    /// The same without a look ahead, which takes as long as a few hundred decisions: what
    /// conditions are made of.
    pub fn glance(&self, job: JobId, now: Millis) -> Option<Explanation> {
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
        let (wait, figure) = (self.why(job, now)?, self.figure_of(job, now)?);
        let mut bound = figure.bound;
        if let Basis::Unlimited(other) = bound.basis
            && self.holding(other).is_some_and(|holding| holding.latest_end.is_some())
        {
            bound.basis = Basis::Outlasted(other);
        }
        let holders = match wait {
            Wait::Draining { node, .. } | Wait::Wave { node, .. } => self.holders_of(node),
            _ => Holders::default(),
        };
        Some(Waits {
            place: self.ahead(job)?.saturating_add(1),
            of: self.waiting_beside(waiting.job.shape),
            wait,
            holders,
            needs: Vec::new(),
            rough: false,
            foreseen: None,
            bound,
            rests: self.rests(figure, now),
            changes: Vec::new(),
        })
    }
}
