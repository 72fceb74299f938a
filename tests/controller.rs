//! The controller and the extender against an API server in memory: what must hold whatever is
//! lost, overtaken or killed on the way.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sluice::api::{NodePhase, ReservationState};
use support::apiserver::Fault;
use support::control_plane::{ControlPlane, path};
use support::ledger::ledger_path;

const SMALL: &str = "small";
const LARGE: &str = "whole-node-large";

/// What is broken, by looking at all objects after each write.
#[derive(Clone, Default)]
struct Broken(Arc<Mutex<Vec<String>>>);

impl Broken {
    fn watch(plane: &ControlPlane) -> Self {
        let broken = Self::default();
        let into = broken.clone();
        plane.server.after_write(move |objects, path| {
            let found = violations(objects);
            into.0.lock().unwrap().extend(found.into_iter().map(|text| format!("{path}: {text}")));
        });
        broken
    }

    #[track_caller]
    fn expect_none(&self) {
        assert_eq!(*self.0.lock().unwrap(), Vec::<String>::new());
    }
}

fn violations(objects: &BTreeMap<String, Value>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut reserved: BTreeMap<String, String> = BTreeMap::new();
    for (path, ledger) in objects.iter().filter(|(path, _)| path.contains("/gpunodes/")) {
        let node = path.rsplit('/').next().unwrap();
        let mut gpus = BTreeSet::new();
        let reservations = ledger["status"]["reservations"].as_array();
        let reservations = reservations.map(Vec::as_slice).unwrap_or_default();
        for reservation in reservations {
            for gpu in reservation["gpus"].as_array().unwrap() {
                if !gpus.insert(gpu.to_string()) {
                    broken.push(format!("{gpu} of {node} is held twice"));
                }
            }
            if reservation["shape"] == LARGE && reservations.len() > 1 {
                broken.push(format!("{} is not alone on {node}", reservation["name"]));
            }
            reserved.insert(reservation["uid"].as_str().unwrap().to_owned(), node.to_owned());
        }
    }
    for (path, pod) in objects.iter().filter(|(path, _)| path.contains("/pods/")) {
        let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let gated = pod["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty());
        let at = reserved.get(pod["metadata"]["uid"].as_str().unwrap());
        if !over && !gated && at.is_none() {
            broken.push(format!("{path} has no gate and no reservation"));
        }
        if let Some(node) = pod["spec"]["nodeName"].as_str().filter(|_| !over)
            && at.map(String::as_str) != Some(node)
        {
            broken.push(format!("{path} is on {node} and reserved on {at:?}"));
        }
    }
    broken
}

fn names(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn two_larges_and_twelve_smalls_take_turns() {
    let plane = ControlPlane::start(8);
    let broken = Broken::watch(&plane);
    let first: Vec<String> = (1..=8).map(|n| format!("a{n}")).collect();
    let late: Vec<String> = (10..=21).map(|n| format!("b{n}")).collect();
    for name in &first {
        plane.create(name, SMALL);
    }
    plane.until_run(&names(&first)).await;
    plane.clock.advance(sluice::policy::Millis::from_secs(1));
    plane.create("l1", LARGE);
    plane.until("a closed gate", |plane| plane.phase() == NodePhase::Draining).await;
    plane.clock.advance(sluice::policy::Millis::from_secs(1));
    for name in &late {
        plane.create(name, SMALL);
    }
    plane.create("l2", LARGE);
    plane
        .until("the gate named", |plane| {
            plane.reason("b21").as_deref() == Some("GateClosed")
                && plane.reason("l1").as_deref() == Some("Draining")
                && plane.pod("l1").unwrap()["status"]["nominatedNodeName"] == "n1"
        })
        .await;
    for (index, name) in first.iter().enumerate() {
        assert!(plane.gated("l1"), "{index} ended");
        plane.end(name, "Succeeded");
        let free = format!("{}/8", index + 1);
        if index < 7 {
            plane.until(&free, |plane| plane.status().free_of_total == free).await;
        }
    }
    plane.until_run(&["l1"]).await;
    assert_eq!(plane.phase(), NodePhase::Exclusive);
    assert!(late.iter().all(|name| plane.gated(name)));
    plane.end("l1", "Succeeded");
    plane.until_run(&names(&late[..8])).await;
    assert_eq!(plane.phase(), NodePhase::Wave);
    assert!(plane.gated("l2") && plane.gated("b18"));
    for name in &late[..8] {
        plane.end(name, "Succeeded");
    }
    plane.until_run(&["l2"]).await;
    plane.end("l2", "Failed");
    plane.until_run(&names(&late[8..])).await;
    assert_eq!(plane.phase(), NodePhase::Open);
    let counters = plane.status().counters;
    assert_eq!((counters.small.admitted, counters.small.completed), (20, 16));
    assert_eq!((counters.whole_node_large.completed, counters.whole_node_large.failed), (1, 1));
    broken.expect_none();
}

#[tokio::test]
async fn credit_that_nobody_needed_is_gone() {
    let plane = ControlPlane::start(2);
    plane.create("l1", LARGE);
    plane.until_run(&["l1"]).await;
    plane.end("l1", "Succeeded");
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.clock.advance(sluice::policy::Millis::from_secs(1));
    plane.create("l2", LARGE);
    plane.until("a closed gate", |plane| plane.phase() == NodePhase::Draining).await;
    plane.create("b", SMALL);
    plane.end("a", "Succeeded");
    plane.until_run(&["l2"]).await;
    assert!(plane.gated("b"));
}

#[tokio::test]
async fn nothing_acts_on_a_decision_before_the_ledger_has_it() {
    let plane = ControlPlane::start(2);
    plane.until("a ledger", |plane| plane.status().free_of_total == "2/2").await;
    plane.server.forget_calls();
    let write = format!("PUT {}/status", ledger_path("n1"));
    let (go, hold) = tokio::sync::oneshot::channel();
    plane.server.fault(&write, Fault::Hold(hold));
    plane.create("a", SMALL);
    plane.server.until(|server| server.count(&write) == 1).await;
    let tell = format!("PATCH {}/status", path("a"));
    assert_eq!(plane.server.count(&tell), 0);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&seen);
    plane.server.after_write(move |objects, _| {
        let pod = &objects[&path("a")];
        let gates = pod["spec"]["schedulingGates"].as_array().unwrap().len();
        let nominated = pod["status"]["nominatedNodeName"] == "n1";
        let reservations = &objects[&ledger_path("n1")]["status"]["reservations"];
        let reserved = reservations.as_array().unwrap().len();
        let mut seen = into.lock().unwrap();
        if seen.last() != Some(&(reserved, nominated, gates)) {
            seen.push((reserved, nominated, gates));
        }
    });
    assert!(plane.gated("a"));
    go.send(()).unwrap();
    plane.until_run(&["a"]).await;
    let order = [(0, false, 1), (1, false, 1), (1, true, 1), (1, true, 0)];
    let seen = seen.lock().unwrap();
    assert!(*seen == order || *seen == order[1..], "{seen:?}");
}

#[tokio::test]
async fn a_second_writer_makes_the_controller_read_everything_anew() {
    let plane = ControlPlane::start(2);
    plane.until("a ledger", |plane| plane.status().free_of_total == "2/2").await;
    let write = format!("PUT {}/status", ledger_path("n1"));
    // Another leader admitted a pod of its own just before.
    plane.server.fault(
        &write,
        Fault::Before(Box::new(|server| {
            server.change(&ledger_path("n1"), |ledger| {
                let status = &mut ledger["status"];
                status["revision"] = json!(status["revision"].as_i64().unwrap() + 1);
                status["reservations"] = json!([{
                "uid": "other", "namespace": "team", "name": "other", "shape": "small",
                "kind": "Direct", "state": "Reserved", "gpus": ["gpu-0"], "sequence": 7,
                "since": "2026-11-30T00:00:00Z", "deadline": "2030-01-01T00:00:00Z"}]);
            });
        })),
    );
    let rebuilds = plane.metrics.rebuilds.get();
    plane.create("other", SMALL);
    plane.create("a", SMALL);
    plane.until_run(&["a", "other"]).await;
    assert!(plane.metrics.rebuilds.get() > rebuilds);
    let status = plane.status();
    let gpus = |name: &str| {
        let mut found = status.reservations.iter().filter(|r| r.name == name);
        found.next().unwrap().gpus.clone()
    };
    assert_eq!((gpus("other"), gpus("a")), (vec!["gpu-0".to_owned()], vec!["gpu-1".to_owned()]));
}

#[tokio::test]
async fn an_agent_that_writes_beside_us_is_no_second_writer() {
    let plane = ControlPlane::start(2);
    plane.until("a ledger", |plane| plane.status().free_of_total == "2/2").await;
    let rebuilds = plane.metrics.rebuilds.get();
    let write = format!("PUT {}/status", ledger_path("n1"));
    plane.server.fault(
        &write,
        Fault::Before(Box::new(|server| {
            server.change(&ledger_path("n1"), |ledger| {
                ledger["status"]["agentSeen"] = json!("2026-11-30T00:00:00Z");
                ledger["status"]["gpus"] = json!([
                {"index": 0, "id": "GPU-x", "health": "Healthy"},
                {"index": 1, "id": "GPU-y", "health": "Healthy"}]);
            });
        })),
    );
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane
        .until("the agent's names", |plane| {
            plane.status().reservations[0].gpus == ["GPU-x"] && plane.status().free == ["GPU-y"]
        })
        .await;
    assert_eq!(plane.metrics.rebuilds.get(), rebuilds);
}

#[tokio::test]
async fn a_pod_cancelled_while_its_gpus_are_being_written_never_starts() {
    let plane = ControlPlane::start(2);
    plane.until("a ledger", |plane| plane.status().free_of_total == "2/2").await;
    plane.server.forget_calls();
    let write = format!("PUT {}/status", ledger_path("n1"));
    let (go, hold) = tokio::sync::oneshot::channel();
    plane.server.fault(&write, Fault::Hold(hold));
    plane.create("a", SMALL);
    plane.server.until(|server| server.count(&write) >= 1).await;
    plane.server.remove(&path("a"));
    go.send(()).unwrap();
    plane.create("b", SMALL);
    plane.until_run(&["b"]).await;
    let counters = plane.status().counters.small;
    assert_eq!((counters.admitted, counters.cancelled), (2, 1));
}

#[tokio::test]
async fn a_pod_deleted_by_force_is_held_until_the_agent_says_so() {
    let plane = ControlPlane::start(2);
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.agent_finds("a");
    plane.server.remove(&path("a"));
    plane.create("l", LARGE);
    plane.until("the question to the agent", |plane| plane.status().releasing == ["a"]).await;
    plane.pass(10_000);
    plane
        .until("an overdue drain", |plane| {
            let conditions = plane.status().conditions;
            conditions.iter().any(|c| c.type_ == "DrainOverdue" && c.status == "True")
        })
        .await;
    assert!(plane.gated("l"));
    plane.server.change(&ledger_path("n1"), |ledger| {
        ledger["status"]["released"] = json!(["a"]);
        ledger["status"]["gpus"][0].as_object_mut().unwrap().remove("holder");
    });
    plane.until_run(&["l"]).await;
}

#[tokio::test]
async fn who_goes_round_sluice_is_counted_and_waited_for() {
    let plane = ControlPlane::start(2);
    plane.create_with(
        "f",
        SMALL,
        &json!({
        "schedulerName": "default-scheduler", "schedulingGates": null, "nodeName": "n1"}),
    );
    plane.until("a foreign GPU", |plane| plane.status().foreign_gpus == 1).await;
    plane.create("l", LARGE);
    plane.until("a closed gate", |plane| plane.phase() == NodePhase::Draining).await;
    let pool = "/apis/sluice.dev/v1alpha1/gpupools/default";
    plane
        .until("a word in the pool", |plane| {
            let pool = plane.server.get(pool).unwrap();
            let conditions = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
            pool["status"]["gpus"]["foreign"] == 1
                && conditions.iter().any(|c| c["type"] == "Bypassed" && c["status"] == "True")
        })
        .await;
    let events = "/apis/events.k8s.io/v1/events";
    plane
        .until("Events on pod and pool", |plane| {
            let events: Vec<Value> = plane
                .server
                .paths(events)
                .iter()
                .filter_map(|path| plane.server.get(path))
                .filter(|event| event["reason"] == "Bypassed")
                .collect();
            let on = |kind: &str| events.iter().any(|event| event["regarding"]["kind"] == kind);
            on("Pod") && on("GpuPool")
        })
        .await;
    assert!(plane.gated("l"));
    plane.end("f", "Succeeded");
    plane.until_run(&["l"]).await;
}

#[tokio::test]
async fn a_reservation_that_nobody_uses_ends_and_others_pass() {
    let plane = ControlPlane::start(2);
    plane.create("l", LARGE);
    // No kube-scheduler takes it up.
    plane.server.until(|_| !plane.gated("l")).await;
    plane.create("a", SMALL);
    plane.server.until(|_| plane.reason("a").as_deref() == Some("Exclusive")).await;
    plane.pass(31);
    plane.server.until(|_| plane.reason("l").as_deref() == Some("BackingOff")).await;
    let refused = plane.schedule().await;
    assert!(refused.iter().any(|(name, _)| name == "l"), "{refused:?}");
    plane.until_run(&["a"]).await;
    plane.pass(6);
    plane.end("a", "Succeeded");
    plane.until_run(&["l"]).await;
}

/// A binding that a policy of the API server forbids.
#[tokio::test]
async fn a_head_that_cannot_be_bound_lets_others_pass() {
    let plane = ControlPlane::start(2);
    let bind = format!("POST {}/binding", path("l"));
    plane.server.fault(&bind, Fault::Refuse(403, "Forbidden", "denied by policy"));
    plane.create("l", LARGE);
    plane
        .until("the refusal told", |plane| plane.reason("l").as_deref() == Some("BackingOff"))
        .await;
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    plane.pass(6);
    plane.end("a", "Succeeded");
    plane.until_run(&["l"]).await;
}

#[tokio::test]
async fn the_node_of_a_deleted_pool_goes_to_another_once_nobody_holds_its_gpus() {
    let plane = ControlPlane::start(2);
    plane.create("a", SMALL);
    plane.until_run(&["a"]).await;
    let (pools, of) = ("/apis/sluice.dev/v1alpha1/gpupools", |plane: &ControlPlane| {
        plane.ledger().map(|ledger| ledger.spec.pool)
    });
    let spec = plane.server.get(&format!("{pools}/default")).unwrap()["spec"].clone();
    plane.server.remove(&format!("{pools}/default"));
    plane.server.put(
        &format!("{pools}/next"),
        json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool",
               "metadata": {"name": "next", "generation": 1}, "spec": spec}),
    );
    plane.create("b", SMALL);
    plane.until("b told", |plane| plane.reason("b").as_deref() == Some("NoSuchPool")).await;
    assert_eq!(of(&plane).as_deref(), Some("default"));
    assert_eq!(plane.status().reservations.len(), 1);
    plane.end("a", "Succeeded");
    plane.until("another pool's ledger", |plane| of(plane).as_deref() == Some("next")).await;
    plane.until("free GPUs", |plane| plane.status().free_of_total == "2/2").await;
}

/// The story that the crash test tells again and again, on a node of two GPUs.
async fn story(plane: &mut ControlPlane) -> Vec<String> {
    let mut order = Vec::new();
    for name in ["s1", "s2"] {
        plane.create(name, SMALL);
    }
    step(plane, &mut order, &["s1", "s2"]).await;
    plane.clock.advance(sluice::policy::Millis::from_secs(1));
    plane.create("l1", LARGE);
    survive(plane, "a closed gate", |plane| plane.phase() == NodePhase::Draining).await;
    for (name, shape) in [("s3", SMALL), ("s4", SMALL), ("s5", SMALL), ("l2", LARGE)] {
        plane.clock.advance(sluice::policy::Millis::from_secs(1));
        plane.create(name, shape);
    }
    for name in ["s1", "s2"] {
        plane.end(name, "Succeeded");
    }
    step(plane, &mut order, &["l1"]).await;
    plane.end("l1", "Succeeded");
    step(plane, &mut order, &["s3", "s4"]).await;
    for name in ["s3", "s4"] {
        plane.end(name, "Succeeded");
    }
    step(plane, &mut order, &["l2"]).await;
    plane.end("l2", "Succeeded");
    step(plane, &mut order, &["s5"]).await;
    plane.end("s5", "Succeeded");
    survive(plane, "an empty node", |plane| plane.status().free_of_total == "2/2").await;
    order
}

async fn step(plane: &mut ControlPlane, order: &mut Vec<String>, names: &[&str]) {
    survive(plane, &format!("{names:?} run"), |plane| {
        let status = plane.status();
        let all = names.iter().all(|name| {
            let mut of = status.reservations.iter().filter(|r| r.name == *name);
            of.next().is_some_and(|r| r.state == ReservationState::Running)
        });
        all && status.reservations.len() == names.len()
    })
    .await;
    order.push(format!("{names:?}"));
}

/// Waits for something; where the writes are used up meanwhile, the controller is killed and
/// another started.
async fn survive(plane: &mut ControlPlane, what: &str, so: impl Fn(&ControlPlane) -> bool) {
    loop {
        tokio::select! {
            biased;
            () = plane.server.until(support::apiserver::ApiServer::used_up) => {}
            () = plane.until(what, &so) => return,
        }
        plane.kill();
        plane.server.allow_writes(None);
        plane.launch();
    }
}

/// Tells the story, with the controller killed after so many writes. Returns how many were made
/// before that.
async fn tell_with_crash(writes: usize) -> usize {
    let expected = ["[\"s1\", \"s2\"]", "[\"l1\"]", "[\"s3\", \"s4\"]", "[\"l2\"]", "[\"s5\"]"];
    let mut plane = ControlPlane::start(2);
    plane.until("a ledger", |plane| plane.status().free_of_total == "2/2").await;
    let broken = Broken::watch(&plane);
    plane.server.allow_writes(Some(writes));
    let order = story(&mut plane).await;
    assert_eq!(order, expected, "killed after {writes} writes");
    broken.expect_none();
    let counters = plane.status().counters;
    assert_eq!(
        (counters.small.admitted, counters.small.completed, counters.small.cancelled),
        (5, 5, 0),
        "killed after {writes} writes"
    );
    assert_eq!(counters.whole_node_large.completed, 2, "killed after {writes} writes");
    writes - plane.server.writes_left().unwrap_or(0)
}

#[tokio::test]
async fn a_crash_between_any_two_writes_changes_nothing() {
    let writes = tell_with_crash(usize::MAX).await;
    assert!(writes > 30, "only {writes} writes");
    let mut crashes = tokio::task::JoinSet::new();
    for writes in 1..=writes {
        crashes.spawn(tell_with_crash(writes));
    }
    while let Some(told) = crashes.join_next().await {
        told.unwrap();
    }
}
