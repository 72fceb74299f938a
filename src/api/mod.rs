//! Cluster side: the custom resources `GpuPool` and `GpuNode` (`sluice.dev/v1alpha1`).
//!
//! The Rust types are the source; `sluice crd` writes the YAML under `crds/` from them and a test
//! compares. Field docs become what `kubectl explain` prints, so they speak to an operator.

pub mod names;
mod node;
mod options;
mod pool;

pub use node::{
    Counters, DrainStatus, GpuHealth, GpuNode, GpuNodeSpec, GpuNodeStatus, GpuStatus, NodePhase,
    PodRef, Reservation, ReservationKind, ReservationState, TurnStatus, WaveStatus,
};
pub use options::{Backfill, Preset};
pub use pool::{
    DrainSpec, GpuPool, GpuPoolSpec, GpuPoolStatus, GpuTotals, LimitsSpec, NodeTotals, OnTimeLimit,
    QuotaSpec, ShapeCounters, ShapeLimit, ShapeQueue, ShapeStatus,
};
