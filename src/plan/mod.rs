//! Pure side: what an order of service is worth.
//!
//! ```text
//! trace::Workload ─► build ─► sim::Problem ─► sim::run(policy) ─► realtime ─► Schedule
//!                                  │              ▲                              │
//!                                  ├─► bound      └─ online / offline            ├─► check
//!                                  │      └─► certificate     (kernel, search)   └─► metrics
//! ```
//!
//! `docs/planning.md` has the model. Decisions are made in integers and ties are broken by place,
//! so the same input and seed give the same bytes on every machine; floating point appears only
//! in what is printed, and in the search for a bound, whose result is checked in integers.

pub mod bound;
pub mod build;
pub mod certificate;
pub mod check;
pub mod compare;
pub mod explain;
pub mod family;
mod guard;
pub mod html;
pub mod kernel;
pub mod metrics;
pub mod noise;
pub mod picture;
pub mod planner;
pub mod realtime;
pub mod report;
pub mod review;
pub mod score;
pub mod search;

use serde::Serialize;

use crate::sim::{Problem, Run};

/// Who ran where, and which GPUs each service had.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Schedule {
    /// Jobs, in order of start.
    pub runs: Vec<Run>,
    /// GPUs in the hands of services.
    pub held: Vec<realtime::Held>,
    /// Jobs that the policy refused, because they can never fit its rule.
    pub rejected: Vec<usize>,
}

impl Schedule {
    /// A schedule of jobs, with services given what is left.
    pub fn new(problem: &Problem, runs: Vec<Run>, rejected: Vec<usize>) -> Self {
        let held = realtime::serve(problem, &runs);
        Self { runs, held, rejected }
    }
}
