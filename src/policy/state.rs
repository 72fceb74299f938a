//! Pure: a pool's whole state as a value, for records that can be replayed.
//!
//! A ledger holds what must outlive the controller, and a pool restored from ledgers has forgotten
//! back-offs. This is everything: a pool made of it decides as the one that it was taken from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Config, ConfigError, Counters, JobId, Millis, Node, NodeId, Pool, Shape, Told, Waiting,
};

/// No pool has seen so many jobs end; sums over its nodes stay far from what a number holds.
const COUNT_MAX: u64 = 1 << 48;

/// A state that is refused, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// Its settings are.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A counter that no pool has come to.
    #[error("a count of {0} jobs, which no pool has seen")]
    Count(u64),
}

/// Everything that the decisions of a pool rest on.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The settings.
    pub config: Config,
    /// The nodes, with who holds their GPUs.
    pub nodes: BTreeMap<NodeId, Node>,
    /// The jobs that wait, in the order in which they are served, larges first.
    pub waiting: Vec<Queued>,
    /// The jobs that hold GPUs and went through the rule.
    pub placed: Vec<Placed>,
    /// The others that hold GPUs, and where.
    pub foreign: BTreeMap<JobId, NodeId>,
    /// Ends that no node counts.
    pub elsewhere: Counters,
    /// What waiting jobs were told of their latest starts, which rests beside the pool and decides
    /// nothing. Records of before it was kept do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<Told>,
}

/// A job that waits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Queued {
    /// The job, and what came of it so far.
    pub waiting: Waiting,
    /// Whether the time at which it may be admitted again was still to come at the last decision.
    pub stands_back: bool,
}

/// A job that holds GPUs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    /// The job, and what came of it before it was admitted.
    pub waiting: Waiting,
    /// Where.
    pub node: NodeId,
}

impl Pool {
    /// Everything that further decisions rest on; what was told is for [`Promises`] to add.
    ///
    /// [`Promises`]: super::Promises
    pub fn state(&self) -> State {
        let queued = |waiting: &Waiting| Queued {
            waiting: waiting.clone(),
            stands_back: self.standing_back.contains(&(waiting.retry_at, waiting.job.id)),
        };
        let placed =
            |(node, waiting): &(NodeId, Waiting)| Placed { waiting: waiting.clone(), node: *node };
        let larges = self.queue(Shape::Large).map(queued);
        State {
            config: self.config.clone(),
            nodes: self.nodes.clone(),
            waiting: larges.chain(self.queue(Shape::Small).map(queued)).collect(),
            placed: self.placed.values().map(placed).collect(),
            foreign: self.foreign.clone(),
            elsewhere: self.elsewhere,
            told: None,
        }
    }

    /// The pool that has this state.
    pub fn from_state(state: State) -> Result<Self, StateError> {
        let counters = state.nodes.values().map(|node| &node.counters).chain([&state.elsewhere]);
        let counts = counters.flat_map(|counters| [counters.small, counters.large]);
        let counts = counts.flat_map(|of| [of.admitted, of.completed, of.failed, of.cancelled]);
        if let Some(count) = counts.max().filter(|&count| count > COUNT_MAX) {
            return Err(StateError::Count(count));
        }
        let mut pool = Self::new(state.config)?;
        pool.nodes = state.nodes;
        for Queued { waiting, stands_back } in state.waiting {
            // Whether it stands back was settled at the time of the last decision.
            let settled = if stands_back { Millis::default() } else { Millis(u64::MAX) };
            pool.wait(waiting, settled);
        }
        for Placed { waiting, node } in state.placed {
            pool.placed.insert(waiting.job.id, (node, waiting));
        }
        pool.foreign = state.foreign;
        pool.elsewhere = state.elsewhere;
        pool.charge_all();
        Ok(pool)
    }
}
