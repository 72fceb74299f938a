//! The claim that a binding rests on, against an API server that fails where it hurts: whatever is
//! lost on the way, it stays as long as a binding may count, and is given back where none can.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::{Value, json};
use sluice::api::ReservationState;
use sluice::extender::Limits;
use sluice::policy::Millis;
use support::apiserver::{ApiServer, Fault};
use support::ledger::{at, ledger, ledger_path, pod, pod_path, small, with};
use support::rig::{Rig, post, put, read, read_pod, reservation};
use tower::ServiceExt as _;

#[tokio::test]
async fn a_pod_deleted_after_a_binding_that_may_have_counted_keeps_its_gpus() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::LoseReply);
    let remove = |server: &ApiServer| server.remove(&pod_path("a"));
    rig.server.fault(&read_pod(), Fault::Before(Box::new(remove)));
    let error = rig.bind().await;
    assert!(error.contains("is gone, and may have run"), "{error}");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
    // Whoever finds the claim knows no more.
    assert_eq!(rig.bind().await, "pod team/pod-a with UID a is gone");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}

#[tokio::test]
async fn a_refusal_is_told_in_the_servers_words_and_ends_the_reservation() {
    let rig = Rig::reserved();
    rig.clock.advance(Millis::from_secs(3));
    let words = "ValidatingAdmissionPolicy 'no-bind' denied the request";
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", words));
    let error = rig.bind().await;
    assert_eq!(error, format!("the API server refuses the binding: {words}"));
    rig.expect_ledger(ReservationState::Reserved, false, 3, 3);
    assert_eq!(rig.bindings(), 1);

    // A pod on its way out is refused as well.
    let rig = Rig::reserved();
    rig.server.change(&pod_path("a"), |pod| pod["metadata"]["deletionTimestamp"] = json!(at(0)));
    assert!(rig.bind().await.contains("being deleted"));
    rig.expect_ledger(ReservationState::Reserved, false, 0, 3);
}

#[tokio::test(start_paused = true)]
async fn an_open_question_keeps_the_claim_and_the_next_call_answers_it() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Hang(false));
    rig.server.fault(&post(), Fault::Hang(false));
    let start = tokio::time::Instant::now();
    let error = rig.bind().await;
    assert!(error.ends_with("trying again is safe"), "{error}");
    assert!(start.elapsed() < Limits::default().bind + Limits::default().call);
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);

    // Nobody else can have the GPUs meanwhile, and the claim outlives the deadline.
    rig.clock.advance(Millis::from_secs(60));
    rig.server.forget_calls();
    assert_eq!(rig.bind().await, "");
    // The claim is found and made anew, since the next binding may be under way as long again.
    assert_eq!(rig.server.calls(), [read(), read_pod(), read(), put(), post()]);
    rig.expect_ledger(ReservationState::Bound, true, 10, 3);
    assert_eq!(rig.bound_at(), Some(at(60)));
}

#[tokio::test]
async fn a_refusal_proves_nothing_of_an_earlier_try() {
    // The first try may still be on its way when the second is refused.
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::LoseCall);
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", "not now"));
    let error = rig.bind().await;
    assert!(error.contains("an earlier try may yet count"), "{error}");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}

#[tokio::test(start_paused = true)]
async fn only_who_made_a_claim_gives_it_back() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Hang(false));
    rig.server.fault(&post(), Fault::Hang(false));
    assert!(rig.bind().await.contains("trying again is safe"));
    // What the first call posted may arrive after the second one is refused.
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", "not now"));
    assert!(rig.bind().await.contains("not now"));
    rig.expect_ledger(ReservationState::Bound, true, 10, 3);
}

#[tokio::test]
async fn a_claim_that_another_call_goes_on_from_is_not_given_back() {
    // Refused, but before the claim is given back another replica finds it and binds the pod.
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", "not now"));
    let other = Box::new(|server: &ApiServer| {
        server.change(&ledger_path("n1"), |ledger| {
            reservation(ledger, "a")["boundAt"] = json!(at(1));
        });
        server.change(&pod_path("a"), |pod| pod["spec"]["nodeName"] = json!("n1"));
    });
    rig.server.fault(&read(), Fault::Before(other));
    assert!(rig.bind().await.contains("not now"));
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
    assert_eq!(rig.bound_at(), Some(at(1)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_ended_meanwhile_is_not_made_anew() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Hang(false));
    rig.server.fault(&post(), Fault::Hang(false));
    assert!(rig.bind().await.contains("trying again is safe"));
    // The next call finds the claim; while it reads the pod, the controller takes it back.
    let taken_back = Box::new(|server: &ApiServer| {
        server.change(&ledger_path("n1"), |ledger| {
            let reservations = ledger["status"]["reservations"].as_array_mut().unwrap();
            reservations.retain(|reservation| reservation["uid"] != "a");
        });
    });
    rig.server.fault(&read_pod(), Fault::Before(taken_back));
    rig.server.forget_calls();
    assert_eq!(rig.bind().await, "no GPUs of node n1 are reserved for pod a");
    assert_eq!(rig.bindings(), 0);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found() {
    for (fault, revision) in [(Fault::LoseReply, 3), (Fault::LoseCall, 2)] {
        let rig = Rig::reserved();
        rig.server.fault(&put(), fault);
        assert_eq!(rig.bind().await, "");
        rig.expect_ledger(ReservationState::Bound, true, 10, revision);
        assert_eq!(rig.bindings(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_never_holds_still_is_given_up() {
    let rig = Rig::reserved();
    for _ in 0..7 {
        rig.server.fault(&put(), Fault::Refuse(409, "Conflict", "the object has been modified"));
    }
    let error = rig.bind().await;
    assert_eq!(error, "the ledger of node n1 could not be written: others kept changing it");
    assert_eq!(rig.server.count(&put()), 7);
    assert_eq!(rig.bindings(), 0);
    assert_eq!(rig.bind().await, "", "and later it is bound all the same");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_at_the_last_moment_is_still_undone() {
    let rig = Rig::reserved();
    rig.server.fault(&put(), Fault::Hang(false));
    rig.server.fault(&read(), Fault::Hang(false));
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", "no"));
    rig.server.fault(&read(), Fault::Before(Box::new(|_| {})));
    // Two calls without an answer leave half a second; undoing then meets a third.
    rig.server.fault(&read(), Fault::Hang(false));
    assert!(rig.bind().await.contains("refuses"));
    rig.expect_ledger(ReservationState::Reserved, false, 0, 3);
}

#[tokio::test]
async fn pods_bound_together_are_claimed_together() {
    let uids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let reservations = uids.iter().zip(0..).map(|(uid, index)| small(uid, index));
    let rig = Rig::new(&with(ledger("n1"), reservations.collect()));
    for uid in uids {
        rig.server.put(&pod_path(uid), pod(uid));
    }
    let (go_on, held) = tokio::sync::oneshot::channel();
    rig.server.fault(&put(), Fault::Hold(held));
    // One more than there are reservations, while the first write is under way.
    rig.server.put(&pod_path("x"), pod("x"));
    let calls = uids.iter().chain(&["x"]).map(|uid| {
        let body = json!({
            "PodName": format!("pod-{uid}"), "PodNamespace": "team", "PodUID": uid, "Node": "n1",
        });
        let request = Request::post("/bind").header("content-type", "application/json");
        tokio::spawn(
            rig.router.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()),
        )
    });
    let calls: Vec<_> = calls.collect();
    while rig.server.count(&put()) == 0 {
        tokio::task::yield_now().await;
    }
    go_on.send(()).unwrap();
    for (call, uid) in calls.into_iter().zip(uids.iter().chain(&["x"])) {
        let response = call.await.unwrap().unwrap();
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        if *uid == "x" {
            assert_eq!(answer["Error"], "no GPUs of node n1 are reserved for pod x");
        } else {
            assert_eq!(answer["Error"], "", "{uid}");
            assert_eq!(rig.server.get(&pod_path(uid)).unwrap()["spec"]["nodeName"], "n1");
        }
    }
    let status = rig.ledger().status.unwrap();
    assert!(status.reservations.iter().all(|r| r.state == ReservationState::Bound));
    assert_eq!(rig.server.count(&put()), 2, "the first, and all that came meanwhile");
    assert_eq!(status.revision, 3);
    assert_eq!(rig.metrics.ledger_conflicts.get(), 0);
}

#[tokio::test]
async fn an_undone_claim_leaves_what_others_wrote() {
    let rig = Rig::reserved();
    rig.server.fault(&post(), Fault::Refuse(403, "Forbidden", "no"));
    // While it is undone, the controller gives another pod a GPU.
    let other = Box::new(|server: &ApiServer| {
        server.change(&ledger_path("n1"), |ledger| {
            reservation(ledger, "b")["state"] = json!("Bound");
        });
    });
    rig.server.fault(&read_pod(), Fault::Before(other));
    assert!(rig.bind().await.contains("refuses"));
    rig.expect_ledger(ReservationState::Reserved, false, 0, 3);
    let state = rig.ledger().status.unwrap().reservations[1].state;
    assert_eq!(state, ReservationState::Bound);
}
