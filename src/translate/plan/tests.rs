//! Which writes follow from a state, and above all which do not follow yet.

use std::sync::Arc;

use k8s_openapi::serde_json::{Value, json};

use super::*;
use crate::api::ReservationState;
use crate::translate::fixture::{Scene, at, on, pod, stamp};
use crate::translate::node::tests::node;
use crate::translate::time::began;

impl Scene {
    fn plan(&self, memory: &mut Memory) -> Plan {
        plan(&self.world, &self.pool, &self.known, &BTreeSet::new(), memory)
    }

    /// The actions on one pod, without its number.
    fn on_pod(&self, name: &str, memory: &mut Memory) -> Vec<Action> {
        let target = Target::Pod(name.to_owned());
        let mut actions = self.plan(memory).actions;
        actions.retain(|a| a.target() == target && !matches!(a, Action::Number { .. }));
        actions
    }
}

/// What the API server would show after this was told.
fn told(action: &Action) -> Value {
    let Action::Tell { admitted, nominate, .. } = action else { panic!("{action:?}") };
    let status = if admitted.yes { "True" } else { "False" };
    let mut shown = json!({"status": {"conditions": [
        {"type": "sluice.dev/Admitted", "status": status, "reason": admitted.reason,
         "message": admitted.message}]}});
    if let Nomination::Node(node) = nominate {
        shown["status"]["nominatedNodeName"] = json!(node);
    }
    shown
}

fn nominated(action: &Action) -> &Nomination {
    let Action::Tell { nominate, .. } = action else { panic!("{action:?}") };
    nominate
}

fn message(action: &Action) -> &str {
    let Action::Tell { admitted, .. } = action else { panic!("{action:?}") };
    &admitted.message
}

#[test]
fn nothing_to_do_is_no_write() {
    let mut scene = Scene::new(&["n"]);
    assert_eq!(scene.plan(&mut Memory::default()), Plan::default());
    scene.put(pod("r", "small", 0, on("n", Some(1))));
    scene.settle();
    let plan = scene.plan(&mut Memory::default());
    assert_eq!(plan, Plan::default());
}

#[test]
fn the_ledger_comes_first_then_the_nomination_then_the_gate() {
    let mut scene = Scene::new(&["n"]);
    let mut memory = Memory::default();
    let other = json!({"spec": {"schedulingGates": [
        {"name": "other"}, {"name": "sluice.dev/admission"}]}});
    scene.put(pod("s", "small", 0, other.clone()));
    scene.step();
    // Decided, and not yet in the ledger: nothing but the ledger is written.
    assert_eq!(scene.on_pod("s", &mut memory), []);
    assert!(matches!(&scene.plan(&mut memory).actions[..], [Action::WriteLedger { .. }, ..]));
    scene.write();
    let actions = scene.on_pod("s", &mut memory);
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert_eq!(nominated(&actions[0]), &Nomination::Node("n".to_owned()));
    assert_eq!(message(&actions[0]), "GPU 0 of node n is reserved for this pod.");
    let mut shown = told(&actions[0]);
    shown["spec"] = other["spec"].clone();
    scene.put(pod("s", "small", 0, shown));
    let who = scene.world.pods["s"].who.clone();
    assert_eq!(scene.on_pod("s", &mut memory), [Action::Ungate { pod: who, sequence: Some(1) }]);
    // Bound: all is done.
    scene.put(pod("s", "small", 0, on("n", None)));
    scene.settle();
    let told_once = scene.on_pod("s", &mut memory);
    assert!(told_once.iter().all(|action| matches!(action, Action::Tell { .. })));
}

#[test]
fn a_ledger_with_other_gpus_opens_no_gate() {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene.change_ledger("n", |status| status.reservations[0].gpus = vec!["gpu-5".to_owned()]);
    assert_eq!(scene.on_pod("s", &mut Memory::default()), []);
}

/// A node with one small that runs, a large that it is emptied for, and one backfilled small that
/// is reserved behind the gate.
fn backfilled() -> Scene {
    let mut scene = Scene::new(&["n"]);
    scene.world.config.backfill = true;
    scene.put(pod("a", "small", 0, json!({"spec": {"activeDeadlineSeconds": 1000}})));
    scene.settle();
    let mut runs = on("n", Some(1));
    runs["spec"]["activeDeadlineSeconds"] = json!(1000);
    scene.put(pod("a", "small", 0, runs));
    scene.put(pod("l", "whole-node-large", 2, json!({})));
    scene.settle();
    scene
}

#[test]
fn a_large_is_nominated_while_nothing_else_can_be_bound_there() {
    let mut scene = backfilled();
    let mut memory = Memory::default();
    let actions = scene.on_pod("l", &mut memory);
    assert_eq!(nominated(&actions[0]), &Nomination::Node("n".to_owned()));
    assert!(message(&actions[0]).starts_with(
        "Node n is being emptied for this pod. team/a still holds GPUs there, until "
    ));
    scene.put(pod("l", "whole-node-large", 2, told(&actions[0])));
    assert_eq!(scene.on_pod("l", &mut memory), []);
    // A small is let in behind the gate: the nomination goes first, the small's gate after it.
    scene.put(pod("b", "small", 3, json!({})));
    scene.settle();
    let actions = scene.on_pod("l", &mut memory);
    assert_eq!(nominated(&actions[0]), &Nomination::Clear);
    assert_eq!(scene.on_pod("b", &mut memory), []);
    let mut shown = told(&actions[0]);
    shown["status"]["nominatedNodeName"] = Value::Null;
    scene.put(pod("l", "whole-node-large", 2, shown));
    assert_eq!(nominated(&scene.on_pod("b", &mut memory)[0]), &Nomination::Node("n".to_owned()));
    // Once that one is bound the nomination comes back.
    scene.put(pod("b", "small", 3, on("n", None)));
    scene.settle();
    assert_eq!(nominated(&scene.on_pod("l", &mut memory)[0]), &Nomination::Node("n".to_owned()));
}

#[test]
fn the_gate_of_a_large_that_was_nominated_does_not_wait_for_words() {
    let mut scene = backfilled();
    let mut memory = Memory::default();
    let told_draining = told(&scene.on_pod("l", &mut memory)[0]);
    scene.put(pod("l", "whole-node-large", 2, told_draining.clone()));
    let over = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
    scene.put(pod("a", "small", 0, over));
    scene.step();
    assert_eq!(scene.on_pod("l", &mut memory), []);
    scene.write();
    let who = scene.world.pods["l"].who.clone();
    assert_eq!(scene.on_pod("l", &mut memory), [Action::Ungate { pod: who, sequence: Some(2) }]);
    let mut open = told_draining;
    open["spec"]["schedulingGates"] = json!([]);
    scene.put(pod("l", "whole-node-large", 2, open));
    let actions = scene.on_pod("l", &mut memory);
    assert_eq!(nominated(&actions[0]), &Nomination::Keep);
    assert!(message(&actions[0]).ends_with("of node n are reserved for this pod."));
}

#[test]
fn reserved_pods_do_not_wait_for_each_other() {
    let mut scene = Scene::new(&["n"]);
    let mut memory = Memory::default();
    for name in ["a", "b"] {
        scene.put(pod(name, "small", 0, json!({})));
    }
    scene.settle();
    for name in ["a", "b"] {
        let actions = scene.on_pod(name, &mut memory);
        scene.put(pod(name, "small", 0, told(&actions[0])));
    }
    for name in ["a", "b"] {
        assert!(matches!(scene.on_pod(name, &mut memory)[..], [Action::Ungate { .. }]), "{name}");
    }
}

#[test]
fn wording_alone_is_written_seldom() {
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    let mut memory = Memory::default();
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    let actions = scene.on_pod("s", &mut memory);
    assert_eq!(message(&actions[0]), "The pool is paused: it admits nothing.");
    let mut shown = told(&actions[0]);
    shown["status"]["conditions"][0]["message"] = json!("Other words.");
    scene.put(pod("s", "small", 0, shown.clone()));
    scene.pass(9);
    assert_eq!(scene.on_pod("s", &mut memory), []);
    scene.pass(1);
    assert!(matches!(
        scene.on_pod("s", &mut memory)[..],
        [Action::Tell { urgent: false, flips: false, .. }]
    ));
    // Another reason is told within a second.
    shown["status"]["conditions"][0]["reason"] = json!("Busy");
    scene.put(pod("s", "small", 0, shown));
    assert_eq!(scene.on_pod("s", &mut memory), []);
    scene.pass(1);
    assert!(matches!(scene.on_pod("s", &mut memory)[..], [Action::Tell { flips: false, .. }]));
}

#[test]
fn a_stated_start_does_not_move_on_with_the_clock() {
    let limits = json!({"limits": {
        "small": {"maxSeconds": 100}, "wholeNodeLarge": {"maxSeconds": 1000}}});
    let mut scene = Scene::with(&["n"], limits);
    let mut memory = Memory::default();
    scene.put(pod("l", "whole-node-large", 0, json!({})));
    scene.settle();
    scene.put(pod("l", "whole-node-large", 0, on("n", Some(1))));
    scene.put(pod("s", "small", 1, json!({})));
    scene.settle();
    let first = message(&scene.on_pod("s", &mut memory)[0]).to_owned();
    assert!(first.contains("team/l holds every GPU of node n. It starts by "), "{first}");
    scene.pass(60);
    assert_eq!(message(&scene.on_pod("s", &mut memory)[0]), first);
}

#[test]
fn a_pod_whose_label_and_request_disagree_is_told_so() {
    let mut scene = Scene::new(&["n"]);
    let label = json!({"metadata": {"labels": {"sluice.dev/shape": "whole-node-large"}}});
    scene.put(pod("s", "small", 0, label));
    scene.settle();
    let text = message(&scene.on_pod("s", &mut Memory::default())[0]).to_owned();
    assert!(
        text.starts_with(
            "The pod's label says whole-node-large, which is 8 of nvidia.com/gpu in pool default, \
             and it requests 1."
        ),
        "{text}"
    );
}

#[test]
fn ledgers_follow_their_nodes() {
    let mut scene = Scene::new(&["n"]);
    scene.world.ledgers.clear();
    let plan = scene.plan(&mut Memory::default());
    let [Action::CreateLedger(ledger)] = &plan.actions[..] else { panic!("{plan:?}") };
    let owner = &ledger.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "uid-n"));
    assert_eq!((ledger.spec.pool.as_str(), ledger.spec.node_uid.as_str()), ("default", "uid-n"));

    let deleted = |scene: &Scene| {
        let plan = scene.plan(&mut Memory::default());
        let gone = Action::DeleteLedger { name: "n".to_owned(), uid: "ledger-of-n".to_owned() };
        assert!(plan.actions.contains(&gone), "{plan:?}");
    };
    let mut scene = Scene::new(&["n"]);
    let again = node("n", json!({"metadata": {"uid": "another"}}));
    scene.world.nodes.insert("n".to_owned(), Arc::new(again));
    scene.step();
    deleted(&scene);
    scene.world.nodes.clear();
    scene.step();
    deleted(&scene);
}

#[test]
fn a_binding_in_flight_for_a_pod_that_lost_its_reservation_starts_over() {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene.change_ledger("n", |status| {
        status.reservations[0].bound_at = Some(began(at(29)));
        status.reservations[0].state = ReservationState::Bound;
    });
    assert_eq!(scene.plan(&mut Memory::default()).rebuild, None);
    scene.pass(30);
    scene.step();
    assert!(scene.plan(&mut Memory::default()).rebuild.is_some());
    // After so long nothing is in flight any more.
    scene.pass(75);
    assert_eq!(scene.plan(&mut Memory::default()).rebuild, None);
    // A pod whose deletion was asked for before it was bound never will be.
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene.change_ledger("n", |status| status.reservations[0].bound_at = Some(began(at(1))));
    scene.put(pod("s", "small", 0, json!({"metadata": {"deletionTimestamp": stamp(1)}})));
    scene.step();
    assert_eq!(scene.plan(&mut Memory::default()).rebuild, None);
}

/// The ledger's watch may trail the clock and the pod's watch: the reservation ends, and then the
/// pod is found bound.
#[test]
fn a_pod_that_is_bound_after_its_reservation_was_given_up_did_not_go_round_us() {
    let mut scene = Scene::new(&["n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    scene.pass(30);
    scene.step();
    scene.put(pod("s", "small", 0, on("n", None)));
    scene.step();
    scene.change_ledger("n", |status| {
        status.reservations[0].bound_at = Some(began(at(20)));
        status.reservations[0].state = ReservationState::Bound;
    });
    assert!(scene.plan(&mut Memory::default()).rebuild.is_some());
    scene.pass(100);
    assert!(scene.plan(&mut Memory::default()).rebuild.is_some(), "it does not wear off");
    // What the ledger itself has as foreign is no reason to start over again and again.
    scene.change_ledger("n", |status| {
        status.reservations[0].kind = ReservationKind::Foreign;
    });
    assert_eq!(scene.plan(&mut Memory::default()).rebuild, None);
}

/// The write of a leader that crashed may arrive after the next one promised the pod another node.
#[test]
fn a_pod_that_is_bound_by_a_promise_of_the_last_leader_did_not_go_round_us() {
    let mut scene = Scene::new(&["m", "n"]);
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    let (home, other) =
        if scene.ledger("m").reservations.is_empty() { ("n", "m") } else { ("m", "n") };
    let mut copy = scene.ledger(home).reservations[0].clone();
    copy.state = ReservationState::Bound;
    copy.bound_at = Some(began(scene.world.now));
    scene.put(pod("s", "small", 0, on(other, None)));
    scene.step();
    scene.change_ledger(other, |status| status.reservations = vec![copy]);
    assert!(scene.plan(&mut Memory::default()).rebuild.is_some());
}

/// Each look has room for so many words and so many calls: those that others wait for come first.
#[test]
fn gates_and_nominations_do_not_wait_for_the_words_of_a_crowd() {
    let mut scene = Scene::new(&["n", "o"]);
    scene.put(pod("run", "small", 0, on("n", Some(1))));
    scene.put(pod("x-large", "whole-node-large", 1, json!({})));
    scene.put(pod("y-large", "whole-node-large", 2, json!({})));
    scene.settle();
    for number in 0..100 {
        scene.put(pod(&format!("a{number:03}"), "small", 3, json!({})));
    }
    scene.settle();
    let gates = scene.pool.nodes().values().filter(|node| node.gate().is_some()).count();
    assert_eq!((gates, scene.ledger("o").reservations.len()), (1, 1), "x runs, y waits for n");
    let actions = scene.plan(&mut Memory::default()).actions;
    let told: Vec<&str> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Tell { pod, .. } => Some(pod.name.as_str()),
            _ => None,
        })
        .collect();
    assert!(told.len() > 60, "{told:?}");
    assert_eq!(told[..2], ["x-large", "y-large"]);
}

#[test]
fn a_node_behind_a_gate_is_spared_from_scale_down() {
    let mut scene = backfilled();
    let spare = |scene: &Scene| {
        let plan = scene.plan(&mut Memory::default());
        plan.actions.into_iter().find(|action| matches!(action, Action::Spare { .. }))
    };
    let wanted = |spare| Some(Action::Spare { node: "n".to_owned(), spare });
    assert_eq!(spare(&scene), wanted(true));
    let annotated = |by_us: bool| {
        let mut annotations =
            json!({"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"});
        if by_us {
            annotations["sluice.dev/spared-from-scale-down"] = json!("true");
        }
        Arc::new(node("n", json!({"metadata": {"annotations": annotations}})))
    };
    scene.world.nodes.insert("n".to_owned(), annotated(true));
    assert_eq!(spare(&scene), None);
    scene.remove("l");
    scene.settle();
    assert_eq!(spare(&scene), wanted(false));
    scene.world.nodes.insert("n".to_owned(), annotated(false));
    assert_eq!(spare(&scene), None);
}

#[test]
fn an_overdue_drain_evicts_once_asked_to() {
    let spec = json!({"drain": {"timeLimitSeconds": 10, "onTimeLimit": "Evict"}});
    let mut scene = Scene::with(&["n"], spec);
    scene.put(pod("a", "small", 0, json!({})));
    scene.settle();
    scene.put(pod("a", "small", 0, on("n", Some(1))));
    scene.put(pod("l", "whole-node-large", 2, json!({})));
    scene.settle();
    let evictions = |scene: &Scene| {
        let plan = scene.plan(&mut Memory::default());
        plan.actions.iter().filter(|action| matches!(action, Action::Evict { .. })).count()
    };
    assert_eq!(evictions(&scene), 0);
    scene.pass(10);
    scene.settle();
    assert_eq!(evictions(&scene), 1);
    let mut patch = on("n", Some(1));
    patch["metadata"] = json!({"deletionTimestamp": stamp(20)});
    scene.put(pod("a", "small", 0, patch));
    assert_eq!(evictions(&scene), 0);
}

#[test]
fn numbers_are_recorded_on_pods() {
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    scene.put(pod("s", "small", 0, json!({})));
    scene.settle();
    let number = |scene: &Scene| {
        let plan = scene.plan(&mut Memory::default());
        plan.actions.into_iter().find_map(|action| match action {
            Action::Number { sequence, .. } => Some(sequence),
            _ => None,
        })
    };
    assert_eq!(number(&scene), Some(1));
    let numbered = json!({"metadata": {"annotations": {"sluice.dev/sequence": "1"}}});
    scene.put(pod("s", "small", 0, numbered));
    assert_eq!(number(&scene), None);
}

#[test]
fn of_one_second_the_lowest_number_is_recorded_first() {
    let mut scene = Scene::with(&["n"], json!({"paused": true}));
    for (name, created) in [("a", 0), ("b", 0), ("c", 5)] {
        scene.put(pod(name, "small", created, json!({})));
    }
    scene.settle();
    let numbers = |scene: &Scene| {
        let plan = scene.plan(&mut Memory::default());
        let number = |action| match action {
            Action::Number { pod, .. } => Some(pod.name),
            _ => None,
        };
        plan.actions.into_iter().filter_map(number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&scene), ["a", "c"]);
    let numbered = json!({"metadata": {"annotations": {"sluice.dev/sequence": "1"}}});
    scene.put(pod("a", "small", 0, numbered));
    assert_eq!(numbers(&scene), ["b", "c"]);
}
