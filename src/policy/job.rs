//! Pure: what the rule knows of one job.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{JobId, Millis, NodeId, TenantId};

/// How many GPUs of a node a job needs.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Shape {
    /// Exactly one.
    Small,
    /// So many of one node at the same instant, more than one and fewer than all: a wide small. It
    /// waits in the smalls' queue.
    Wide(u32),
    /// Every one, at the same instant.
    Large,
}

impl Shape {
    /// GPUs that a job of this shape holds, on nodes of so many.
    pub const fn gpus(self, gpus_per_node: u32) -> u32 {
        match self {
            Self::Small => 1,
            Self::Wide(gpus) => gpus,
            Self::Large => gpus_per_node,
        }
    }

    /// Whether it waits in the smalls' queue: a small, wide or not.
    pub const fn is_small(self) -> bool {
        matches!(self, Self::Small | Self::Wide(_))
    }
}

/// Nodes that a job may be placed on.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Fits {
    /// Any node of the pool.
    #[default]
    Any,
    /// Only these (selectors, affinity, taints: the caller's reading of them).
    Only(BTreeSet<NodeId>),
}

impl Fits {
    /// Whether `node` is one of them.
    pub fn on(&self, node: NodeId) -> bool {
        match self {
            Self::Any => true,
            Self::Only(nodes) => nodes.contains(&node),
        }
    }
}

/// One job, as it waits and as it runs.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its number, which also breaks ties of the order.
    pub id: JobId,
    /// One GPU, several, or all.
    pub shape: Shape,
    /// Higher goes first within the queue.
    pub priority: i32,
    /// When it was created.
    pub created: Millis,
    /// The longest time from reservation until the GPUs are free again, if something enforces it.
    pub limit: Option<Millis>,
    /// Whose quota it is charged to.
    pub tenant: TenantId,
    /// Where it may run.
    pub fits: Fits,
}

/// Position in a queue: priority, then creation time, then recorded sequence.
pub type QueueKey = (Reverse<i32>, Millis, JobId);

impl Job {
    /// Where the job stands in its queue; lower goes first.
    pub fn queue_key(&self) -> QueueKey {
        (Reverse(self.priority), self.created, self.id)
    }
}

/// How a job that held GPUs ended.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// By itself, with success.
    Completed,
    /// With failure: exit code, deadline, eviction, refusal by the node.
    Failed,
    /// It was deleted.
    Cancelled,
}
