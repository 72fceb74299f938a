//! `bind` against an API server that fails where it hurts: whatever is lost on the way, a pod is
//! bound once, and only to GPUs that the ledger holds for it.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sluice::api::{GpuHealth, GpuNode, ReservationState};
use sluice::clock::Clock;
use sluice::extender::{Extender, Limits};
use sluice::metrics::Metrics;
use sluice::policy::Millis;
use support::apiserver::{ApiServer, Fault};
use support::ledger::{
    at, clock, large, ledger, ledger_path, node, nodes, pod, pod_path, small, with,
};
use tokio::sync::watch;
use tower::ServiceExt as _;

/// An extender whose memory of the ledgers is what the server had at its start.
struct Rig {
    router: Router,
    server: ApiServer,
    clock: Clock,
    metrics: Metrics,
    _writer: Writer<GpuNode>,
    nodes: Writer<Node>,
}

impl Rig {
    /// Node `n1` with this ledger, and pod "a".
    fn new(ledger: &GpuNode) -> Self {
        let (server, clock, metrics) = (ApiServer::default(), clock(), Metrics::default());
        let stored = server.put(&ledger_path("n1"), ledger);
        server.put(&pod_path("a"), pod("a"));
        let (store, mut writer) = reflector::store();
        writer.apply_watcher_event(&Event::Init);
        writer.apply_watcher_event(&Event::InitApply(serde_json::from_value(stored).unwrap()));
        writer.apply_watcher_event(&Event::InitDone);
        let (known, nodes) = nodes();
        let (_, changed) = watch::channel(0);
        let extender = Extender::new(
            server.client(),
            store,
            known,
            changed,
            clock.clone(),
            metrics.clone(),
            Limits::default(),
        );
        Self { router: extender.router(), server, clock, metrics, _writer: writer, nodes }
    }

    /// The same with a small reservation for pod "a".
    fn reserved() -> Self {
        Self::new(&with(ledger("n1"), vec![small("a", 3), small("b", 4)]))
    }

    async fn bind(&self) -> String {
        self.bind_as("a").await
    }

    async fn bind_as(&self, uid: &str) -> String {
        let response = self.router.clone().oneshot(bind_request(uid)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer["Error"].as_str().unwrap().to_owned()
    }

    fn ledger(&self) -> GpuNode {
        serde_json::from_value(self.server.get(&ledger_path("n1")).unwrap()).unwrap()
    }

    /// State, boundAt and deadline of pod "a" in the ledger, and the ledger's revision.
    #[track_caller]
    fn expect_ledger(&self, state: ReservationState, bound: bool, ends_s: u64, revision: i64) {
        let status = self.ledger().status.unwrap();
        let reservation = status.reservations.iter().find(|r| r.uid == "a").unwrap();
        assert_eq!(reservation.state, state);
        assert_eq!(reservation.bound_at.is_some(), bound);
        assert_eq!(reservation.deadline, Some(at(ends_s)));
        assert_eq!(status.revision, revision);
    }

    fn node_of_pod(&self) -> Value {
        self.server.get(&pod_path("a")).unwrap()["spec"]["nodeName"].clone()
    }

    fn bindings(&self) -> usize {
        self.server.count(&post())
    }
}

fn bind_request(uid: &str) -> Request<Body> {
    let body = json!({
        "PodName": "pod-a", "PodNamespace": "team", "PodUID": uid, "Node": "n1",
    });
    Request::post("/bind")
        .header("content-type", "application/json; charset=utf-8")
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn post() -> String {
    format!("POST {}/binding", pod_path("a"))
}

fn read_pod() -> String {
    format!("GET {}", pod_path("a"))
}

fn put() -> String {
    format!("PUT {}/status", ledger_path("n1"))
}

fn read() -> String {
    format!("GET {}", ledger_path("n1"))
}

fn reservation<'a>(object: &'a mut Value, uid: &str) -> &'a mut Value {
    let reservations = object["status"]["reservations"].as_array_mut().unwrap();
    reservations.iter_mut().find(|reservation| reservation["uid"] == uid).unwrap()
}

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
    assert_eq!(rig.server.calls(), [read(), post()], "the claim is found, not made again");
    rig.expect_ledger(ReservationState::Bound, true, 10, 2);
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found() {
    for fault in [Fault::LoseReply, Fault::LoseCall] {
        let rig = Rig::reserved();
        rig.server.fault(&put(), fault);
        assert_eq!(rig.bind().await, "");
        rig.expect_ledger(ReservationState::Bound, true, 10, 2);
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

#[tokio::test(start_paused = true)]
async fn a_refusal_at_the_last_moment_is_still_undone() {
    let rig = Rig::reserved();
    rig.server.fault(&put(), Fault::Hang(true));
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
