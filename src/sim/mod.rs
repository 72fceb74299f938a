//! Pure: virtual time. One engine plays arrivals, ends and changes of demand to a policy and
//! carries out what it starts; the policies stand beside one another under the same rules.
//!
//! ```text
//! Problem ─► engine ◄─► Policy: queues, rivals (FIFO, EASY, …) │ phase_fair (the live rule)
//!               │                │ variants (what was tried beside it) │ plan::online
//!               └──► Outcome: who ran where from when to when
//! ```
//!
//! Nothing here knows what a start is worth; figures are taken from the outcome afterwards.

mod engine;
pub mod phase_fair;
mod problem;
pub mod profile;
pub mod queues;
pub mod rivals;
pub mod variants;

pub use engine::{Fault, Moment, Outcome, Policy, Running, Start, State, run};
pub use problem::{Curve, Job, Problem, Run, Service, Shape};
