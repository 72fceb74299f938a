//! Pure: one decision as a record: what the log line, the Event and the figures are made of.

use std::collections::BTreeMap;

use serde::Serialize;

use super::agents::AgentWord;
use super::text::Words;
use crate::api::PodRef;
use crate::explain;
use crate::explain::names::gpus;
use crate::policy::{BoundMoved, Decision, Gate, Input, JobId, NodeId, Outcome, Shape};

/// One decision, or one fact that changes who holds GPUs, with the names of what it is about.
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
    /// The pod's shape, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// CamelCase reason, the same in log, Event and counter.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// How loudly it is said.
    pub tone: Tone,
    /// Of an admission: how long the pod had waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Of an admission: the pod's priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Of an admission: the longest that the pod may hold its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_ms: Option<u64>,
    /// Of a large's admission: how long the gate had been closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained_ms: Option<u64>,
    /// What it rests on.
    #[serde(flatten)]
    pub cause: Cause,
}

/// How loudly a record is said.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tone {
    /// In the log.
    Quiet,
    /// In the log and as an Event.
    Normal,
    /// As a warning: a person should look.
    Warning,
}

/// What a record rests on.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The policy decided so.
    Decision(Decision),
    /// The world is so.
    Fact(Input),
    /// A node's agent can no longer be relied upon, or can again.
    Agent(AgentWord),
    /// A waiting pod is told a later time.
    Moved(BoundMoved),
}

/// Reason of a pod that went round Sluice, which its pool is told as well.
pub const BYPASSED: &str = "Bypassed";

/// A decision in words. Must be called while the names of its jobs are known. `gates` are those
/// that were closed before it.
pub fn decided(decision: &Decision, words: &Words<'_>, gates: &BTreeMap<NodeId, Gate>) -> Record {
    let (node, job) = decision.about();
    let (reason, message) = explain::decision::decided(decision, &words.plain());
    let tone = match decision {
        Decision::Reserved { .. }
        | Decision::GateClosed { .. }
        | Decision::GateRetargeted { .. }
        | Decision::GateOpened { .. }
        | Decision::CreditSettled { .. }
        | Decision::WaveStarted { .. } => Tone::Normal,
        Decision::Unreserved { .. }
        | Decision::DrainOverdue { .. }
        | Decision::Evict { .. }
        | Decision::Refused { .. }
        | Decision::Observed { .. } => Tone::Warning,
    };
    let mut record = named(words, Some(node), job, Cause::Decision(decision.clone()));
    if let (Decision::Reserved { job, node, .. }, Some(shape)) = (decision, record.shape) {
        let job = words.pool.job(*job);
        record.waited_ms = job.map(|job| words.world.now.since(job.created).0);
        record.priority = job.map(|job| job.priority);
        record.limit_ms = job.and_then(|job| job.limit).map(|limit| limit.0);
        let gate = gates.get(node).filter(|_| shape == Shape::Large);
        record.drained_ms = gate.map(|gate| words.world.now.since(gate.since).0);
    }
    Record { reason, message, tone, ..record }
}

/// A fact that changes who holds GPUs, in words. Must be called before the policy has taken it in.
pub fn observed(input: &Input, words: &Words<'_>) -> Option<Record> {
    let (node, job, reason, message, tone) = match *input {
        Input::Foreign { job, node, count, .. } if words.pool.node_of(job).is_none() => {
            let message = format!(
                "{} holds {count} of the pool's GPUs on node {} and did not go through Sluice.",
                words.pod(job),
                words.node(node)
            );
            (node, job, BYPASSED, message, Tone::Warning)
        }
        Input::Released { job, outcome } => {
            let (node, holding) = words.pool.node_of(job).zip(words.pool.holding(job))?;
            let (reason, how) = match outcome {
                Outcome::Completed => ("Completed", "completed"),
                Outcome::Failed => ("Failed", "failed"),
                Outcome::Cancelled => ("Cancelled", "was deleted"),
            };
            let held = gpus(holding.gpus);
            let message = format!("The pod {how}; {held} of node {} free again.", words.node(node));
            (node, job, reason, message, Tone::Quiet)
        }
        Input::Vanished { job } => {
            let node = words.pool.node_of(job)?;
            let message = format!(
                "{} is gone from the API server, but its containers may still run on node {}; its \
                 GPUs stay held until they are gone.",
                words.pod(job),
                words.node(node)
            );
            (node, job, "HeldAfterDeletion", message, Tone::Normal)
        }
        _ => return None,
    };
    let record = named(words, Some(node), Some(job), Cause::Fact(input.clone()));
    Some(Record { reason, message, tone, ..record })
}

/// A node's agent can no longer be relied upon, or can again.
pub fn agent(node: NodeId, word: &AgentWord, words: &Words<'_>) -> Record {
    let tone = if word.ready { Tone::Normal } else { Tone::Warning };
    let record = named(words, Some(node), None, Cause::Agent(word.clone()));
    Record { reason: word.reason, message: word.message.clone(), tone, ..record }
}

/// A waiting pod that starts later than it was told, or of which nothing can be told any more.
pub fn moved(moved: &BoundMoved, words: &Words<'_>) -> Record {
    let message = explain::moved::moved(moved, &words.plain());
    let record = named(words, None, Some(moved.job), Cause::Moved(*moved));
    Record { reason: explain::moved::REASON, message, ..record }
}

fn named(words: &Words<'_>, node: Option<NodeId>, job: Option<JobId>, cause: Cause) -> Record {
    let holding = job.and_then(|job| words.pool.holding(job)).and_then(|holding| holding.shape);
    let waiting = job.and_then(|job| words.pool.job(job)).map(|job| job.shape);
    Record {
        pool: words.world.name.clone(),
        node: node.and_then(|node| words.known.ids.node_name(node)).map(str::to_owned),
        pod: job.and_then(|job| words.known.ids.pod(job)).cloned(),
        shape: holding.or(waiting),
        reason: "",
        message: String::new(),
        tone: Tone::Quiet,
        waited_ms: None,
        priority: None,
        limit_ms: None,
        drained_ms: None,
        cause,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::json;

    use super::*;
    use crate::policy::Cause as Moved;
    use crate::translate::fixture::{Scene, at, pod};

    #[test]
    fn a_later_start_is_told_with_what_moved_it() {
        let mut scene = Scene::new(&["n"]);
        scene.put(pod("a", "whole-node-large", 0, json!({})));
        scene.put(pod("b", "whole-node-large", 1, json!({})));
        scene.settle();
        let job = |name: &str| scene.known.ids.job(name).unwrap();
        let words = Words { pool: &scene.pool, known: &scene.known, world: &scene.world };
        let cause = Moved::ServedFirst(job("a"));
        let moved = BoundMoved { job: job("b"), from: at(60), to: Some(at(120)), cause };
        let record = super::moved(&moved, &words);
        assert_eq!((record.reason, record.pod.unwrap().name), ("LatestStartMoved", "b".into()));
        assert_eq!(
            record.message,
            "The pod starts by 2027-01-15 08:02:00 UTC at the latest, not by 2027-01-15 08:01:00 \
             UTC: team/a came later and is served first."
        );
    }
}
