//! `bind` against an API server: a pod is bound once, and only to GPUs that the ledger holds for it.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sluice::api::{GpuHealth, ReservationState};
use sluice::policy::Millis;
use support::apiserver::{ApiServer, Fault};
use support::ledger::{at, large, ledger, ledger_path, node, pod_path, small, with};
use support::rig::{Rig, bind_request, post, put, read};
use tower::ServiceExt as _;

#[tokio::test]
async fn the_ledger_is_claimed_before_the_binding_is_posted() {
    let rig = Rig::reserved();
    rig.clock.advance(Millis::from_secs(2));
    assert_eq!(rig.bind().await, "");
    assert_eq!(rig.server.calls(), [put(), post()], "memory spares a read");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
    assert_eq!(rig.ledger().status.unwrap().reservations[0].bound_at, Some(at(2)));
    assert_eq!(rig.ledger().status.unwrap().reservations[1], small("b", 4), "not touched");
    assert_eq!(rig.node_of_pod(), "n1");
}

#[tokio::test]
async fn binding_again_is_a_success_and_changes_nothing() {
    let rig = Rig::reserved();
    assert_eq!(rig.bind().await, "");
    let (ledger, pod) = (rig.ledger(), rig.server.get(&pod_path("a")));
    // Long after: what is bound has no deadline.
    rig.clock.advance(Millis::from_secs(100));
    assert_eq!(rig.bind().await, "");
    assert_eq!((rig.ledger(), rig.server.get(&pod_path("a"))), (ledger, pod));
}

#[tokio::test]
async fn a_ledger_that_moved_on_is_read_again() {
    let rig = Rig::reserved();
    // A node agent reported something; memory does not show it yet.
    rig.server.change(&ledger_path("n1"), |ledger| ledger["status"]["released"] = json!(["x"]));
    assert_eq!(rig.bind().await, "");
    assert_eq!(rig.server.calls(), [put(), read(), put(), post()]);
    assert_eq!(rig.ledger().status.unwrap().released, ["x"], "the agent's word stays");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
    assert_eq!(rig.metrics.ledger_conflicts.get(), 1);
}

#[tokio::test]
async fn taking_back_and_binding_have_one_winner() {
    // The controller takes the reservation back just before our write arrives.
    let rig = Rig::reserved();
    let taken_back = Box::new(|server: &ApiServer| {
        server.change(&ledger_path("n1"), |ledger| {
            let reservations = ledger["status"]["reservations"].as_array_mut().unwrap();
            reservations.retain(|reservation| reservation["uid"] != "a");
        });
    });
    rig.server.fault(&put(), Fault::Before(taken_back));
    assert_eq!(rig.bind().await, "no GPUs of node n1 are reserved for pod a");
    assert_eq!(rig.bindings(), 0);
    assert_eq!(rig.node_of_pod(), Value::Null);
    assert_eq!(rig.ledger().status.unwrap().revision, 1);
}

#[tokio::test]
async fn what_is_no_usable_reservation_is_not_bound() {
    let unreserved = ledger("n1");
    let mut leaving = with(ledger("n1"), vec![small("a", 3)]);
    leaving.status.as_mut().unwrap().releasing.push("a".to_owned());
    let shared = with(ledger("n1"), vec![small("a", 3), small("b", 3)]);
    let none = with(
        ledger("n1"),
        vec![{
            let mut none = small("a", 3);
            none.gpus.clear();
            none
        }],
    );
    let gone = with(ledger("n1"), vec![small("a", 9)]);
    for (ledger, expected) in [
        (unreserved, "no GPUs of node n1 are reserved for pod a"),
        (leaving, "its GPUs are being released"),
        (shared, "GPU gpu-3 is held by team/pod-b"),
        (none, "it names no GPU"),
        (gone, "GPU gpu-9 is not on the node"),
    ] {
        let rig = Rig::new(&ledger);
        let error = rig.bind().await;
        assert!(error.contains(expected), "{error}");
        assert_eq!(rig.server.calls(), [read()], "memory alone refuses nobody");
        assert_eq!(rig.ledger().status, ledger.status);
    }

    let rig = Rig::reserved();
    // Shortly before the end, when the controller may be taking it back.
    rig.clock.advance(Millis::from_secs(7));
    assert!(rig.bind().await.contains("was not used in time"));
    assert_eq!(rig.server.calls(), [read()]);

    let rig = Rig::reserved();
    rig.server.remove(&ledger_path("n1"));
    assert_eq!(rig.bind().await, "node n1 belongs to no GpuPool");
    assert_eq!(rig.bindings(), 0);
}

#[tokio::test]
async fn nothing_is_bound_by_the_ledger_of_an_earlier_node() {
    let mut rig = Rig::reserved();
    let mut another = node("n1");
    another.metadata.uid = Some("another".to_owned());
    rig.nodes.apply_watcher_event(&Event::Apply(another));
    let error = rig.bind().await;
    assert_eq!(error, "the ledger of node n1 is that of an earlier node of its name");
    assert_eq!((rig.server.calls(), rig.bindings()), (vec![read()], 0));
    rig.expect_ledger(ReservationState::Reserved, false, 10, 1);
}

#[tokio::test]
async fn a_large_does_not_start_on_a_node_that_lost_a_gpu_meanwhile() {
    let mut bad = with(ledger("n1"), vec![large("a")]);
    let gpu = &mut bad.status.as_mut().unwrap().gpus[7];
    (gpu.health, gpu.reason) = (GpuHealth::Unhealthy, Some("XID 79".to_owned()));
    let rig = Rig::new(&bad);
    let error = rig.bind().await;
    assert!(error.contains("GPU gpu-7 is unhealthy: XID 79"), "{error}");
    assert_eq!(rig.server.calls(), [read()]);
}

#[tokio::test]
async fn a_pod_deleted_in_between_gives_its_gpus_back() {
    let rig = Rig::reserved();
    rig.clock.advance(Millis::from_secs(1));
    rig.server.remove(&pod_path("a"));
    assert_eq!(rig.bind().await, "pod team/pod-a with UID a is gone");
    rig.expect_ledger(ReservationState::Reserved, false, 1, 3);
}

#[tokio::test]
async fn another_pod_of_the_same_name_is_not_bound() {
    let rig = Rig::reserved();
    rig.server.change(&pod_path("a"), |pod| pod["metadata"]["uid"] = json!("c"));
    assert_eq!(rig.bind().await, "pod team/pod-a with UID a is gone");
    assert_eq!(rig.node_of_pod(), Value::Null);
    rig.expect_ledger(ReservationState::Reserved, false, 0, 3);
    // And the other has no reservation of its own.
    assert_eq!(rig.bind_as("c").await, "no GPUs of node n1 are reserved for pod c");
}

#[tokio::test]
async fn a_pod_on_another_node_is_left_there() {
    let rig = Rig::reserved();
    rig.server.change(&pod_path("a"), |pod| pod["spec"]["nodeName"] = json!("n2"));
    assert_eq!(rig.bind().await, "the pod is bound to node n2 already");
    assert_eq!(rig.node_of_pod(), "n2");
    rig.expect_ledger(ReservationState::Reserved, false, 0, 3);
}

#[tokio::test]
async fn a_binding_whose_answer_is_lost_counts() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::LoseReply);
    assert_eq!(rig.bind().await, "");
    assert_eq!(rig.bindings(), 1, "it was read back, not posted again");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}

#[tokio::test]
async fn a_binding_that_never_arrived_is_posted_again() {
    for fault in [Fault::LoseCall, Fault::Refuse(500, "InternalError", "etcd changes its leader")] {
        let rig = Rig::reserved();
        rig.server.fault(&post(), fault);
        assert_eq!(rig.bind().await, "");
        assert_eq!(rig.bindings(), 2);
        assert_eq!(rig.node_of_pod(), "n1");
        rig.expect_ledger(ReservationState::Bound, true, 10, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_without_an_answer_counts_if_it_was_made() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Hang(true));
    assert_eq!(rig.bind().await, "");
    assert_eq!(rig.bindings(), 1);
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_stop_a_binding_half_way() {
    let rig = Rig::reserved();
    let (go_on, held) = tokio::sync::oneshot::channel();
    rig.server.fault(&put(), Fault::Hold(held));
    let call = tokio::spawn(rig.router.clone().oneshot(bind_request("a")));
    while rig.server.count(&put()) == 0 {
        tokio::task::yield_now().await;
    }
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    go_on.send(()).unwrap();
    while rig.node_of_pod().is_null() {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.bind().await, "");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}
