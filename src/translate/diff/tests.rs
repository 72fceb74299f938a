//! What the policy is told, one row for each way in which the world can differ from its belief.

use std::sync::Arc;

use k8s_openapi::serde_json::{Value, json};

use crate::api::{GpuHealth, GpuNodeStatus, GpuStatus, ReservationState};
use crate::policy::{Decision, GpuSet, Input, Millis, Outcome, Stage, UnreserveReason};
use crate::translate::fixture::{START, Scene, at, on, pod, stamp};
use crate::translate::node::tests::node;
use crate::translate::time::{began, ends};

/// One small reserved on node `n`, its ledger written.
fn reserved() -> Scene {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene
}

/// The same, bound and running since second one.
fn running() -> Scene {
    let mut scene = reserved();
    scene.put(pod("s", "small", 0, on("n", Some(1))));
    scene.settle();
    scene
}

/// Gives the node an agent that reports its GPUs, with these held by the pod `holder`.
fn agent(status: &mut GpuNodeStatus, holder: &str, held: &[i32]) {
    status.agent_seen = Some(began(START));
    status.gpus = (0..8)
        .map(|index| GpuStatus {
            index,
            id: format!("GPU-{index}"),
            holder: held.contains(&index).then(|| crate::api::PodRef {
                namespace: "team".to_owned(),
                name: holder.to_owned(),
                uid: holder.to_owned(),
            }),
            ..GpuStatus::default()
        })
        .collect();
}

fn ended(phase: &str) -> Value {
    json!({"spec": {"nodeName": "n"}, "status": {"phase": phase}})
}

fn deleting(mut patch: Value) -> Value {
    patch["metadata"] = json!({"deletionTimestamp": stamp(5), "deletionGracePeriodSeconds": 0});
    patch
}

#[test]
fn a_world_that_is_as_believed_says_nothing() {
    for mut scene in [Scene::new(&["n", "m"]), reserved(), running()] {
        assert_eq!(scene.inputs(), []);
    }
}

#[test]
fn what_becomes_of_a_reserved_pod() {
    let s = reserved().job("s");
    let released = |outcome| vec![Input::Released { job: s, outcome }];
    let end = Some(at(1 + 100 + 5 + 15));
    let cases: [(&str, Option<Value>, Vec<Input>); 9] = [
        ("waits for its binding", Some(json!({})), vec![]),
        ("bound", Some(on("n", None)), vec![Input::Bound { job: s }]),
        ("runs", Some(on("n", Some(1))), vec![Input::Started { job: s, latest_end: end }]),
        ("bound elsewhere", Some(on("x", None)), released(Outcome::Cancelled)),
        ("being deleted", Some(deleting(json!({}))), released(Outcome::Cancelled)),
        ("gone", None, released(Outcome::Cancelled)),
        ("succeeded", Some(ended("Succeeded")), released(Outcome::Completed)),
        ("failed", Some(ended("Failed")), released(Outcome::Failed)),
        ("killed", Some(deleting(ended("Failed"))), released(Outcome::Cancelled)),
    ];
    for (name, patch, expected) in cases {
        let mut scene = reserved();
        match patch {
            Some(patch) => scene.put(pod("s", "small", 0, patch)),
            None => scene.remove("s"),
        }
        assert_eq!(scene.inputs(), expected, "{name}");
    }
}

#[test]
fn a_pod_that_is_gone_while_its_binding_was_posted_may_run() {
    let mut scene = reserved();
    scene.change_ledger("n", |status| status.reservations[0].bound_at = Some(began(at(1))));
    scene.remove("s");
    assert_eq!(scene.inputs(), [Input::Vanished { job: scene.job("s") }]);
}

#[test]
fn a_pod_that_was_bound_and_gone_in_one_look_may_run() {
    // The ledger trails, and does not show that a binding was posted.
    let mut scene = reserved();
    scene.remove("s");
    let last = |node| Arc::new(pod("s", "small", 0, on(node, None)));
    scene.world.last_words.insert("s".to_owned(), last("n"));
    let job = scene.job("s");
    assert_eq!(scene.inputs(), [Input::Vanished { job }]);
    // Bound to another node, it holds nothing here.
    scene.world.last_words.insert("s".to_owned(), last("m"));
    let outcome = Outcome::Cancelled;
    assert_eq!(scene.inputs(), [Input::Released { job, outcome }]);
}

#[test]
fn a_binding_that_was_refused_frees_the_reservation() {
    let mut scene = reserved();
    let (job, node) = (scene.job("s"), scene.node("n"));
    // The extender claimed it, was refused, and let the reservation end at once.
    scene.change_ledger("n", |status| status.reservations[0].deadline = Some(ends(at(2))));
    scene.pass(2);
    assert_eq!(scene.inputs(), [Input::BindFailed { job }]);
    let decisions = scene.settle();
    let reason = UnreserveReason::BindFailed;
    let retry_at = at(2) + Millis::from_secs(5);
    assert_eq!(decisions, [Decision::Unreserved { job, node, reason, retry_at }]);
    assert_eq!(scene.ledger("n").reservations, []);
}

#[test]
fn a_ledger_that_trails_a_new_reservation_is_no_refusal() {
    let mut scene = reserved();
    scene.change_ledger("n", |status| status.reservations[0].deadline = Some(ends(at(2))));
    scene.pass(2);
    let trailing = scene.ledger("n").clone();
    scene.step();
    scene.pass(10);
    assert!(matches!(scene.step()[..], [Decision::Reserved { .. }]));
    scene.change_ledger("n", |status| *status = trailing);
    assert_eq!(scene.inputs(), []);
}

#[test]
fn without_an_agent_a_vanished_pod_is_held_for_its_grace_and_a_margin() {
    let mut scene = running();
    let job = scene.job("s");
    scene.pass(10);
    scene.remove("s");
    assert_eq!(scene.inputs(), [Input::Vanished { job }]);
    scene.settle();
    let reservation = &scene.ledger("n").reservations[0];
    assert_eq!(reservation.state, ReservationState::Releasing);
    assert_eq!(reservation.deadline, Some(ends(at(10 + 5 + 10))));
    assert_eq!(scene.ledger("n").releasing, Vec::<String>::new());
    assert_eq!(scene.known.next_wakeup(scene.world.now), Some(at(25)));
    scene.pass(14);
    assert_eq!(scene.inputs(), []);
    scene.pass(1);
    assert_eq!(scene.inputs(), [Input::Released { job, outcome: Outcome::Cancelled }]);
}

#[test]
fn with_an_agent_a_vanished_pod_is_held_until_the_agent_says_so() {
    let mut scene = running();
    let job = scene.job("s");
    scene.change_ledger("n", |status| agent(status, "s", &[0]));
    scene.settle();
    scene.remove("s");
    scene.settle();
    assert_eq!(scene.ledger("n").releasing, ["s"]);
    scene.pass(10_000);
    assert_eq!(scene.inputs(), []);
    scene.change_ledger("n", |status| status.released.push("s".to_owned()));
    assert_eq!(scene.inputs(), [Input::Released { job, outcome: Outcome::Cancelled }]);
    // The agent still names the holder for a moment; that is no stranger.
    scene.settle();
    assert_eq!(scene.ledger("n").releasing, Vec::<String>::new());
    assert_eq!(scene.inputs(), []);
}

#[test]
fn last_words_release_a_pod_whose_end_nobody_saw() {
    let mut scene = running();
    let job = scene.job("s");
    scene.remove("s");
    let last = pod("s", "small", 0, ended("Succeeded"));
    scene.world.last_words.insert("s".to_owned(), Arc::new(last));
    assert_eq!(scene.inputs(), [Input::Released { job, outcome: Outcome::Completed }]);
}

#[test]
fn the_node_has_the_last_word_on_which_gpus() {
    let mut scene = running();
    let job = scene.job("s");
    scene.change_ledger("n", |status| agent(status, "s", &[5]));
    assert_eq!(scene.inputs(), [Input::Holds { job, gpus: GpuSet::single(5) }]);
    scene.settle();
    assert_eq!(scene.ledger("n").reservations[0].gpus, ["GPU-5"]);
    // Containers of a large get theirs one after another.
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("l", "whole-node-large", 0, json!({})));
    scene.settle();
    scene.put(pod("l", "whole-node-large", 0, on("n", Some(1))));
    scene.change_ledger("n", |status| agent(status, "l", &[0, 1, 2, 3]));
    scene.settle();
    assert_eq!(scene.pool.holding(scene.job("l")).unwrap().gpus, GpuSet::first(8));
}

#[test]
fn who_goes_round_sluice_is_counted() {
    let foreign = |scene: &mut Scene| {
        let inputs = scene.inputs();
        assert_eq!(inputs.len(), 1, "{inputs:?}");
        match &inputs[0] {
            Input::Foreign { count, gpus, latest_end, .. } => (*count, *gpus, *latest_end),
            other => panic!("{other:?}"),
        }
    };
    let mut other = on("n", Some(1));
    other["spec"]["schedulerName"] = json!("default-scheduler");
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("f", "small", 0, other.clone()));
    assert_eq!(foreign(&mut scene), (1, None, Some(at(121))));
    scene.settle();
    assert_eq!(scene.ledger("n").foreign_gpus, 1);
    assert_eq!(scene.inputs(), []);
    // The agent knows which.
    scene.change_ledger("n", |status| agent(status, "f", &[3]));
    assert_eq!(foreign(&mut scene), (1, Some(GpuSet::single(3)), Some(at(121))));
    scene.settle();
    // It ends like any other.
    scene.put(pod("f", "small", 0, ended("Failed")));
    assert!(matches!(scene.inputs()[..], [Input::Released { outcome: Outcome::Failed, .. }]));
    scene.settle();
    assert_eq!(scene.ledger("n").foreign_gpus, 0);
    // One that has our label but was bound by hand, while it waited.
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    scene.put(pod("h", "small", 0, json!({})));
    scene.settle();
    let job = scene.job("h");
    scene.put(pod("h", "small", 0, on("n", None)));
    let inputs = scene.inputs();
    assert!(inputs.contains(&Input::Withdrawn { job }), "{inputs:?}");
    assert!(matches!(inputs[0], Input::Foreign { count: 1, .. }), "{inputs:?}");
}

#[test]
fn a_holder_without_an_object_is_counted_until_the_agent_lets_go() {
    let mut scene = Scene::new(&["n"]);
    scene.change_ledger("n", |status| agent(status, "ghost", &[2, 3]));
    let inputs = scene.inputs();
    let gpus = GpuSet::single(2).union(GpuSet::single(3));
    assert!(
        matches!(inputs[..], [Input::Foreign { count: 2, gpus: Some(g), .. }] if g == gpus),
        "{inputs:?}"
    );
    scene.settle();
    scene.settle();
    assert_eq!(scene.ledger("n").releasing, ["ghost"]);
    assert_eq!(scene.inputs(), []);
    scene.change_ledger("n", |status| {
        agent(status, "nobody", &[]);
        status.released = vec!["ghost".to_owned()];
    });
    scene.settle();
    assert_eq!(scene.ledger("n").reservations, []);
}

/// The agent saw that somebody holds a GPU, and not yet who.
#[test]
fn a_holder_without_a_uid_is_nobody_and_its_gpu_is_not_free() {
    let mut scene = Scene::new(&["n", "o"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene.put(pod("s", "small", 0, on("n", Some(1))));
    for name in ["n", "o"] {
        scene.change_ledger(name, |status| agent(status, "nobody", &[]));
    }
    scene.settle();
    let own = scene.pool.holding(scene.job("s")).unwrap().gpus;
    let nameless = |status: &mut GpuNodeStatus| agent(status, "", &[0, 7]);
    for name in ["n", "o"] {
        scene.change_ledger(name, nameless);
    }
    scene.settle();
    // The small's own GPU is spoken for, whoever is found on it.
    assert_eq!(own, GpuSet::single(0));
    assert_eq!(scene.ledger("n").free_of_total, "6/8");
    assert_eq!(scene.ledger("o").free_of_total, "6/8");
    assert_eq!(scene.ledger("o").reservations, []);
    assert_eq!(scene.inputs(), []);
    for name in ["n", "o"] {
        scene.change_ledger(name, |status| agent(status, "nobody", &[]));
    }
    scene.settle();
    assert_eq!(scene.ledger("n").free_of_total, "7/8");
    assert_eq!(scene.ledger("o").free_of_total, "8/8");
}

#[test]
fn who_waits_and_who_does_not() {
    let cases: [(&str, Value, bool); 8] = [
        ("gated", json!({}), true),
        ("its gate was removed by hand", json!({"spec": {"schedulingGates": null}}), true),
        ("another pool", json!({"metadata": {"labels": {"sluice.dev/pool": "x"}}}), false),
        ("another scheduler", json!({"spec": {"schedulerName": "x"}}), false),
        ("no such shape", json!({"metadata": {"labels": {"sluice.dev/shape": "x"}}}), false),
        (
            "label and request disagree",
            json!({"metadata": {"labels": {"sluice.dev/shape": "whole-node-large"}}}),
            false,
        ),
        ("being deleted", deleting(json!({})), false),
        ("over", json!({"status": {"phase": "Failed"}}), false),
    ];
    for (name, patch, waits) in cases {
        let mut scene = Scene::new(&["n"]);
        scene.put(pod("s", "small", 0, patch));
        let queued = scene.inputs().iter().any(|input| matches!(input, Input::Queued(_)));
        assert_eq!(queued, waits, "{name}");
    }
}

#[test]
fn a_waiting_pod_that_goes_is_withdrawn() {
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    let job = scene.job("s");
    assert_eq!(scene.inputs(), []);
    scene.remove("s");
    assert_eq!(scene.inputs(), [Input::Withdrawn { job }]);
}

#[test]
fn pods_of_one_second_are_numbered_as_they_arrived() {
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    let version = |number: &str| json!({"metadata": {"resourceVersion": number}});
    scene.put(pod("c", "small", 0, version("7")));
    scene.put(pod("b", "small", 0, version("10")));
    scene.put(pod("a", "small", 1, version("2")));
    // This one says that it had a number before, as the one after it does too.
    let numbered = |version: &str| {
        json!({"metadata": {"resourceVersion": version,
                            "annotations": {"sluice.dev/sequence": "40"}}})
    };
    scene.put(pod("d", "small", 2, numbered("3")));
    scene.put(pod("e", "small", 3, numbered("4")));
    scene.settle();
    let numbers = ["d", "c", "b", "a", "e"].map(|name| scene.job(name).0);
    assert_eq!(numbers, [40, 41, 42, 43, 44]);
}

#[test]
fn nodes_come_change_and_go() {
    let mut scene = Scene::new(&["n"]);
    let id = scene.node("n");
    let cordoned = node("n", json!({"spec": {"unschedulable": true}}));
    scene.world.nodes.insert("n".to_owned(), Arc::new(cordoned));
    assert!(matches!(
        scene.inputs()[..],
        [Input::NodeChanged { node, spec }] if node == id && !spec.schedulable
    ));
    // Made anew under the same name.
    let again = node("n", json!({"metadata": {"uid": "another"}}));
    scene.world.nodes.insert("n".to_owned(), Arc::new(again));
    let inputs = scene.inputs();
    assert!(inputs.contains(&Input::NodeGone { node: id }), "{inputs:?}");
    assert!(
        inputs.iter().any(|input| matches!(input, Input::NodeChanged { node, .. } if *node != id)),
        "{inputs:?}"
    );
    scene.world.nodes.clear();
    scene.settle();
    assert!(scene.pool.nodes().is_empty());
}

#[test]
fn a_node_that_leaves_the_pool_takes_nothing_new() {
    let mut scene = running();
    scene.world.leaving.insert("n".to_owned());
    scene.settle();
    assert!(!scene.pool.nodes()[&scene.node("n")].spec.schedulable);
    assert_eq!(scene.pool.holding(scene.job("s")).unwrap().stage, Stage::Running);
}

#[test]
fn an_unhealthy_gpu_is_told() {
    let mut scene = Scene::new(&["n"]);
    scene.change_ledger("n", |status| {
        agent(status, "nobody", &[]);
        status.gpus[4].health = GpuHealth::Unhealthy;
    });
    let inputs = scene.inputs();
    let healthy = GpuSet::first(8).minus(GpuSet::single(4));
    assert!(
        matches!(inputs[..], [Input::NodeChanged { spec, .. }] if spec.healthy == healthy),
        "{inputs:?}"
    );
}

#[test]
fn new_settings_are_told() {
    let mut scene = Scene::new(&["n"]);
    scene.world.config.paused = true;
    assert!(matches!(&scene.inputs()[..], [Input::Configured(config)] if config.paused));
}
