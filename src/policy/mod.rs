//! Pure: the phase-fair rule. Facts and time go in, decisions with reasons come out.
//!
//! A [`Pool`] holds the queues of both shapes and the state of each node. Its only way to change
//! is [`Pool::step`]: inputs of one instant are applied in a fixed order (`facts.rs`), then one
//! dispatch decides (`dispatch.rs`):
//!
//! 1. reservations that were not bound in time are taken back (`reservations.rs`);
//! 2. where a large has ended, its credit is settled: one wave, or none (`credit.rs`);
//! 3. an empty node takes the first large at once;
//! 4. otherwise one node's gate closes for it, and its smalls finish (`gates.rs`);
//! 5. smalls go to open nodes, packed, and behind a gate only as backfill; the first wide one that
//!    finds no node with enough free GPUs has one kept for it;
//! 6. drains that outlast their limit are reported.
//!
//! Nothing here reads a clock, draws a random number, performs I/O or knows of Kubernetes, and
//! every collection is ordered, so the same inputs give the same decisions on every machine.

mod bound;
mod config;
mod credit;
mod decision;
mod dispatch;
mod explain;
mod facts;
mod gates;
mod gpus;
mod ids;
mod input;
pub mod invariants;
mod job;
mod node;
mod pool;
mod promises;
mod queue;
mod reservations;
mod state;
mod why;

pub use bound::{AllKeptOpen, Basis, Bound, Rests};
pub use config::{Config, ConfigError};
pub use decision::{Credit, Decision, OpenReason, UnreserveReason};
pub use explain::{
    Change, Effect, Enough, Explanation, Holder, Holders, Holds, Need, Standing, Unfit, Waits,
};
pub use gpus::{GpuSet, NoSuchGpu};
pub use ids::{JobId, Millis, NodeId, TenantId};
pub use input::Input;
pub use invariants::Violation;
pub use job::{Fits, Job, Outcome, QueueKey, Shape};
pub use node::{Counters, Gate, Holding, Kind, Node, NodeSpec, Phase, ShapeCounters, Stage, Turn};
pub use pool::{Pool, Waiting};
pub use promises::{BoundMoved, Cause, Promise, Promises, Stepped, Told};
pub use state::{Placed, Queued, State, StateError};
pub use why::{Gap, NoFit, Wait};
