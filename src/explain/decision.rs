//! Pure: one decision as a reason for programs and a sentence for people: the same in log line,
//! Event, counter and replay.

use super::Words;
use super::names::gpus;
use crate::policy::{Credit, Decision, OpenReason};

/// A decision in words.
pub fn decided(decision: &Decision, words: &Words<'_>) -> (&'static str, String) {
    match decision {
        Decision::Reserved { node, gpus, .. } => ("Reserved", reserved(words, *node, *gpus)),
        Decision::Unreserved { node, reason, retry_at, .. } => {
            let message = format!(
                "The reservation on node {} is taken back ({reason:?}); the pod may be admitted \
                 again from {}.",
                words.node(*node),
                words.at(*retry_at)
            );
            ("Unreserved", message)
        }
        Decision::GateClosed { .. }
        | Decision::GateRetargeted { .. }
        | Decision::GateOpened { .. } => gate(decision, words),
        Decision::CreditSettled { node, credit } => {
            let message =
                format!("A whole-node pod ended on node {}: {}.", words.node(*node), due(*credit));
            ("LargeEnded", message)
        }
        Decision::WaveStarted { node, admitted, next } => {
            let message = format!(
                "A wave of {admitted} small pods starts on node {}; {} is next there.",
                words.node(*node),
                words.pod(*next)
            );
            ("WaveStarted", message)
        }
        Decision::DrainOverdue { node, blockers, .. } => {
            let message = format!(
                "The drain of node {} has outlasted its limit: {} GPUs there.",
                words.node(*node),
                words.subject(blockers, "still holds", "still hold")
            );
            ("DrainOverdue", message)
        }
        Decision::Evict { node, .. } => {
            let node = words.node(*node);
            ("Evicting", format!("The pod holds up the overdue drain of node {node}."))
        }
        Decision::Refused { violation, .. } => {
            let message = format!(
                "A decision was refused because it would have broken a rule: {violation:?}."
            );
            ("CommitRefused", message)
        }
        Decision::Observed { violation, .. } => {
            ("RuleBroken", format!("The node's state breaks a rule: {violation:?}."))
        }
    }
}

/// What a pod is told once GPUs are reserved for it.
pub fn reserved(
    words: &Words<'_>,
    node: crate::policy::NodeId,
    set: crate::policy::GpuSet,
) -> String {
    let are = if set.count() == 1 { "is" } else { "are" };
    format!("{} of node {} {are} reserved for this pod.", gpus(set), words.node(node))
}

fn gate(decision: &Decision, words: &Words<'_>) -> (&'static str, String) {
    match decision {
        Decision::GateClosed { node, latest_end, .. } => {
            let until = latest_end.map_or_else(
                || "nothing limits how long that takes".to_owned(),
                |end| format!("by {} at the latest", words.at(end)),
            );
            let message = format!(
                "Node {} admits no more small pods and is emptied for this pod, {until}.",
                words.node(*node)
            );
            ("GateClosed", message)
        }
        Decision::GateRetargeted { node, from, .. } => {
            let message = format!(
                "Node {} is now emptied for this pod, which is served before {}.",
                words.node(*node),
                words.pod(*from)
            );
            ("GateRetargeted", message)
        }
        Decision::GateOpened { node, reason, .. } => {
            let why = match reason {
                OpenReason::NoLargeWaits => "no whole-node pod waits for it any more",
                OpenReason::NotNeeded => "other nodes are enough for those that wait",
                OpenReason::NodeUnfit => "it cannot take a whole-node pod as it is",
            };
            let message = format!("Node {} admits small pods again: {why}.", words.node(*node));
            ("GateOpened", message)
        }
        _ => ("Gate", String::new()),
    }
}

/// What a large's end gives the smalls.
pub(super) const fn due(credit: Credit) -> &'static str {
    match credit {
        Credit::Wave => "small pods get one wave",
        Credit::NoLargeWaits => "no other waits, small pods are served as they come",
        Credit::NoSmallWaits => "no small pod waits, the next whole-node pod may start",
        Credit::OtherNodeOpen => "small pods are served on another node meanwhile",
        Credit::OtherNodeNext => {
            "another node is in its wave or drains, and one at a time is enough"
        }
        Credit::TurnContinues => "the turn of the whole-node pods goes on",
        Credit::NodeUnfit => "the node takes no new work",
    }
}
