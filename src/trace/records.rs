//! Pure side: the history that the live scheduler left, as the JSON lines of `sluice record`.
//!
//! The records tell shape, arrival, start, end, node and GPUs of each pod. They do not tell a
//! priority, a deadline or an expected run time, so questions that rest on those stay unanswered;
//! the run that was observed stands for the expected one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Actual, Column, DAY_MS, Faults, Format, Job, Outcome, Source, Workload};
use crate::timeline::Shape;
use crate::timeline::record::{self, Record};

#[derive(Default)]
struct Pod {
    name: String,
    shape: Option<Shape>,
    asked: Option<u32>,
    created_ms: Option<u64>,
    start_ms: Option<u64>,
    end_ms: Option<u64>,
    exit: Option<i32>,
    node: String,
    gpus: Vec<String>,
}

/// Reads a history.
pub(super) fn read(source: Source<'_>, faults: &mut Faults) -> Workload {
    let (mut records, mut broken) = (Vec::new(), Vec::new());
    record::read(source.name, source.content.as_bytes(), &mut records, &mut broken);
    for fault in broken {
        let line = u64::try_from(fault.line).unwrap_or_default();
        faults.add(source.name, line, "", fault.message, "a record of `sluice record`");
    }
    let mut gpus_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for record in records {
        match record {
            Record::Node { node, gpus } => {
                gpus_of.insert(node, gpus);
            }
            Record::Pod { pod, uid, shape, gpus, created_ms, .. } => {
                let entry = pods.entry(uid).or_default();
                entry.name = pod;
                entry.shape = Some(shape);
                entry.asked = entry.asked.max(gpus);
                entry.created_ms = earlier(entry.created_ms, created_ms);
            }
            Record::Start { time_ms, pod, uid, node, gpus } => {
                let entry = pods.entry(uid).or_default();
                entry.name = pod;
                entry.start_ms = earlier(entry.start_ms, Some(time_ms));
                (entry.node, entry.gpus) = (node, gpus);
            }
            Record::End { time_ms, uid, exit, .. } => {
                let entry = pods.entry(uid).or_default();
                entry.end_ms = entry.end_ms.max(Some(time_ms));
                entry.exit = exit;
            }
            Record::Phase { .. } => {}
        }
    }
    let nodes: BTreeSet<&String> =
        pods.values().map(|pod| &pod.node).filter(|n| !n.is_empty()).collect();
    let first = pods.values().filter_map(|pod| earlier(pod.created_ms, pod.start_ms)).min();
    let last = pods.values().filter_map(|pod| pod.end_ms.max(pod.start_ms)).max();
    let origin_ms = first.unwrap_or_default() / DAY_MS * DAY_MS;
    if nodes.len() > 1 {
        let found = format!("pods on {} nodes", nodes.len());
        faults.add(source.name, 1, "node", found, "the history of one node at a time");
    }
    let jobs = pods.iter().filter_map(|(uid, pod)| job(uid, pod, &gpus_of, origin_ms, last));
    let columns =
        BTreeSet::from([Column::ActualStart, Column::ActualEnd, Column::GpuIds, Column::Outcome]);
    Workload {
        format: Format::Records,
        origin_ms: first.map(|_| origin_ms),
        jobs: jobs.collect(),
        services: Vec::new(),
        columns,
    }
}

fn job(
    uid: &str,
    pod: &Pod,
    gpus_of: &BTreeMap<String, Vec<String>>,
    origin_ms: u64,
    last_ms: Option<u64>,
) -> Option<Job> {
    let arrival = earlier(pod.created_ms, pod.start_ms)?;
    let all = gpus_of.get(&pod.node).map_or(&[][..], Vec::as_slice);
    let gpus: Vec<u32> = pod
        .gpus
        .iter()
        .filter_map(|gpu| all.iter().position(|known| known == gpu))
        .filter_map(|at| u32::try_from(at).ok())
        .collect();
    let seen = u32::try_from(pod.gpus.len()).ok().filter(|&count| count > 0);
    let whole = gpus_of.values().map(Vec::len).max().and_then(|len| u32::try_from(len).ok());
    let width = seen.unwrap_or_else(|| match pod.shape {
        Some(Shape::Large) => whole.unwrap_or(8),
        // Two at least, where nobody says how many.
        Some(Shape::Wide) => pod.asked.unwrap_or(2),
        Some(Shape::Small) | None => 1,
    });
    let outcome = match (pod.start_ms, pod.end_ms, pod.exit) {
        (Some(_), None, _) => Outcome::Running,
        (Some(_), Some(_), Some(code)) if code != 0 => Outcome::Failed,
        (Some(_), Some(_), _) => Outcome::Completed,
        (None, _, _) => Outcome::Cancelled,
    };
    let end = pod.end_ms.or(last_ms);
    let ran_ms = pod.start_ms.zip(end).map_or(1, |(start, end)| end.saturating_sub(start).max(1));
    let since = |ms: u64| ms.saturating_sub(origin_ms);
    Some(Job {
        id: if pod.name.is_empty() { uid.to_owned() } else { pod.name.clone() },
        kind: match pod.shape {
            Some(Shape::Large) => "whole-node-large",
            Some(Shape::Wide) => "wide-small",
            Some(Shape::Small) => "small",
            None => "unknown",
        }
        .to_owned(),
        user: None,
        priority: 1,
        arrival_ms: since(arrival),
        deadline_ms: None,
        min_gpus: width,
        max_gpus: width,
        expected_ms: ran_ms,
        actual: Actual {
            start_ms: pod.start_ms.map(since),
            end_ms: pod.end_ms.map(since),
            gpus,
            outcome: Some(outcome),
        },
        line: 0,
    })
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
