//! Pure: what the rule is told.

use serde::{Deserialize, Serialize};

use super::{Config, GpuSet, Job, JobId, Millis, NodeId, NodeSpec, Outcome};

/// One fact about the world. Inputs of one instant are given to a step together and take effect
/// in the order of [`Input::rank`], so that replaying them gives the same decisions whatever order
/// they were collected in.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub enum Input {
    /// The GPUs of a job are free again.
    Released {
        /// The job.
        job: JobId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A job that holds no GPUs is gone.
    Withdrawn {
        /// The job.
        job: JobId,
    },
    /// A node is gone, and whatever ran there.
    NodeGone {
        /// The node.
        node: NodeId,
    },
    /// The settings of the pool.
    Configured(Box<Config>),
    /// A node appeared or changed.
    NodeChanged {
        /// The node.
        node: NodeId,
        /// What is known of it now.
        spec: NodeSpec,
    },
    /// A job is bound to the node that it was reserved on.
    Bound {
        /// The job.
        job: JobId,
    },
    /// A job runs.
    Started {
        /// The job.
        job: JobId,
        /// When it ends at the latest, counted from its real start.
        latest_end: Option<Millis>,
    },
    /// A job's object is gone, and its containers may still hold the GPUs.
    Vanished {
        /// The job.
        job: JobId,
    },
    /// The node gave a job these GPUs, which may be others than those reserved for it.
    Holds {
        /// The job.
        job: JobId,
        /// The GPUs.
        gpus: GpuSet,
    },
    /// A job that did not go through the rule holds GPUs.
    Foreign {
        /// The job.
        job: JobId,
        /// The node.
        node: NodeId,
        /// How many.
        count: u32,
        /// Which, if the node says so.
        gpus: Option<GpuSet>,
        /// When it ends at the latest, if something enforces it.
        latest_end: Option<Millis>,
    },
    /// A reservation did not become a binding: it was refused.
    BindFailed {
        /// The job.
        job: JobId,
    },
    /// A job waits, or what is known of it changed.
    Queued(Box<Job>),
}

impl Input {
    /// The place of this kind of fact within one instant: what ended, what went away, what
    /// changed, what arrived.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Released { .. } => 0,
            Self::Withdrawn { .. } => 1,
            Self::NodeGone { .. } => 2,
            Self::Configured(_) => 3,
            Self::NodeChanged { .. } => 4,
            Self::Bound { .. } => 5,
            Self::Started { .. } => 6,
            Self::Vanished { .. } => 7,
            Self::Holds { .. } => 8,
            Self::Foreign { .. } => 9,
            Self::BindFailed { .. } => 10,
            Self::Queued(_) => 11,
        }
    }

    /// Whom the fact is about, which orders facts of one kind.
    pub(super) fn subject(&self) -> u64 {
        match self {
            Self::Released { job, .. }
            | Self::Withdrawn { job }
            | Self::Bound { job }
            | Self::Started { job, .. }
            | Self::Vanished { job }
            | Self::Holds { job, .. }
            | Self::Foreign { job, .. }
            | Self::BindFailed { job } => job.0,
            Self::Queued(job) => job.id.0,
            Self::NodeGone { node } | Self::NodeChanged { node, .. } => u64::from(node.0),
            Self::Configured(_) => 0,
        }
    }
}
