//! The extender over HTTP: what it answers to kube-scheduler, and to what is no kube-scheduler.
#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used, reason = "a test says by failing what was not there")]

mod support;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sluice::api::{DrainStatus, GpuNode, NodePhase, PodRef, ReservationKind, ReservationState};
use sluice::clock::Clock;
use sluice::extender::{Extender, Limits, guard};
use sluice::metrics::Metrics;
use sluice::policy::Millis;
use support::apiserver::ApiServer;
use support::ledger::{at, clock, large, ledger, node, nodes, pod, small, with};
use tokio::sync::watch;
use tower::ServiceExt as _;

/// An extender and the strings by which a test moves it.
struct Rig {
    router: Router,
    server: ApiServer,
    writer: Writer<GpuNode>,
    nodes: Writer<Node>,
    changed: watch::Sender<u64>,
    clock: Clock,
}

impl Rig {
    fn new(ledgers: Vec<GpuNode>) -> Self {
        let mut rig = Self::unread();
        rig.show(&Event::Init);
        for ledger in ledgers {
            rig.show(&Event::InitApply(ledger));
        }
        rig.show(&Event::InitDone);
        rig
    }

    /// An extender that has not read its ledgers yet.
    fn unread() -> Self {
        let (server, clock) = (ApiServer::default(), clock());
        let (store, writer) = reflector::store();
        let (known, nodes) = nodes();
        let (changed, receiver) = watch::channel(0);
        let extender = Extender::new(
            server.client(),
            store,
            known,
            receiver,
            clock.clone(),
            Metrics::default(),
            Limits::default(),
        );
        Self { router: extender.router(), server, writer, nodes, changed, clock }
    }

    fn show(&mut self, event: &Event<GpuNode>) {
        self.writer.apply_watcher_event(event);
        self.changed.send_modify(|count| *count += 1);
    }

    async fn filter(&self, pod: &Value, nodes: &[&str]) -> Value {
        let request = json!({"Pod": pod, "Nodes": null, "NodeNames": nodes});
        let (code, answer) = post(&self.router, "/filter", &request).await;
        assert_eq!(code, StatusCode::OK, "{answer}");
        answer
    }
}

async fn post(router: &Router, path: &str, body: &Value) -> (StatusCode, Value) {
    send(router, path, "application/json", serde_json::to_vec(body).unwrap()).await
}

async fn send(router: &Router, path: &str, media: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", media).body(Body::from(body));
    let response = router.clone().oneshot(request.unwrap()).await.unwrap();
    let code = response.status();
    let bytes = to_bytes(response.into_body(), 64 << 20).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn told(uid: &str, status: &str, message: &str, since: u64) -> Value {
    let mut pod = pod(uid);
    pod["status"] = json!({"conditions": [{
        "type": "sluice.dev/Admitted", "status": status, "reason": "Any",
        "message": message, "lastTransitionTime": at(since),
    }]});
    pod
}

fn why<'a>(answer: &'a Value, node: &str) -> &'a str {
    answer["FailedAndUnresolvableNodes"][node].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_pod_passes_only_where_gpus_are_reserved_for_its_uid() {
    let rig = Rig::new(vec![ledger("n1"), with(ledger("n2"), vec![small("a", 3)])]);
    let answer = rig.filter(&pod("a"), &["n1", "n2", "n3"]).await;
    assert_eq!(answer["NodeNames"], json!(["n2"]));
    assert_eq!(answer["Error"], "");
    assert_eq!(why(&answer, "n1"), "GPUs are reserved for this pod on node n2");
    assert_eq!(why(&answer, "n3"), "node belongs to no GpuPool");

    // Another pod of the same name is another pod.
    let mut recreated = pod("a");
    recreated["metadata"]["uid"] = json!("b");
    let answer = rig.filter(&recreated, &["n1", "n2"]).await;
    assert_eq!(answer["NodeNames"], json!([]));
    assert_eq!(why(&answer, "n2"), "no GPUs are reserved for this pod");
    assert!(rig.server.calls().is_empty(), "a filter makes no call");
}

#[tokio::test]
async fn a_node_left_out_has_its_reason() {
    let mut draining = ledger("n1");
    let status = draining.status.as_mut().unwrap();
    status.phase = NodePhase::Draining;
    status.drain = Some(DrainStatus {
        pod: PodRef { namespace: "team".into(), name: "big".into(), uid: "l".into() },
        since: at(0),
        latest_end: Some(at(60)),
        blocked_by: vec![],
    });
    let mut held = with(ledger("n2"), vec![large("l2")]);
    held.status.as_mut().unwrap().phase = NodePhase::Exclusive;
    let rig = Rig::new(vec![draining, held, ledger("n3")]);

    let waiting = told("a", "False", "2nd of the smalls; 1 GPU is free", 0);
    let answer = rig.filter(&waiting, &["n1", "n2", "n3"]).await;
    assert_eq!(answer["NodeNames"], json!([]));
    assert_eq!(answer["FailedNodes"], json!({}), "evicting somebody never helps");
    let gate = why(&answer, "n1");
    assert!(gate.starts_with("held behind the gate for team/big, drained by 2026-"), "{gate}");
    assert_eq!(why(&answer, "n2"), "node is held whole by team/pod-l2");
    assert_eq!(why(&answer, "n3"), "not admitted: 2nd of the smalls; 1 GPU is free");
}

#[tokio::test]
async fn what_is_no_usable_reservation_does_not_pass() {
    for (kind, state, expected) in [
        (ReservationKind::Foreign, ReservationState::Bound, "no GPUs are reserved"),
        (ReservationKind::Direct, ReservationState::Releasing, "are being released"),
    ] {
        let mut reservation = small("a", 0);
        (reservation.kind, reservation.state) = (kind, state);
        let rig = Rig::new(vec![with(ledger("n1"), vec![reservation])]);
        let answer = rig.filter(&pod("a"), &["n1"]).await;
        assert_eq!(answer["NodeNames"], json!([]));
        assert!(why(&answer, "n1").contains(expected), "{answer}");
    }

    let rig = Rig::new(vec![with(ledger("n1"), vec![small("a", 0)])]);
    rig.clock.advance(Millis(6_999));
    assert_eq!(rig.filter(&pod("a"), &["n1"]).await["NodeNames"], json!(["n1"]));
    // So short before its end the controller may be taking it back already.
    rig.clock.advance(Millis(1));
    let answer = rig.filter(&pod("a"), &["n1"]).await;
    assert!(why(&answer, "n1").contains("was not used in time"), "{answer}");

    // Once it is bound, the reservation has no end of its own.
    let mut bound = small("a", 0);
    bound.state = ReservationState::Bound;
    let rig = Rig::new(vec![with(ledger("n1"), vec![bound])]);
    rig.clock.advance(Millis::from_secs(100));
    assert_eq!(rig.filter(&pod("a"), &["n1"]).await["NodeNames"], json!(["n1"]));
}

#[tokio::test]
async fn whole_nodes_are_answered_with_whole_nodes() {
    let rig = Rig::new(vec![ledger("n1"), with(ledger("n2"), vec![small("a", 3)])]);
    let node = |name: &str| json!({"metadata": {"name": name}, "spec": {"novel": [1]}});
    let request = json!({"Pod": pod("a"), "Nodes": {"items": [node("n1"), node("n2")]}});
    let (_, answer) = post(&rig.router, "/filter", &request).await;
    assert_eq!(answer["Nodes"], json!({"items": [node("n2")]}));
    assert_eq!(answer.get("NodeNames"), None);
}

#[tokio::test(start_paused = true)]
async fn a_filter_waits_for_the_ledger_that_the_pod_was_told_of() {
    let mut rig = Rig::new(vec![ledger("n1")]);
    let start = tokio::time::Instant::now();
    let router = rig.router.clone();
    let request = json!({"Pod": told("a", "True", "", 0), "NodeNames": ["n1"]});
    let asked = tokio::spawn(async move { post(&router, "/filter", &request).await.1 });
    tokio::task::yield_now().await;
    rig.show(&Event::Apply(ledger("n2")));
    tokio::task::yield_now().await;
    assert!(!asked.is_finished(), "another ledger is not what it waits for");
    rig.show(&Event::Apply(with(ledger("n1"), vec![small("a", 0)])));
    assert_eq!(asked.await.unwrap()["NodeNames"], json!(["n1"]));
    assert_eq!(start.elapsed().as_millis(), 0, "it was woken, it did not wait out its time");
}

#[tokio::test]
async fn a_ledger_says_nothing_of_another_node_of_its_name() {
    let mut rig = Rig::new(vec![with(ledger("n1"), vec![small("a", 0)]), ledger("n2")]);
    assert_eq!(rig.filter(&pod("a"), &["n1"]).await["NodeNames"], json!(["n1"]));
    let mut another = node("n1");
    another.metadata.uid = Some("another".to_owned());
    for event in [Event::Apply(another.clone()), Event::Delete(another)] {
        rig.nodes.apply_watcher_event(&event);
        let answer = rig.filter(&pod("a"), &["n1", "n2"]).await;
        assert_eq!(answer["NodeNames"], json!([]));
        assert!(why(&answer, "n1").contains("that of an earlier node"), "{answer}");
        assert!(why(&answer, "n2").contains("an earlier node of the name n1"), "{answer}");
    }
    rig.nodes.apply_watcher_event(&Event::Apply(node("n1")));
    assert_eq!(rig.filter(&pod("a"), &["n1"]).await["NodeNames"], json!(["n1"]));
}

/// Its gate goes as soon as the ledger has its reservation; words follow.
#[tokio::test(start_paused = true)]
async fn a_large_that_lost_its_gate_is_waited_for_before_it_was_told() {
    let mut draining = ledger("n1");
    let status = draining.status.as_mut().unwrap();
    status.phase = NodePhase::Draining;
    status.drain = Some(DrainStatus {
        pod: PodRef { namespace: "team".into(), name: "pod-l".into(), uid: "l".into() },
        since: at(0),
        latest_end: None,
        blocked_by: vec![],
    });
    let mut rig = Rig::new(vec![draining.clone()]);
    let mut ungated = told("l", "False", "Node n1 is being emptied for this pod.", 0);
    ungated["status"]["nominatedNodeName"] = json!("n1");
    let start = tokio::time::Instant::now();
    let (router, request) = (rig.router.clone(), json!({"Pod": ungated, "NodeNames": ["n1"]}));
    let asked = tokio::spawn(async move { post(&router, "/filter", &request).await.1 });
    tokio::task::yield_now().await;
    rig.show(&Event::Apply(with(ledger("n1"), vec![large("l")])));
    assert_eq!(asked.await.unwrap()["NodeNames"], json!(["n1"]));

    // One that is not nominated was ungated for an earlier reservation, and waits like others.
    rig.show(&Event::Apply(draining));
    let waiting = told("l", "False", "Node n1 is being emptied for this pod.", 0);
    assert_eq!(rig.filter(&waiting, &["n1"]).await["NodeNames"], json!([]));
    assert_eq!(start.elapsed().as_millis(), 0, "nobody waited out a time");
}

#[tokio::test(start_paused = true)]
async fn a_filter_waits_no_longer_than_it_may() {
    let rig = Rig::new(vec![ledger("n1")]);
    let start = tokio::time::Instant::now();
    let answer = rig.filter(&told("a", "True", "", 0), &["n1"]).await;
    assert_eq!(answer["NodeNames"], json!([]));
    assert_eq!(start.elapsed().as_millis(), 1_000);

    // An old word is not waited for, nor is none.
    rig.clock.advance(Millis::from_secs(6));
    rig.filter(&told("a", "True", "", 0), &["n1"]).await;
    rig.filter(&told("a", "False", "later", 5), &["n1"]).await;
    rig.filter(&pod("a"), &["n1"]).await;
    assert_eq!(start.elapsed().as_millis(), 1_000);

    // Nor is it where the answer is known.
    let rig = Rig::new(vec![ledger("n1"), with(ledger("n2"), vec![small("a", 0)])]);
    rig.filter(&told("a", "True", "", 0), &["n1"]).await;
    assert_eq!(start.elapsed().as_millis(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn before_the_ledgers_are_read_there_is_no_answer() {
    let rig = Rig::unread();
    let answer = rig.filter(&pod("a"), &["n1"]).await;
    assert_eq!(answer["Error"], "Sluice has not read the ledgers yet");
    assert_eq!(answer["NodeNames"], Value::Null);
}

#[tokio::test]
async fn nobody_is_offered_for_eviction() {
    let rig = Rig::new(vec![ledger("n1")]);
    let request = json!({
        "Pod": pod("a"),
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "b"}], "NumPDBViolations": 0}},
    });
    let (code, answer) = post(&rig.router, "/preempt", &request).await;
    assert_eq!((code, answer), (StatusCode::OK, json!({"NodeNameToMetaVictims": {}})));
}

#[tokio::test]
async fn what_is_no_request_fails_alone() {
    let rig = Rig::new(vec![with(ledger("n1"), vec![small("a", 0)])]);
    for body in [
        json!({}),
        json!({"pod": null}),
        json!({"Pod": null, "Nodes": null, "NodeNames": null}),
        json!({"Pod": {"metadata": {}}, "NodeNames": ["n1"]}),
    ] {
        let (code, answer) = post(&rig.router, "/filter", &body).await;
        assert_eq!(code, StatusCode::OK);
        assert_eq!(answer["Error"], "the request names no pod", "{body}");
    }
    for nodes in [json!({}), json!({"Nodes": null, "NodeNames": null}), json!({"NodeNames": []})] {
        let mut body = nodes;
        body["Pod"] = pod("a");
        let (_, answer) = post(&rig.router, "/filter", &body).await;
        assert_eq!(answer["NodeNames"], json!([]), "no node was offered");
        assert_eq!(answer["Error"], "");
    }
    let torn = b"{\"Pod\":".to_vec();
    let odd = b"{\"Pod\":{\"metadata\":7},\"PodName\":7}".to_vec();
    let huge = vec![b' '; 5 << 20];
    for path in ["/filter", "/bind", "/preempt"] {
        for (media, body, expected) in [
            ("application/json", &torn, StatusCode::BAD_REQUEST),
            ("application/json", &huge, StatusCode::PAYLOAD_TOO_LARGE),
            ("text/plain", &torn, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ] {
            let (code, _) = send(&rig.router, path, media, body.clone()).await;
            assert_eq!(code, expected, "{path} {media}");
        }
    }
    for path in ["/filter", "/bind"] {
        let (code, answer) = send(&rig.router, path, "application/json", odd.clone()).await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{path}");
        assert!(answer["Error"].as_str().unwrap().contains("invalid type"), "{answer}");
    }
    let (code, answer) = post(&rig.router, "/bind", &json!({"PodName": "a", "Node": "n1"})).await;
    assert_eq!(code, StatusCode::OK);
    assert_eq!(answer["Error"], "the request lacks PodNamespace");
    assert!(rig.server.calls().is_empty());

    let answer = rig.filter(&pod("a"), &["n1"]).await;
    assert_eq!(answer["NodeNames"], json!(["n1"]), "the extender is as it was");
}

#[tokio::test]
async fn a_panic_fails_one_request() {
    let metrics = Metrics::default();
    let handlers = Router::new()
        .route("/bad", get(async || -> &'static str { panic!("a fault put in by the test") }))
        .route("/good", get(async || "good"));
    let router = guard(handlers, metrics.clone());
    let get = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    assert_eq!(get("/bad").await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(get("/good").await, StatusCode::OK);
    assert_eq!(metrics.extender_panics.get(), 1);
}

mod properties {
    //! For any ledgers and any offer: a subset, in order, with a reason for each of the rest.
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sluice::extender::filter::{Ledgers, answer, home};
    use sluice::extender::wire::FilterArgs;

    use super::*;
    use crate::support::ledger::START;

    struct Ledgered(Vec<Arc<GpuNode>>);

    impl Ledgers for Ledgered {
        fn get(&self, node: &str) -> Option<Arc<GpuNode>> {
            let named = |ledger: &&Arc<GpuNode>| ledger.metadata.name.as_deref() == Some(node);
            self.0.iter().find(named).cloned()
        }

        fn all(&self) -> Vec<Arc<GpuNode>> {
            self.0.clone()
        }

        /// Node `n2` is another one than its ledger is of.
        fn node_uid(&self, node: &str) -> Option<String> {
            (node != "n2").then(|| format!("uid-of-{node}"))
        }
    }

    /// A ledger with or without a reservation for pod "a", in any state, in time or late.
    fn any_ledger(index: usize) -> impl Strategy<Value = GpuNode> {
        let states = prop_oneof![
            Just(ReservationState::Reserved),
            Just(ReservationState::Bound),
            Just(ReservationState::Running),
            Just(ReservationState::Releasing),
        ];
        let kinds = prop_oneof![
            Just(ReservationKind::Direct),
            Just(ReservationKind::Wave),
            Just(ReservationKind::Foreign)
        ];
        let phases = prop_oneof![
            Just(NodePhase::Open),
            Just(NodePhase::Draining),
            Just(NodePhase::Exclusive),
            Just(NodePhase::Wave)
        ];
        let reservation = (any::<bool>(), states, kinds, 0..3u64, any::<bool>());
        (phases, vec(reservation, 0..3)).prop_map(move |(phase, reservations)| {
            let mut ledger = ledger(&format!("n{index}"));
            let record = ledger.status.as_mut().unwrap();
            record.phase = phase;
            for (ours, state, kind, deadline, releasing) in reservations {
                let mut reservation = small(if ours { "a" } else { "b" }, 0);
                (reservation.state, reservation.kind) = (state, kind);
                reservation.deadline = (deadline > 0).then(|| at(deadline - 1));
                if releasing {
                    record.releasing.push(reservation.uid.clone());
                }
                record.reservations.push(reservation);
            }
            ledger
        })
    }

    proptest! {
        #[test]
        fn an_answer_is_a_subset_with_reasons(
            ledgers in (any_ledger(0), any_ledger(1), any_ledger(2)),
            offered in vec("n[0-4]", 0..8),
            whole in vec("n[0-4]", 0..4),
            with_nodes in any::<bool>(),
        ) {
            let ledgers = Ledgered([ledgers.0, ledgers.1, ledgers.2].map(Arc::new).to_vec());
            let nodes = whole.iter().map(|name| json!({"metadata": {"name": name}}));
            let nodes = json!({"items": nodes.collect::<Vec<_>>()});
            let request = json!({
                "Pod": pod("a"), "NodeNames": offered,
                "Nodes": if with_nodes { nodes } else { Value::Null },
            });
            let args: FilterArgs = serde_json::from_value(request).unwrap();
            let home = home(&ledgers, "a", START);
            let result = answer(&ledgers, &home, args.pod.as_ref().unwrap(), &args);

            let passed = result.node_names.unwrap();
            let refused = &result.failed_and_unresolvable_nodes;
            let kept: Vec<_> =
                offered.iter().filter(|name| passed.contains(name)).cloned().collect();
            prop_assert_eq!(&kept, &passed, "a subset, in the order of the offer");
            for name in &offered {
                prop_assert!(passed.contains(name) != refused.contains_key(name));
            }
            for (name, reason) in refused {
                prop_assert!(offered.contains(name) || (with_nodes && whole.contains(name)));
                prop_assert!(!reason.is_empty());
            }
            for node in result.nodes.iter().flat_map(sluice::extender::wire::NodeList::iter) {
                let name = node["metadata"]["name"].as_str().unwrap();
                prop_assert!(whole.iter().any(|offered| offered == name));
                prop_assert!(!refused.contains_key(name));
            }
            prop_assert_eq!(result.nodes.is_some(), with_nodes);
            // Two nodes never both pass: one pod has one home.
            prop_assert!(passed.windows(2).all(|pair| pair[0] == pair[1]));
            for name in &passed {
                let ledger = ledgers.get(name).unwrap();
                let status = ledger.status.as_ref().unwrap();
                prop_assert!(status.reservations.iter().any(|r| r.uid == "a"
                    && r.kind != ReservationKind::Foreign
                    && r.state != ReservationState::Releasing));
                prop_assert!(!status.releasing.contains(&"a".to_owned()));
                prop_assert!(name != "n2", "its ledger is that of an earlier node");
            }
        }
    }
}
