//! Sluice: one-GPU pods and whole-node pods share GPU nodes fairly.
//!
//! ```text
//! main ─► cli ─► plan, stream ► sim ─► policy      pure: no clock, no I/O, no async, ordered maps
//!            ├─► controller ─┐         ▲
//!            ├─► extender ───┼► translate ► api   feature "cluster"
//!            └─► agent ──────┴───────────────►
//! ```
//!
//! Dependencies point downward only. `policy` imports `std` and `serde`; what it decides is
//! carried out by `controller` and guarded by `extender`; `translate` is the one place where a
//! Kubernetes object becomes something that the policy knows.

pub mod cli;
pub mod clock;
pub mod explain;
pub mod journal;
pub mod plan;
pub mod policy;
pub mod sim;
pub mod stream;
pub mod telemetry;
pub mod timeline;
pub mod trace;

#[cfg(feature = "cluster")]
pub mod admin;
#[cfg(feature = "cluster")]
pub mod agent;
#[cfg(feature = "cluster")]
pub mod api;
#[cfg(feature = "cluster")]
pub mod controller;
#[cfg(feature = "cluster")]
pub mod extender;
#[cfg(feature = "cluster")]
pub mod metrics;
#[cfg(feature = "cluster")]
pub mod record;
#[cfg(feature = "cluster")]
pub mod shutdown;
#[cfg(feature = "cluster")]
pub mod translate;
