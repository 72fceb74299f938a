//! A controller that starts anew goes on as if nothing had happened, whatever the nodes were doing.

use k8s_openapi::serde_json::{Value, json};

use std::collections::BTreeSet;

use super::*;
use crate::api::ShapeCounters as ApiCounters;
use crate::policy::{Cause, Shape};
use crate::translate::fixture::{Scene, at, gpu_pool, on, pod};
use crate::translate::plan::{Memory, plan};
use crate::translate::time::began;

/// What a node does, and how the scene comes to it.
type Case = (&'static str, fn() -> Scene);

fn start(scene: &mut Scene, name: &str, shape: &str, node: &str) {
    let now = scene.world.now.since(crate::translate::fixture::START).0 / 1_000;
    scene.put(pod(name, shape, 0, on(node, Some(now))));
}

fn end(scene: &mut Scene, name: &str, shape: &str) {
    let patch = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
    scene.put(pod(name, shape, 0, patch));
}

fn smalls(scene: &mut Scene, names: &[&str]) {
    for name in names {
        scene.put(pod(name, "small", 0, json!({})));
    }
    scene.settle();
}

fn open() -> Scene {
    let mut scene = Scene::new(&["n"]);
    smalls(&mut scene, &["a", "b", "c"]);
    scene.pass(2);
    start(&mut scene, "a", "small", "n");
    scene.put(pod("b", "small", 0, on("n", None)));
    scene.settle();
    scene
}

fn draining() -> Scene {
    let mut scene = open();
    scene.pass(3);
    scene.put(pod("l", "whole-node-large", 5, json!({})));
    scene.settle();
    scene
}

fn exclusive() -> Scene {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("l", "whole-node-large", 0, json!({})));
    scene.put(pod("m", "whole-node-large", 1, json!({})));
    smalls(&mut scene, &["a", "b"]);
    start(&mut scene, "l", "whole-node-large", "n");
    scene.settle();
    scene
}

fn wave() -> Scene {
    let mut scene = exclusive();
    scene.pass(7);
    end(&mut scene, "l", "whole-node-large");
    scene.settle();
    scene
}

fn foreign() -> Scene {
    let mut scene = open();
    let mut patch = on("n", Some(1));
    patch["spec"]["schedulerName"] = json!("default-scheduler");
    scene.put(pod("f", "small", 0, patch));
    scene.settle();
    scene
}

fn releasing() -> Scene {
    let mut scene = open();
    scene.remove("a");
    scene.settle();
    scene
}

fn two_nodes() -> Scene {
    let mut scene = Scene::new(&["m", "n"]);
    scene.put(pod("l", "whole-node-large", 0, json!({})));
    smalls(&mut scene, &["a", "b", "c"]);
    scene
}

fn given_up() -> Scene {
    let limits = json!({"small": {"maxSeconds": 100}, "wholeNodeLarge": {"maxSeconds": 100}});
    let mut scene = Scene::with(&["n"], json!({"backfill": "WithinDrain", "limits": limits}));
    smalls(&mut scene, &["a"]);
    scene.pass(2);
    start(&mut scene, "a", "small", "n");
    scene.put(pod("l", "whole-node-large", 2, json!({})));
    scene.put(pod("b", "small", 2, json!({"spec": {"activeDeadlineSeconds": 10}})));
    scene.settle();
    scene.pass(1);
    scene.remove("l");
    scene.settle();
    scene
}

const CASES: [Case; 9] = [
    ("empty", || Scene::new(&["n"])),
    ("open", open),
    ("draining", draining),
    ("exclusive", exclusive),
    ("wave", wave),
    ("foreign", foreign),
    ("releasing", releasing),
    ("two nodes", two_nodes),
    ("given up", given_up),
];

/// The scene after the controller died and another started from what the API server has.
fn again(scene: &Scene) -> Scene {
    let (pool, known) = restore(&scene.world).unwrap();
    Scene { world: scene.world.clone(), pool, known }
}

#[test]
fn a_new_controller_goes_on_where_the_last_one_stopped() {
    for (name, case) in CASES {
        let before = case();
        let mut after = again(&before);
        let decisions = after.settle();
        assert_eq!(decisions, [], "{name}");
        assert_eq!(after.world.ledgers, before.world.ledgers, "{name}");
        let queue = |scene: &Scene, shape| -> Vec<String> {
            let jobs = scene.pool.queue(shape).map(|waiting| waiting.job.id);
            jobs.map(|job| scene.known.ids.pod(job).unwrap().name.clone()).collect()
        };
        for shape in [Shape::Small, Shape::Large] {
            assert_eq!(queue(&after, shape), queue(&before, shape), "{name}");
        }
        for (id, node) in after.pool.nodes() {
            let broken = crate::policy::invariants::check_node(after.pool.config(), node);
            assert_eq!(broken, [], "{name}, node {id}");
        }
    }
}

#[test]
fn a_new_controller_names_itself_where_it_tells_a_later_time() {
    let limits =
        json!({"limits": {"small": {"maxSeconds": 10}, "wholeNodeLarge": {"maxSeconds": 50}}});
    let mut scene = Scene::with(&["n"], limits);
    let told = |by: &str| {
        json!({"status": {"conditions": [{"type": "sluice.dev/Admitted", "status": "False",
            "reason": "GateClosed", "message": format!("It starts by {by} at the latest.")}]},
            "spec": {"activeDeadlineSeconds": 10}})
    };
    scene.put(pod("a", "whole-node-large", 0, json!({"spec": {"activeDeadlineSeconds": 50}})));
    scene.settle();
    scene.put(pod("b", "small", 1, told("2027-01-15 08:00:01 UTC")));
    scene.put(pod("c", "small", 1, told("2099-01-15 08:00:01 UTC")));
    scene.put(pod("d", "small", 1, told("some time")));
    let mut again = again(&scene);
    let inputs = again.inputs();
    again.known.note(&inputs, &again.world, &again.pool);
    let moved = again.known.promises.step(&mut again.pool, &inputs, again.world.now).moved;
    let later: Vec<_> = moved.iter().map(|m| (m.job, m.from, m.cause)).collect();
    assert_eq!(later, [(again.job("b"), at(1), Cause::Restarted)]);
}

#[test]
fn the_phases_are_those_that_the_cases_say() {
    let phase = |case: Case| again(&case.1()).pool.nodes().values().next().unwrap().phase;
    assert!(matches!(phase(CASES[2]), Phase::Draining(_)));
    assert!(matches!(phase(CASES[3]), Phase::Exclusive(_)));
    assert!(matches!(phase(CASES[4]), Phase::Wave { admitted: 2, .. }));
}

#[test]
fn a_drain_that_was_given_up_over_backfilled_pods_is_remembered() {
    let node = |scene: &Scene| scene.pool.nodes().values().next().unwrap().clone();
    let (before, after) = (given_up(), again(&given_up()));
    assert_eq!(node(&before).given_up, Some(at(3)));
    assert_eq!(node(&after).given_up, Some(at(3)));
}

#[test]
fn a_crash_before_the_ledger_was_written_takes_the_decision_again() {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("a", "small", 0, json!({})));
    let first = scene.step();
    let mut after = again(&scene);
    assert_eq!(after.step(), first);
}

#[test]
fn a_posted_binding_is_waited_for_longer_than_its_reservation() {
    let mut scene = Scene::new(&["n"]);
    smalls(&mut scene, &["a"]);
    scene.change_ledger("n", |status| {
        status.reservations[0].bound_at = Some(began(at(29)));
        status.reservations[0].state = ReservationState::Bound;
    });
    scene.pass(40);
    let mut after = again(&scene);
    assert_eq!(after.settle(), []);
    let holding = *after.pool.holding(after.job("a")).unwrap();
    assert_eq!(holding.stage, Stage::Reserved);
    assert_eq!(holding.expires, Some(at(29) + BIND_DOUBT));
    assert_eq!(after.ledger("n").reservations[0].state, ReservationState::Bound);
    // The object is gone: it may have run.
    scene.remove("a");
    let mut after = again(&scene);
    let job = after.job("a");
    assert_eq!(after.inputs(), [crate::policy::Input::Vanished { job }]);
}

#[test]
fn the_hold_on_a_vanished_pod_outlives_the_controller() {
    let scene = releasing();
    let after = again(&scene);
    assert_eq!(after.known.next_wakeup(after.world.now), scene.known.next_wakeup(scene.world.now));
    assert!(after.known.next_wakeup(after.world.now).is_some());
}

#[test]
fn counters_of_nodes_that_are_gone_are_kept_by_the_pool() {
    let mut scene = open();
    end(&mut scene, "a", "small");
    scene.settle();
    let mut object = gpu_pool(json!({}));
    object.status = Some(crate::api::GpuPoolStatus {
        elsewhere: crate::api::Counters {
            small: ApiCounters { admitted: 10, completed: 5, failed: 1, cancelled: 2 },
            ..crate::api::Counters::default()
        },
        ..crate::api::GpuPoolStatus::default()
    });
    scene.world.pool = std::sync::Arc::new(object);
    let after = again(&scene);
    let small = after.pool.counters().small;
    assert_eq!((small.admitted, small.completed, small.cancelled), (13, 6, 2));
}

#[test]
fn a_ledger_that_makes_no_sense_gives_an_open_node() {
    let broken: [(&str, Value); 3] = [
        ("no large", json!({"phase": "Exclusive"})),
        ("no drain", json!({"phase": "Draining"})),
        (
            "no gate",
            json!({"phase": "Wave", "wave": {
            "admitted": 2, "size": 8, "since": "2026-01-01T00:00:00Z"}}),
        ),
    ];
    for (name, status) in broken {
        let mut scene = Scene::new(&["n"]);
        let status: GpuNodeStatus = k8s_openapi::serde_json::from_value(status).unwrap();
        scene.change_ledger("n", |old| *old = status);
        let after = again(&scene);
        assert!(after.pool.nodes().values().all(Node::is_open), "{name}");
    }
}

/// A superseded leader's write may arrive after the next one promised the pod another node.
#[test]
fn a_pod_promised_on_two_nodes_belongs_where_it_is_bound() {
    for (home, other) in [("m", "n"), ("n", "m")] {
        let mut scene = Scene::new(&["m", "n"]);
        scene.put(pod("l", "whole-node-large", 0, json!({})));
        smalls(&mut scene, &["a"]);
        let first = scene.world.ledgers.iter().find(|(_, ledger)| {
            let status = ledger.status.as_ref().unwrap();
            status.reservations.iter().any(|reservation| reservation.uid == "a")
        });
        let copy = first.unwrap().1.status.as_ref().unwrap().reservations[0].clone();
        scene.remove("l");
        scene.settle();
        scene.pass(1);
        for node in [home, other] {
            scene.change_ledger(node, |status| status.reservations = vec![copy.clone()]);
        }
        scene.put(pod("a", "small", 0, on(home, None)));

        let mut scene = again(&scene);
        scene.settle();
        let holders = |scene: &Scene, node| -> Vec<String> {
            let reservations = scene.ledger(node).reservations.iter();
            reservations.map(|reservation| reservation.uid.clone()).collect()
        };
        assert_eq!(holders(&scene, home), ["a"], "bound on {home}");
        assert_eq!(holders(&scene, other), [""; 0], "bound on {home}");
        assert_eq!(scene.pool.node_of(scene.job("a")), Some(scene.node(home)));
        assert!(scene.pool.nodes()[&scene.node(home)].holdings.contains_key(&scene.job("a")));
    }
}

/// Until one knows which of two posted bindings took effect, both nodes' GPUs are held.
#[test]
fn a_pod_that_may_be_bound_on_two_nodes_holds_both_until_it_is_seen() {
    let mut scene = Scene::new(&["m", "n"]);
    smalls(&mut scene, &["a"]);
    let mut copy = scene.ledger("m").reservations[0].clone();
    copy.bound_at = Some(began(scene.world.now));
    copy.state = ReservationState::Bound;
    for node in ["m", "n"] {
        scene.change_ledger(node, |status| status.reservations = vec![copy.clone()]);
    }
    let doubtful = scene;
    let mut scene = again(&doubtful);
    scene.step();
    let plan =
        plan(&scene.world, &scene.pool, &scene.known, &BTreeSet::new(), &mut Memory::default());
    assert_eq!(plan.rebuild, None, "rebuilding would give the same");
    scene.write();
    for node in ["m", "n"] {
        assert_eq!(scene.ledger(node).reservations.len(), 1, "{node}");
    }
    scene.put(pod("a", "small", 0, on("m", None)));
    scene.settle();
    assert_eq!(scene.ledger("m").reservations.len(), 1);
    assert_eq!(scene.ledger("m").reservations[0].uid, "a");
    assert_eq!(scene.ledger("n").reservations.len(), 0);

    let mut scene = again(&doubtful);
    scene.settle();
    scene.pass(BIND_DOUBT.0 / 1_000 + 1);
    scene.settle();
    for node in ["m", "n"] {
        assert_eq!(scene.ledger(node).reservations.len(), 0, "{node}: no binding came");
    }
}
