//! Schedules of one node that keep the rule, made by a plain simulation of it, as the lines that
//! containers and watches would write.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use serde_json::{Value, json};

/// A pod to be scheduled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) large: bool,
    pub(crate) created_ms: u64,
    pub(crate) runs_ms: u64,
    /// From admission to start; below what a large needs to lose its node.
    pub(crate) lag_ms: u64,
}

/// What comes when.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) gpus: usize,
    pub(crate) pods: Vec<Job>,
}

/// Any plan.
pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let job = (prop::bool::weighted(0.2), 0..20_000_u64, 1..6_000_u64, 1..200_u64).prop_map(
        |(large, created_ms, runs_ms, lag_ms)| Job { large, created_ms, runs_ms, lag_ms },
    );
    (2..9_usize, prop::collection::vec(job, 1..60)).prop_map(|(gpus, mut pods)| {
        pods.sort_by_key(|job| job.created_ms);
        Plan { gpus, pods }
    })
}

/// A moment long after 1970.
const BEGIN_MS: u64 = 1_796_000_000_000;

struct Node {
    lines: Vec<String>,
    phase: (&'static str, Option<usize>),
    free: BTreeSet<usize>,
    /// End and GPUs.
    running: Vec<(u64, Vec<usize>)>,
    smalls: VecDeque<usize>,
    larges: VecDeque<usize>,
    gpus: usize,
}

/// Runs the plan and returns what is reported.
pub(crate) fn lines(plan: &Plan) -> Vec<String> {
    let ids: Vec<String> = (0..plan.gpus).map(id).collect();
    let mut node = Node {
        lines: vec![json!({"event": "node", "node": "node-1", "gpus": ids}).to_string()],
        phase: ("", None),
        free: (0..plan.gpus).collect(),
        running: Vec::new(),
        smalls: VecDeque::new(),
        larges: VecDeque::new(),
        gpus: plan.gpus,
    };
    node.enter(0, "Open", None);
    let mut arrivals = plan.pods.iter().enumerate().peekable();
    loop {
        let next = arrivals.peek().map(|(_, job)| job.created_ms);
        let Some(now_ms) = node.running.iter().map(|(end, _)| *end).chain(next).min() else {
            return node.lines;
        };
        while let Some((at, job)) = arrivals.next_if(|(_, job)| job.created_ms == now_ms) {
            if job.large { node.larges.push_back(at) } else { node.smalls.push_back(at) }
        }
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut node.running).into_iter().partition(|(end, _)| *end == now_ms);
        node.running = running;
        node.free.extend(ended.into_iter().flat_map(|(_, gpus)| gpus));
        node.step(plan, now_ms);
    }
}

impl Node {
    fn step(&mut self, plan: &Plan, now_ms: u64) {
        let all_free = self.free.len() == self.gpus;
        match (self.phase.0, self.larges.front().copied()) {
            ("Exclusive", Some(large)) if all_free && !self.smalls.is_empty() => {
                self.enter(now_ms, "Wave", Some(large));
                for _ in 0..self.gpus.min(self.smalls.len()) {
                    self.start_small(plan, now_ms);
                }
            }
            (_, Some(large)) if all_free => {
                self.larges.pop_front();
                self.enter(now_ms, "Exclusive", Some(large));
                let gpus = std::mem::take(&mut self.free).into_iter().collect();
                self.start(plan, now_ms, (large, gpus));
            }
            ("Open", Some(large)) => self.enter(now_ms, "Draining", Some(large)),
            ("Exclusive", None) if !all_free => {}
            (_, None) => {
                self.enter(now_ms, "Open", None);
                while !self.smalls.is_empty() && !self.free.is_empty() {
                    self.start_small(plan, now_ms);
                }
            }
            (_, Some(_)) => {}
        }
    }

    fn enter(&mut self, now_ms: u64, phase: &'static str, large: Option<usize>) {
        if self.phase == (phase, large) {
            return;
        }
        self.phase = (phase, large);
        let mut line = json!({
            "event": "phase", "node": "node-1", "phase": phase, "time_ms": BEGIN_MS + now_ms,
        });
        if let Some(large) = large {
            line["for"] = Value::from(name(large));
        }
        self.lines.push(line.to_string());
    }

    fn start_small(&mut self, plan: &Plan, now_ms: u64) {
        let next = self.smalls.pop_front().zip(self.free.pop_first());
        let (at, gpu) = next.expect("the caller looked");
        self.start(plan, now_ms, (at, vec![gpu]));
    }

    fn start(&mut self, plan: &Plan, now_ms: u64, (at, gpus): (usize, Vec<usize>)) {
        let job = plan.pods[at];
        let (start_ms, shape) =
            (now_ms + job.lag_ms, if job.large { "whole-node-large" } else { "small" });
        let ids: Vec<String> = gpus.iter().copied().map(id).collect();
        let (pod, uid) = (name(at), format!("uid-{at}"));
        self.lines.push(
            json!({
                "event": "pod", "pod": pod, "uid": uid, "shape": shape,
                "created_ms": BEGIN_MS + job.created_ms, "admitted_ms": BEGIN_MS + now_ms,
            })
            .to_string(),
        );
        self.lines.push(
            json!({
                "event": "start", "pod": pod, "uid": uid, "node": "node-1", "gpus": ids,
                "time_ms": BEGIN_MS + start_ms,
            })
            .to_string(),
        );
        let end_ms = start_ms + job.runs_ms;
        self.lines.push(
            json!({
                "event": "end", "pod": pod, "uid": uid, "time_ms": BEGIN_MS + end_ms, "exit": 0,
            })
            .to_string(),
        );
        // The GPUs are free a little later than the container says.
        self.running.push((end_ms + 20, gpus));
    }
}

fn name(at: usize) -> String {
    format!("demo/pod-{at}")
}

fn id(gpu: usize) -> String {
    format!("gpu-{gpu}")
}
