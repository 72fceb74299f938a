//! Pure side: what really happened on the GPUs, as a picture and as a verdict.
//!
//! Each container reports which GPUs it saw, from when to when; a watcher reports the phases of
//! the nodes. Put together they show which pod ran where, and [`check`] holds them against what
//! Sluice promises. Nothing here knows what the controller believes: the facts come from the
//! containers.
//!
//! # Input, format v1
//!
//! JSON lines, in any number of files and in any order (only phases of one node within the same
//! millisecond are taken in the order in which they stand); lines that say the same are one fact.
//! Empty lines and unknown fields are ignored, everything else that cannot be read is an error.
//! Times are milliseconds since 1970; a pod is written `name` or `namespace/name`, and one
//! container of it, the one with the GPUs, reports.
//!
//! ```text
//! {"event":"start","pod":"demo/a","uid":"1f..","gpus":["gpu-3"],"node":"n1","time_ms":1000}
//! {"event":"end","pod":"demo/a","uid":"1f..","time_ms":9000,"exit":0}
//! {"event":"pod","pod":"demo/a","uid":"1f..","shape":"small","created_ms":900,
//!  "admitted_ms":950,"bound_ms":960,"priority":5,"limit_ms":9000}       optional, on one line
//! {"event":"phase","node":"n1","phase":"Draining","for":"demo/b","time_ms":2000}   optional
//! {"event":"node","node":"n1","gpus":["gpu-0","gpu-1","gpu-2","gpu-3"]}            optional
//! ```
//!
//! Without a `node` line the GPUs of a node are those that some container saw, in natural order
//! (`gpu-2` before `gpu-10`). Without a `pod` line a pod with one GPU counts as small.

mod build;
pub mod check;
pub mod record;
pub mod svg;
pub mod text;
mod time;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use time::{length, utc};

/// How many GPUs of a node a pod needs.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shape {
    /// Exactly one.
    #[serde(rename = "small")]
    Small,
    /// Several of one node and not all: a wide small.
    #[serde(rename = "wide-small")]
    Wide,
    /// Every one, at the same instant.
    #[serde(rename = "whole-node-large")]
    Large,
}

impl Shape {
    /// Whether it waits among the smalls: a small, wide or not.
    pub const fn is_small(self) -> bool {
        matches!(self, Self::Small | Self::Wide)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Small => "small",
            Self::Wide => "wide-small",
            Self::Large => "whole-node-large",
        })
    }
}

/// What a node is doing.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Smalls are admitted as GPUs come free.
    Open,
    /// The gate is closed for a named large.
    Draining,
    /// A large holds the node.
    Exclusive,
    /// A bounded wave of smalls runs, and the gate is closed behind it.
    Wave,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open => "Open",
            Self::Draining => "Draining",
            Self::Exclusive => "Exclusive",
            Self::Wave => "Wave",
        })
    }
}

/// Everything that the records say, put together.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    /// The first moment worth showing: a pod was created, or a container started.
    pub begin_ms: u64,
    /// The last moment of which a record tells.
    pub end_ms: u64,
    /// By name.
    pub nodes: Vec<Node>,
    /// Smalls and larges together, in the order of their first start, then of their creation.
    pub pods: Vec<Pod>,
    /// Records that contradict each other, in sentences.
    pub contradictions: Vec<String>,
}

/// One node: its phases, and what ran on it.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// GPU ids in order; a [`Run`] names them by position.
    pub gpus: Vec<String>,
    /// Whether a `node` record lists the GPUs; else they are those that some container saw.
    pub listed: bool,
    /// One after the other, without a gap; empty if nobody watched.
    pub phases: Vec<PhaseSpan>,
    /// By start.
    pub runs: Vec<Run>,
}

/// A phase of a node, from when to when.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct PhaseSpan {
    /// Which.
    pub phase: Phase,
    /// The large that it is for, if it is for one.
    #[serde(rename = "for")]
    pub for_pod: Option<String>,
    /// From, inclusive.
    pub from_ms: u64,
    /// To, exclusive.
    pub to_ms: u64,
}

/// One container on its GPUs.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Position in [`Timeline::pods`].
    pub pod: usize,
    /// Positions in [`Node::gpus`], ascending.
    pub gpus: Vec<usize>,
    /// From, inclusive.
    pub from_ms: u64,
    /// To, exclusive. Without a reported end: the next start of the same pod, else the last moment
    /// of which a record tells.
    pub to_ms: u64,
    /// Whether an end was reported.
    pub ended: bool,
    /// Exit code, if it was reported.
    pub exit: Option<i32>,
}

/// One pod.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Pod {
    /// As the records write it, the namespace left out if every pod has the same.
    pub name: String,
    /// Kubernetes' identity of it.
    pub uid: String,
    /// As a `pod` record says, else guessed from the number of GPUs that it saw.
    pub shape: Shape,
    /// How many GPUs it asks for, if that is known.
    pub asked: Option<u32>,
    /// Whether a `pod` record says so.
    pub shape_known: bool,
    /// When the API server took it, if that is known.
    pub created_ms: Option<u64>,
    /// When Sluice reserved its GPUs, if that is known.
    pub admitted_ms: Option<u64>,
    /// When the API server bound it, if that is known.
    pub bound_ms: Option<u64>,
    /// When its first container started, if one did.
    pub started_ms: Option<u64>,
    /// When its last container ended, if all did.
    pub ended_ms: Option<u64>,
    /// Letters for it in the text view: lower case for a small, wide or not, upper case for a large.
    pub mark: String,
}

impl Pod {
    /// From creation to the first start.
    pub fn waited_ms(&self) -> Option<u64> {
        Some(self.started_ms?.saturating_sub(self.created_ms?))
    }

    /// From the first start to the last end.
    pub fn ran_ms(&self) -> Option<u64> {
        Some(self.ended_ms?.saturating_sub(self.started_ms?))
    }
}

impl Timeline {
    /// Puts records together; their order does not matter.
    pub fn new(records: Vec<record::Record>) -> Self {
        build::timeline(records)
    }

    /// Length of what is shown.
    pub fn span_ms(&self) -> u64 {
        self.end_ms.saturating_sub(self.begin_ms)
    }

    /// How many pods have that shape.
    fn count(&self, shape: Shape) -> usize {
        self.pods.iter().filter(|pod| pod.shape == shape).count()
    }
}
