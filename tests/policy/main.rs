//! The rule under test: timelines written as tables, faults, waits with their bounds, and random
//! histories against an independent model. Pure: needs no cluster feature.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod corner_cases;
mod faults;
mod many_nodes;
mod seed;
mod timeline;
mod waits;
