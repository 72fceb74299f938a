//! The rule under test: timelines written as tables, faults, waits with their bounds, and random
//! histories against an independent model. Pure: needs no cluster feature.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod behind_gates;
mod bounds;
mod bounds_long;
mod changes;
mod corner_cases;
mod corrupt;
mod exact;
mod explained;
mod explained_cases;
mod faults;
mod invariants;
mod kept_open;
mod machine;
mod many_nodes;
mod model;
mod needed;
mod needs;
mod observed;
mod one_node;
mod plain;
mod promised;
mod promises;
mod quotas;
mod records;
mod restarts;
mod servable;
mod timeline;
mod told;
mod transitions;
mod values;
mod waits;
mod wide;
mod worlds;
mod worst;
