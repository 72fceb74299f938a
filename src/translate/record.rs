//! Pure: one decision as a record: what the log line, the Event and the counter are made of.

use serde::Serialize;

use super::text::Words;
use super::time::spoken;
use crate::api::PodRef;
use crate::policy::{Credit, Decision, JobId, NodeId, OpenReason};

/// One decision, with the names of what it is about.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The pool.
    pub pool: String,
    /// The node, if there is one still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The pod that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// CamelCase reason, the same in log, Event and counter.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// Whether a person should look.
    pub warning: bool,
    /// The decision itself.
    pub decision: Decision,
}

/// Puts a decision into words. Must be called while the names of its jobs are known.
pub fn record(decision: &Decision, words: &Words<'_>) -> Record {
    let (node, job) = about(decision);
    let (reason, message, warning) = match decision {
        Decision::Reserved { node, gpus, .. } => ("Reserved", words.reserved(*node, *gpus), false),
        Decision::Unreserved { .. } => unreserved(decision, words),
        Decision::GateClosed { .. }
        | Decision::GateRetargeted { .. }
        | Decision::GateOpened { .. } => gate(decision, words),
        Decision::CreditSettled { node, credit } => {
            let node = words.node(*node);
            (
                "LargeEnded",
                format!("A whole-node pod ended on node {node}: {}.", due(*credit)),
                false,
            )
        }
        Decision::WaveStarted { node, admitted, next } => {
            let message = format!(
                "A wave of {admitted} small pods starts on node {}; {} is next there.",
                words.node(*node),
                words.pod(*next)
            );
            ("WaveStarted", message, false)
        }
        Decision::DrainOverdue { node, .. } => {
            let message = format!(
                "The drain of node {} has outlasted its limit: {} still hold GPUs there.",
                words.node(*node),
                words.holders(*node)
            );
            ("DrainOverdue", message, true)
        }
        Decision::Evict { node, .. } => {
            let node = words.node(*node);
            ("Evicting", format!("The pod holds up the overdue drain of node {node}."), true)
        }
        Decision::Refused { violation, .. } => (
            "CommitRefused",
            format!("A decision was refused because it would have broken a rule: {violation:?}."),
            true,
        ),
        Decision::Observed { violation, .. } => {
            ("RuleBroken", format!("The node's state breaks a rule: {violation:?}."), true)
        }
    };
    Record {
        pool: words.world.name.clone(),
        node: words.known.ids.node_name(node).map(str::to_owned),
        pod: job.and_then(|job| words.known.ids.pod(job)).cloned(),
        reason,
        message,
        warning,
        decision: decision.clone(),
    }
}

/// The node and the job that a decision is about.
pub fn about(decision: &Decision) -> (NodeId, Option<JobId>) {
    match *decision {
        Decision::Reserved { job, node, .. }
        | Decision::Unreserved { job, node, .. }
        | Decision::GateClosed { node, job, .. }
        | Decision::GateOpened { node, job, .. }
        | Decision::DrainOverdue { node, job, .. }
        | Decision::Evict { job, node }
        | Decision::Refused { job, node, .. } => (node, Some(job)),
        Decision::GateRetargeted { node, to, .. } => (node, Some(to)),
        Decision::WaveStarted { node, next, .. } => (node, Some(next)),
        Decision::CreditSettled { node, .. } | Decision::Observed { node, .. } => (node, None),
    }
}

fn unreserved(decision: &Decision, words: &Words<'_>) -> (&'static str, String, bool) {
    let Decision::Unreserved { node, reason, retry_at, .. } = decision else {
        return ("Unreserved", String::new(), true);
    };
    let message = format!(
        "The reservation on node {} is taken back ({reason:?}); the pod may be admitted again \
         from {}.",
        words.node(*node),
        spoken(*retry_at)
    );
    ("Unreserved", message, true)
}

fn gate(decision: &Decision, words: &Words<'_>) -> (&'static str, String, bool) {
    match decision {
        Decision::GateClosed { node, latest_end, .. } => {
            let until = latest_end.map_or_else(
                || "nothing limits how long that takes".to_owned(),
                |end| format!("by {} at the latest", spoken(end)),
            );
            let message = format!(
                "Node {} admits no more small pods and is emptied for this pod, {until}.",
                words.node(*node)
            );
            ("GateClosed", message, false)
        }
        Decision::GateRetargeted { node, from, .. } => {
            let message = format!(
                "Node {} is now emptied for this pod, which is served before {}.",
                words.node(*node),
                words.pod(*from)
            );
            ("GateRetargeted", message, false)
        }
        Decision::GateOpened { node, reason, .. } => {
            let why = match reason {
                OpenReason::NoLargeWaits => "no whole-node pod waits for it any more",
                OpenReason::NotNeeded => "other nodes are enough for those that wait",
                OpenReason::NodeUnfit => "it cannot take a whole-node pod as it is",
            };
            let message = format!("Node {} admits small pods again: {why}.", words.node(*node));
            ("GateOpened", message, false)
        }
        _ => ("Gate", String::new(), false),
    }
}

const fn due(credit: Credit) -> &'static str {
    match credit {
        Credit::Wave => "small pods get one wave",
        Credit::NoLargeWaits => "no other waits, small pods are served as they come",
        Credit::NoSmallWaits => "no small pod waits, the next whole-node pod may start",
        Credit::OtherNodeOpen => "small pods are served on another node meanwhile",
        Credit::TurnContinues => "the turn of the whole-node pods goes on",
        Credit::NodeUnfit => "the node takes no new work",
    }
}
