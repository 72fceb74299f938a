//! Pure: what the policy was told and what it decided, as records that can be replayed.
//!
//! One record is one line of JSON. A *state* is everything that a pool's decisions rest on at one
//! moment; a *step* is one call of [`Promises::step`](crate::policy::Promises::step): what the pool
//! was told, when, what it decided, and who was told a later start. A step whose inputs follow a
//! state can be decided again, by this code or by another version of it, and
//! [`replay`](mod@replay) says whether all is the same. The format is written down in
//! `docs/records.md`; [`VERSION`] is part of each line.

mod read;
mod recorder;
pub mod replay;
mod report;

use serde::{Deserialize, Serialize};

use crate::explain::NameTable;
use crate::policy::{BoundMoved, Decision, Input, State};

pub use read::read;
pub use recorder::{Recorder, Snapshot};
pub use replay::{Difference, End, Played, What, replay};

/// The version of the format, in each record. It changes whenever a record of before could be
/// understood differently than it was meant.
pub const VERSION: u32 = 1;

/// One record.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The version of the format.
    pub v: u32,
    /// The pool.
    pub pool: String,
    /// The number of a step, one more than that of the step before it. A state has the number of
    /// the last step before it.
    pub seq: u64,
    /// When, in milliseconds of the Unix epoch.
    pub now_ms: u64,
    /// Who the numbers stand for that are new here. Says nothing to the policy.
    #[serde(default, skip_serializing_if = "NameTable::is_empty")]
    pub names: NameTable,
    /// What it is.
    pub is: Kind,
}

/// What a record is.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Kind {
    /// The whole state of the pool.
    State(Box<State>),
    /// One step of the policy.
    Step {
        /// What it was told.
        inputs: Vec<Input>,
        /// What it decided.
        decisions: Vec<Decision>,
        /// Which waiting jobs were told a later time, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        moved: Vec<BoundMoved>,
    },
}

impl Record {
    /// The record as its line, without the end of the line.
    pub fn line(&self) -> String {
        // Only a map with keys that are no strings, or an error of the disk, could fail: the
        // record has numbers, strings, lists and maps by number.
        serde_json::to_string(self).unwrap_or_default()
    }
}
