//! Cluster side, without I/O: what changed since the last look, as lines for a person and records
//! for the timeline.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::names::{CONDITION_ADMITTED, LABEL_SHAPE, SHAPE_LARGE, SHAPE_SMALL, SHAPE_WIDE};
use crate::api::{GpuHealth, GpuNode, GpuNodeStatus, NodePhase, ReservationState};
use crate::policy::Millis;
use crate::translate::PodFacts;

/// Something to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A line for a person.
    Line(String),
    /// A record for the timeline.
    Record(Value),
    /// A record of a pod's start or end, as the API server tells it.
    Run(Value),
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    shape: String,
    stage: Stage,
    created_ms: u64,
    admitted_ms: Option<u64>,
    bound_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    New,
    Waiting,
    Admitted,
    Bound,
    Running,
    Ended,
}

/// What was seen so far.
#[derive(Debug)]
pub struct History {
    start: Millis,
    pods: BTreeMap<String, Known>,
    phases: BTreeMap<String, NodePhase>,
    lanes: BTreeMap<String, String>,
    gpus: BTreeMap<String, Vec<String>>,
    held: BTreeMap<String, Vec<String>>,
}

impl History {
    /// Nothing seen yet. Lines count their seconds from `start`.
    pub fn new(start: Millis) -> Self {
        Self {
            start,
            pods: BTreeMap::new(),
            phases: BTreeMap::new(),
            lanes: BTreeMap::new(),
            gpus: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// A node's ledger as it is now.
    pub fn node(&mut self, node: &GpuNode, now: Millis) -> Vec<Note> {
        let name = node.name_any();
        let Some(status) = &node.status else { return Vec::new() };
        let mut notes = Vec::new();
        for reservation in &status.reservations {
            self.held.insert(reservation.uid.clone(), reservation.gpus.clone());
        }
        let ids: Vec<String> = status.gpus.iter().map(|gpu| gpu.id.clone()).collect();
        if !ids.is_empty() && self.gpus.get(&name) != Some(&ids) {
            notes.push(Note::Record(json!({"event": "node", "node": name, "gpus": ids})));
            self.gpus.insert(name.clone(), ids);
        }
        let target = large(status).map(|(namespace, name)| format!("{namespace}/{name}"));
        if self.phases.insert(name.clone(), status.phase) != Some(status.phase) {
            notes.push(Note::Record(json!({
                "event": "phase", "node": name, "phase": status.phase, "for": target,
                "time_ms": now.0,
            })));
        }
        let lane = self.lane(&name, status);
        if self.lanes.insert(name, lane.clone()).as_ref() != Some(&lane) {
            notes.push(self.line(now, &lane));
        }
        notes
    }

    /// A pod as it is now, or as it last was.
    pub fn pod(&mut self, pod: &Pod, now: Millis, gone: bool) -> Vec<Note> {
        let Some(uid) = pod.uid() else { return Vec::new() };
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        let shape = pod.labels().get(LABEL_SHAPE).cloned().unwrap_or_default();
        let mut known = self.pods.remove(&uid).unwrap_or_else(|| Known {
            shape: shape.clone(),
            // A pod that was there before us has its own time of creation, in whole seconds.
            created_ms: created_ms(pod).max(self.start.0.min(now.0)).min(now.0),
            ..Known::default()
        });
        let stage = if gone { Stage::Ended } else { stage(pod) };
        let spec = pod.spec.as_ref();
        let mut notes = Vec::new();
        if stage > known.stage {
            if stage >= Stage::Admitted {
                known.admitted_ms.get_or_insert(now.0);
            }
            if stage >= Stage::Bound {
                known.bound_ms.get_or_insert(now.0);
            }
            notes.push(Note::Record(json!({
                "event": "pod", "pod": name, "uid": uid, "shape": shape, "gpus": asked(pod),
                "created_ms": known.created_ms, "admitted_ms": known.admitted_ms,
                "bound_ms": known.bound_ms, "priority": spec.and_then(|spec| spec.priority),
                "limit_ms": spec.and_then(limit_ms),
            })));
            let gpus = self.held.get(&uid).cloned().unwrap_or_default();
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            if stage >= Stage::Running && known.stage < Stage::Running && node.is_some() {
                notes.push(Note::Run(json!({
                    "event": "start", "pod": name, "uid": uid, "gpus": gpus, "node": node,
                    "time_ms": now.0,
                })));
            }
            if stage == Stage::Ended && node.is_some() {
                notes.push(Note::Run(json!({
                    "event": "end", "pod": name, "uid": uid, "time_ms": now.0,
                })));
            }
            notes.push(self.line(now, &describe(pod, &name, &shape, stage, &known, now)));
            known.stage = stage;
        }
        self.pods.insert(uid, known);
        notes
    }

    fn line(&self, now: Millis, text: &str) -> Note {
        let since = now.since(self.start).0;
        Note::Line(format!("{:>5}.{} s  {text}", since / 1_000, since % 1_000 / 100))
    }

    fn waiting(&self, shape: &str) -> usize {
        let waits = |known: &&Known| known.stage == Stage::Waiting && known.shape == shape;
        self.pods.values().filter(waits).count()
    }

    fn lane(&self, name: &str, status: &GpuNodeStatus) -> String {
        let cells: String = status
            .gpus
            .iter()
            .map(|gpu| {
                let holder = status.reservations.iter().find(|r| r.gpus.contains(&gpu.id));
                match holder {
                    Some(r) if r.shape.is_none() => '?',
                    Some(r) if r.state < ReservationState::Running => '▫',
                    Some(r) if r.shape.as_deref() == Some(SHAPE_LARGE) => '█',
                    Some(_) => '▪',
                    None if gpu.health == GpuHealth::Unhealthy => 'x',
                    None => '·',
                }
            })
            .collect();
        let smalls = self.waiting(SHAPE_SMALL) + self.waiting(SHAPE_WIDE);
        let larges = self.waiting(SHAPE_LARGE);
        let target = large(status).map_or_else(String::new, |(_, name)| format!(" for {name}"));
        let phase = status.phase;
        format!("{name}  {cells}  {phase:?}{target}  (queues: {smalls} small, {larges} large)")
    }
}

/// GPUs that a pod asks for. A pod with several extended resources does not say which is the GPU.
fn asked(pod: &Pod) -> Option<u32> {
    let resources = PodFacts::read(pod).resources;
    let mut counts = resources.into_values();
    counts.next().filter(|_| counts.next().is_none())
}

/// The large that the phase is for: the one that the gate is closed for, or that holds the node.
fn large(status: &GpuNodeStatus) -> Option<(&str, &str)> {
    let waits = status.drain.as_ref().map(|d| (d.pod.namespace.as_str(), d.pod.name.as_str()));
    let holds = || status.reservations.iter().find(|r| r.shape.as_deref() == Some(SHAPE_LARGE));
    waits.or_else(|| holds().map(|r| (r.namespace.as_str(), r.name.as_str())))
}

/// The longest that a pod may run.
fn limit_ms(spec: &PodSpec) -> Option<u64> {
    u64::try_from(spec.active_deadline_seconds?).ok()?.checked_mul(1_000)
}

fn created_ms(pod: &Pod) -> u64 {
    let created = pod.metadata.creation_timestamp.as_ref();
    created.and_then(|time| u64::try_from(time.0.as_millisecond()).ok()).unwrap_or_default()
}

fn stage(pod: &Pod) -> Stage {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let admitted = conditions.iter().any(|c| c.type_ == CONDITION_ADMITTED && c.status == "True");
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    match phase {
        Some("Succeeded" | "Failed") => Stage::Ended,
        Some("Running") => Stage::Running,
        _ if bound => Stage::Bound,
        _ if admitted => Stage::Admitted,
        _ => Stage::Waiting,
    }
}

fn describe(
    pod: &Pod,
    name: &str,
    shape: &str,
    stage: Stage,
    known: &Known,
    now: Millis,
) -> String {
    let seconds = |from: u64| {
        let span = now.0.saturating_sub(from);
        format!("{}.{} s", span / 1_000, span % 1_000 / 100)
    };
    let waited = seconds(known.created_ms);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
    match stage {
        Stage::New | Stage::Waiting => format!("{name} ({shape}) waits"),
        Stage::Admitted => format!("{name} ({shape}) is admitted after {waited}"),
        Stage::Bound => format!("{name} ({shape}) is bound to {node} after {waited}"),
        Stage::Running => format!("{name} ({shape}) runs on {node}"),
        Stage::Ended => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let ran =
                known.bound_ms.map_or_else(String::new, |at| format!(" after {}", seconds(at)));
            format!("{name} ({shape}) ended: {}{ran}", phase.unwrap_or("deleted"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).expect("a pod")
    }

    fn small(phase: &str, node: Option<&str>) -> Pod {
        pod(json!({
            "metadata": {
                "name": "a", "namespace": "n", "uid": "u", "labels": {LABEL_SHAPE: "small"},
                "creationTimestamp": "1970-01-01T00:00:10Z",
            },
            "spec": {
                "nodeName": node, "containers": [], "priority": 7, "activeDeadlineSeconds": 60,
            },
            "status": {"phase": phase},
        }))
    }

    fn node(phase: &str, holder: &Value) -> GpuNode {
        let status = json!({
            "phase": phase, "freeOfTotal": "", "free": [], "reservations": holder,
            "gpus": [{"index": 0, "id": "g0", "health": "Healthy"}],
        });
        serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "spec": {"pool": "default", "nodeUid": "x"},
            "status": status,
        }))
        .expect("a node")
    }

    fn lines(notes: &[Note]) -> Vec<&str> {
        let lines = notes.iter().filter_map(|note| match note {
            Note::Line(text) => Some(text.as_str()),
            Note::Record(_) | Note::Run(_) => None,
        });
        lines.collect()
    }

    #[test]
    fn a_pod_is_told_once_for_each_stage() {
        let mut history = History::new(Millis(10_000));
        let waits = history.pod(&small("Pending", None), Millis(12_500), false);
        assert_eq!(lines(&waits), ["    2.5 s  n/a (small) waits"]);
        let knows = |n: &Note| matches!(n, Note::Record(r) if r["priority"] == 7 && r["limit_ms"] == 60_000);
        assert!(waits.iter().any(knows), "what a review of the day needs: {waits:?}");
        assert_eq!(history.pod(&small("Pending", None), Millis(12_600), false), []);
        let runs = history.pod(&small("Running", Some("n1")), Millis(14_000), false);
        assert_eq!(lines(&runs), ["    4.0 s  n/a (small) runs on n1"]);
        assert!(runs.iter().any(|n| matches!(n, Note::Run(r) if r["event"] == "start")));
        let ended = history.pod(&small("Succeeded", Some("n1")), Millis(19_000), false);
        assert_eq!(lines(&ended), ["    9.0 s  n/a (small) ended: Succeeded after 5.0 s"]);
        assert_eq!(history.pod(&small("Succeeded", Some("n1")), Millis(20_000), true), []);
    }

    #[test]
    fn a_phase_names_the_large_that_holds_the_node() {
        let mut history = History::new(Millis(0));
        let holder = json!([{
            "uid": "u", "namespace": "n", "name": "big", "shape": "whole-node-large",
            "kind": "Direct", "state": "Running", "gpus": ["g0"],
            "since": "1970-01-01T00:00:00Z",
        }]);
        let notes = history.node(&node("Exclusive", &holder), Millis(1_000));
        let phase = json!({
            "event": "phase", "node": "n1", "phase": "Exclusive", "for": "n/big", "time_ms": 1_000,
        });
        assert!(notes.contains(&Note::Record(phase)), "{notes:?}");
        assert_eq!(
            lines(&notes),
            ["    1.0 s  n1  █  Exclusive for big  (queues: 0 small, 0 large)"]
        );
        assert_eq!(history.node(&node("Exclusive", &holder), Millis(2_000)), []);
    }
}
