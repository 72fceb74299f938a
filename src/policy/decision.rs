//! Pure: what the rule says, each with its reason.

use serde::{Deserialize, Serialize};

use super::invariants::Violation;
use super::{GpuSet, JobId, Kind, Millis, NodeId};

/// One decision. The state already contains it; the caller carries it out.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub enum Decision {
    /// GPUs are promised to a job.
    Reserved {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// The GPUs.
        gpus: GpuSet,
        /// By which rule.
        kind: Kind,
    },
    /// A promise is taken back; the job waits again.
    Unreserved {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// Why.
        reason: UnreserveReason,
        /// When it may be admitted again.
        retry_at: Millis,
    },
    /// A node's gate closes for a large.
    GateClosed {
        /// The node.
        node: NodeId,
        /// The large.
        job: JobId,
        /// When the node is empty at the latest.
        latest_end: Option<Millis>,
    },
    /// A closed gate is now for another large, which stands before the other in the queue.
    GateRetargeted {
        /// The node.
        node: NodeId,
        /// For whom it was closed.
        from: JobId,
        /// For whom it is closed now.
        to: JobId,
    },
    /// A closed gate opens without a large.
    GateOpened {
        /// The node.
        node: NodeId,
        /// For whom it was closed.
        job: JobId,
        /// Why.
        reason: OpenReason,
    },
    /// A large ended; what becomes of the credit.
    CreditSettled {
        /// The node.
        node: NodeId,
        /// What.
        credit: Credit,
    },
    /// A bounded wave starts.
    WaveStarted {
        /// The node.
        node: NodeId,
        /// Smalls admitted.
        admitted: u32,
        /// The large that the gate behind the wave is closed for.
        next: JobId,
    },
    /// A drain has outlasted its time limit, or the limits of its holders.
    DrainOverdue {
        /// The node.
        node: NodeId,
        /// The large that waits.
        job: JobId,
        /// Who holds it up.
        blockers: Vec<JobId>,
    },
    /// A job that holds up an overdue drain is to be evicted.
    Evict {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
    },
    /// A commit was refused because it would have broken an invariant: a fault of the rule.
    Refused {
        /// The job that was to be admitted.
        job: JobId,
        /// The node.
        node: NodeId,
        /// What would have been broken.
        violation: Violation,
    },
    /// The world itself breaks an invariant (a pod that goes round the rule can do so).
    Observed {
        /// The node.
        node: NodeId,
        /// What is broken.
        violation: Violation,
    },
}

impl Decision {
    /// The node and the job that it is about.
    pub fn about(&self) -> (NodeId, Option<JobId>) {
        match *self {
            Self::Reserved { job, node, .. }
            | Self::Unreserved { job, node, .. }
            | Self::GateClosed { node, job, .. }
            | Self::GateOpened { node, job, .. }
            | Self::DrainOverdue { node, job, .. }
            | Self::Evict { job, node }
            | Self::Refused { job, node, .. } => (node, Some(job)),
            Self::GateRetargeted { node, to, .. } => (node, Some(to)),
            Self::WaveStarted { node, next, .. } => (node, Some(next)),
            Self::CreditSettled { node, .. } | Self::Observed { node, .. } => (node, None),
        }
    }
}

/// Why a promise was taken back.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnreserveReason {
    /// It was not bound in time.
    Expired,
    /// The binding was refused.
    BindFailed,
    /// A GPU of it is no longer healthy, or the node takes no new work.
    NodeUnfit,
    /// Another pod has its GPUs.
    Displaced,
    /// The node is gone.
    NodeGone,
}

/// Why a gate opened without a large.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenReason {
    /// No large waits that could use the node.
    NoLargeWaits,
    /// Larges wait, and other gates are enough for them.
    NotNeeded,
    /// The node can take no large now: a GPU is unhealthy, or it takes no new work.
    NodeUnfit,
}

/// What becomes of the credit when a large ends.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credit {
    /// Smalls wait and no other node serves them: they get one wave here.
    Wave,
    /// No large waits: smalls are served without restriction, which consumes it.
    NoLargeWaits,
    /// No small waits: there is nobody to give it to.
    NoSmallWaits,
    /// Another node is open, where smalls are served meanwhile.
    OtherNodeOpen,
    /// Another node is in a wave or drains, and the pool has one at a time.
    OtherNodeNext,
    /// The larges' turn is not over.
    TurnContinues,
    /// The node takes no new work now.
    NodeUnfit,
}
