//! The scenarios of `data/`, and small problems by hand.

use std::path::PathBuf;

use sluice::plan::build::{self, Frame};
use sluice::plan::compare::Effort;
use sluice::sim::Problem;
use sluice::trace::{Source, Workload};

pub(crate) const SCENARIOS: [&str; 7] = [
    "1-training-heavy",
    "2-inference-heavy",
    "3-mixed",
    "4-bursty-realtime",
    "5-small-jobs",
    "6-fragmentation",
    "7-saturated-batch",
];

pub(crate) fn data(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn workload(scenario: &str) -> Workload {
    let jobs = data(&format!("scenarios/{scenario}.csv"));
    let demand = data(&format!("scenarios/{scenario}.demand.csv"));
    let source = |content| Source { name: "test", content };
    Workload::read(source(&jobs), Some(source(&demand))).unwrap_or_else(|faults| panic!("{faults}"))
}

pub(crate) fn problem(scenario: &str) -> Problem {
    build::problem(&workload(scenario), Frame::default())
        .expect("a scenario fits the default frame")
}

/// Searches short enough for a build without optimisation.
pub(crate) fn quick() -> Effort {
    Effort { seed: 1, online: Some(300), offline: Some(6_000), ..Effort::default() }
}
