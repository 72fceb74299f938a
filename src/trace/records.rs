//! Pure side: the history that the live scheduler left: the JSON lines of `sluice record`, or the
//! controller's log in JSON, in which each decision is one line.
//!
//! They tell shape, arrival, start, end, node and GPUs of each pod; its priority and its limit where
//! it has them. No deadline is known to the scheduler, and no service: those come from a job list
//! that is given beside the records (see `join`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::decisions::Told;
use super::{Actual, Column, DAY_MS, Faults, Format, Job, Node, Outcome, Source, Workload};
use crate::timeline::Shape;
use crate::timeline::record::{self, Record};

/// What becomes known of one pod.
#[derive(Default)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) kind: Option<&'static str>,
    pub(super) priority: Option<i64>,
    pub(super) limit_ms: Option<u64>,
    pub(super) created_ms: Option<u64>,
    pub(super) start_ms: Option<u64>,
    pub(super) end_ms: Option<u64>,
    pub(super) outcome: Option<Outcome>,
    pub(super) node: String,
    /// By name, as the node lists them.
    pub(super) gpus: Vec<String>,
    /// By number.
    pub(super) numbers: Vec<u32>,
    /// How many, where nobody says which.
    pub(super) count: Option<u32>,
}

/// Everything that the lines tell.
#[derive(Default)]
pub(super) struct History {
    /// GPUs of each node by name; empty where only their numbers are known.
    nodes: BTreeMap<String, Vec<String>>,
    /// By identity.
    pub(super) pods: BTreeMap<String, Pod>,
    last_ms: u64,
}

/// Reads a history.
pub(super) fn read(source: Source<'_>, faults: &mut Faults) -> Workload {
    let mut history = History::default();
    let mut told = Told::default();
    for (line, text) in (1..).zip(source.content.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let allowed = "a record of `sluice record`, or a line of the controller's log in JSON";
        let value: Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) => {
                faults.add(source.name, line, "", format!("no JSON ({error})"), allowed);
                continue;
            }
        };
        let fault = if value.get("event").is_some() {
            history.record(text)
        } else if value.get("level").is_some() {
            told.line(&value, &mut history)
        } else {
            Err(format!("{}", Short(text)))
        };
        if let Err(found) = fault {
            faults.add(source.name, line, "", found, allowed);
        }
    }
    history.workload(source.name, faults)
}

/// The begin of a line, for messages.
struct Short<'a>(&'a str);

impl std::fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let begin: String = self.0.chars().take(60).collect();
        write!(f, "{begin}{}", if begin.len() < self.0.len() { "…" } else { "" })
    }
}

impl History {
    /// Takes in one line of `sluice record`.
    fn record(&mut self, text: &str) -> Result<(), String> {
        let (mut records, mut broken) = (Vec::new(), Vec::new());
        record::read("", text.as_bytes(), &mut records, &mut broken);
        if let Some(fault) = broken.into_iter().next() {
            return Err(fault.message);
        }
        for record in records {
            self.take(record);
        }
        Ok(())
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Node { node, gpus } => {
                self.nodes.insert(node, gpus);
            }
            Record::Pod { pod, uid, shape, gpus, created_ms, priority, limit_ms, .. } => {
                self.seen(created_ms.unwrap_or_default());
                let entry = self.pods.entry(uid).or_default();
                entry.name = pod;
                entry.kind = Some(match shape {
                    Shape::Large => "whole-node-large",
                    Shape::Wide => "wide-small",
                    Shape::Small => "small",
                });
                entry.count = gpus.or(entry.count);
                entry.priority = priority.or(entry.priority);
                entry.limit_ms = limit_ms.or(entry.limit_ms);
                entry.created_ms = earlier(entry.created_ms, created_ms);
            }
            Record::Start { time_ms, pod, uid, node, gpus } => {
                self.seen(time_ms);
                self.nodes.entry(node.clone()).or_default();
                let entry = self.pods.entry(uid).or_default();
                entry.name = pod;
                entry.start_ms = earlier(entry.start_ms, Some(time_ms));
                (entry.node, entry.gpus) = (node, gpus);
            }
            Record::End { time_ms, uid, exit, .. } => {
                self.seen(time_ms);
                let entry = self.pods.entry(uid).or_default();
                entry.end_ms = entry.end_ms.max(Some(time_ms));
                let failed = exit.is_some_and(|code| code != 0);
                entry.outcome = Some(if failed { Outcome::Failed } else { Outcome::Completed });
            }
            Record::Phase { time_ms, .. } => self.seen(time_ms),
        }
    }

    /// Notes that something happened then.
    pub(super) fn seen(&mut self, time_ms: u64) {
        self.last_ms = self.last_ms.max(time_ms);
    }

    /// Notes that there is such a node.
    pub(super) fn node(&mut self, name: &str) {
        self.nodes.entry(name.to_owned()).or_default();
    }

    fn workload(self, file: &str, faults: &mut Faults) -> Workload {
        let Self { nodes, pods, last_ms } = self;
        let first = pods.values().filter_map(|pod| earlier(pod.created_ms, pod.start_ms)).min();
        let origin_ms = first.unwrap_or_default() / DAY_MS * DAY_MS;
        let since = |ms: u64| ms.saturating_sub(origin_ms);
        if last_ms.saturating_sub(origin_ms) > super::time::LONGEST_MS {
            let found = "moments that lie too far apart";
            faults.add(file, 1, "time_ms", found, "at most 10000 days from the first to the last");
            return Workload::default();
        }
        let priorities = ranks(pods.values().filter_map(|pod| pod.priority));
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in pods.values() {
            *names.entry(&pod.name).or_default() += 1;
        }
        let places: Vec<&String> = nodes.keys().collect();
        let view = View { nodes: &nodes, places: &places, names: &names, priorities: &priorities };
        let mut columns =
            BTreeSet::from([Column::ActualStart, Column::ActualEnd, Column::Node, Column::Outcome]);
        let mut jobs = Vec::new();
        for (uid, pod) in &pods {
            let Some(arrival) = earlier(pod.created_ms, pod.start_ms) else { continue };
            columns.extend(pod.priority.map(|_| Column::Priority));
            columns.extend(pod.limit_ms.map(|_| Column::ExpectedDuration));
            let job = view.job(uid, pod, since(arrival), (since(last_ms), &since));
            columns.extend(job.actual.gpus.first().map(|_| Column::GpuIds));
            jobs.push(job);
        }
        let gpus = |ids: &Vec<String>| u32::try_from(ids.len()).ok().filter(|&count| count > 0);
        let nodes = nodes.iter().map(|(name, ids)| Node { name: name.clone(), gpus: gpus(ids) });
        Workload {
            format: Format::Records,
            origin_ms: first.map(|_| origin_ms),
            end_ms: Some(since(last_ms)),
            nodes: nodes.collect(),
            jobs,
            columns,
            ..Workload::default()
        }
    }
}

/// What the jobs of a history are made from.
struct View<'a> {
    nodes: &'a BTreeMap<String, Vec<String>>,
    places: &'a [&'a String],
    names: &'a BTreeMap<&'a str, usize>,
    priorities: &'a BTreeMap<i64, u32>,
}

impl View<'_> {
    fn job(
        &self,
        uid: &str,
        pod: &Pod,
        arrival_ms: u64,
        (last_ms, since): (u64, &dyn Fn(u64) -> u64),
    ) -> Job {
        let all = self.nodes.get(&pod.node).map_or(&[][..], Vec::as_slice);
        let by_name = pod.gpus.iter().filter_map(|gpu| all.iter().position(|known| known == gpu));
        let mut gpus: Vec<u32> = by_name.filter_map(|at| u32::try_from(at).ok()).collect();
        gpus.extend(&pod.numbers);
        let seen = pod.gpus.len().max(pod.numbers.len());
        let seen = u32::try_from(seen).ok().filter(|&count| count > 0).or(pod.count);
        let whole = self.nodes.values().map(Vec::len).max().filter(|&len| len > 0);
        let width = seen.unwrap_or_else(|| match pod.kind {
            Some("whole-node-large") => whole.and_then(|len| u32::try_from(len).ok()).unwrap_or(8),
            // Two at least, where nobody says how many.
            Some("wide-small") => 2,
            _ => 1,
        });
        let outcome = match (pod.start_ms, pod.end_ms) {
            (Some(_), None) => Outcome::Running,
            (None, _) => Outcome::Cancelled,
            (Some(_), Some(_)) => pod.outcome.unwrap_or(Outcome::Completed),
        };
        let (start_ms, end_ms) = (pod.start_ms.map(since), pod.end_ms.map(since));
        let ran = start_ms.map(|start| end_ms.unwrap_or(last_ms).saturating_sub(start));
        // Pods that bear one name, such as those of a StatefulSet one after the other, are told
        // apart by their identity.
        let alone = self.names.get(pod.name.as_str()).is_none_or(|count| *count == 1);
        let id = match (pod.name.as_str(), alone) {
            ("", _) => uid.to_owned(),
            (name, true) => name.to_owned(),
            (name, false) => format!("{name} ({uid})"),
        };
        Job {
            id,
            kind: pod.kind.unwrap_or("unknown").to_owned(),
            user: None,
            priority: pod.priority.and_then(|p| self.priorities.get(&p).copied()).unwrap_or(1),
            arrival_ms,
            deadline_ms: None,
            min_gpus: width,
            max_gpus: width,
            // The limit is what the scheduler knew; without one, what was observed stands for it.
            expected_ms: pod.limit_ms.or(ran).unwrap_or(1).clamp(1, super::time::LONGEST_MS),
            actual: Actual {
                start_ms,
                end_ms,
                node: self.places.iter().position(|name| **name == pod.node).unwrap_or_default(),
                gpus,
                outcome: Some(outcome),
            },
            line: 0,
        }
    }
}

/// Priorities of Kubernetes go to a thousand million and below zero: where one is not from 1 to
/// 1000, all are taken for their place among those that occur.
fn ranks(all: impl Iterator<Item = i64>) -> BTreeMap<i64, u32> {
    let all: BTreeSet<i64> = all.collect();
    let plain = all.iter().all(|priority| (1..=1_000).contains(priority));
    let rank = |(place, priority): (u32, i64)| {
        let own = u32::try_from(priority).ok().filter(|_| plain);
        (priority, own.unwrap_or(place.min(1_000)))
    };
    (1..).zip(all).map(rank).collect()
}

pub(super) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
