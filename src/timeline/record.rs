//! Pure side: the records of the timeline, and how they are read from JSON lines.

use std::fmt;

use serde::Deserialize;

use super::{Phase, Shape};

/// One line of the input. The order of the variants is the order in which they are applied.
#[derive(Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Record {
    /// The GPUs of a node, in order.
    Node {
        /// The node.
        node: String,
        /// All of them.
        gpus: Vec<String>,
    },
    /// A node went into a phase.
    Phase {
        /// When.
        time_ms: u64,
        /// The node.
        node: String,
        /// Which phase.
        phase: Phase,
        /// The large that it is for.
        #[serde(rename = "for", default)]
        for_pod: Option<String>,
    },
    /// What the API server knows of a pod.
    Pod {
        /// `name` or `namespace/name`.
        pod: String,
        /// Its identity.
        uid: String,
        /// Its shape.
        shape: Shape,
        /// GPUs that it asks for.
        #[serde(default)]
        gpus: Option<u32>,
        /// `metadata.creationTimestamp`.
        #[serde(default)]
        created_ms: Option<u64>,
        /// When Sluice reserved its GPUs.
        #[serde(default)]
        admitted_ms: Option<u64>,
        /// When it was bound to a node.
        #[serde(default)]
        bound_ms: Option<u64>,
        /// `spec.priority`.
        #[serde(default)]
        priority: Option<i64>,
        /// The longest that it may run: `spec.activeDeadlineSeconds`.
        #[serde(default)]
        limit_ms: Option<u64>,
    },
    /// A container began, and saw these GPUs.
    Start {
        /// When.
        time_ms: u64,
        /// `name` or `namespace/name`.
        pod: String,
        /// Identity of the pod.
        uid: String,
        /// The node on which it runs.
        node: String,
        /// The GPUs that it saw.
        gpus: Vec<String>,
    },
    /// A container ended.
    End {
        /// When.
        time_ms: u64,
        /// `name` or `namespace/name`.
        pod: String,
        /// Identity of the pod.
        uid: String,
        /// Exit code.
        #[serde(default)]
        exit: Option<i32>,
    },
}

/// A line that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// File name, as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Why.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Reads one file: appends what can be read to `records` and the rest to `faults`, so that one
/// call per file reports every bad line at once.
pub fn read(file: &str, content: &[u8], records: &mut Vec<Record>, faults: &mut Vec<Fault>) {
    for (at, line) in content.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match parse(line) {
            Ok(record) => records.push(record),
            Err(message) => faults.push(Fault { file: file.to_owned(), line: at + 1, message }),
        }
    }
}

fn parse(line: &[u8]) -> Result<Record, String> {
    let record: Record = serde_json::from_slice(line).map_err(|error| describe(&error))?;
    match &record {
        Record::Node { node, gpus } => {
            filled("node", node)?;
            if gpus.is_empty() {
                return Err("a node without a GPU".to_owned());
            }
            distinct(gpus)?;
        }
        Record::Phase { node, .. } => filled("node", node)?,
        Record::Pod { pod, uid, .. } | Record::End { pod, uid, .. } => {
            filled("pod", pod)?;
            filled("uid", uid)?;
        }
        // A container that saw no GPU is a fact for the check, not a malformed line.
        Record::Start { pod, uid, node, gpus, .. } => {
            filled("pod", pod)?;
            filled("uid", uid)?;
            filled("node", node)?;
            distinct(gpus)?;
        }
    }
    Ok(record)
}

/// The parser counts lines within what it was given, which is always one line: only the column
/// helps a reader.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let known = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&known) {
        Some(bare) if error.column() > 0 => format!("{bare} (column {})", error.column()),
        Some(bare) => bare.to_owned(),
        None => text,
    }
}

fn filled(field: &str, value: &str) -> Result<(), String> {
    if value.is_empty() { Err(format!("field `{field}` is empty")) } else { Ok(()) }
}

fn distinct(gpus: &[String]) -> Result<(), String> {
    for (at, gpu) in gpus.iter().enumerate() {
        filled("gpus", gpu)?;
        if gpus[..at].contains(gpu) {
            return Err(format!("GPU {gpu} is named twice"));
        }
    }
    Ok(())
}
