//! An extender that binds pod "a" to node `n1`, and the API server that it talks to.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::{self, store::Writer};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use sluice::api::{GpuNode, ReservationState};
use sluice::clock::Clock;
use sluice::extender::{Extender, Limits};
use sluice::metrics::Metrics;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::apiserver::ApiServer;
use super::ledger::{at, clock, ledger, ledger_path, nodes, pod, pod_path, small, with};

/// An extender whose memory of the ledgers is what the server had at its start.
pub struct Rig {
    pub router: Router,
    pub server: ApiServer,
    pub clock: Clock,
    pub metrics: Metrics,
    _writer: Writer<GpuNode>,
    pub nodes: Writer<Node>,
}

impl Rig {
    /// Node `n1` with this ledger, and pod "a".
    pub fn new(ledger: &GpuNode) -> Self {
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
    pub fn reserved() -> Self {
        Self::new(&with(ledger("n1"), vec![small("a", 3), small("b", 4)]))
    }

    /// Binds pod "a", and gives the error.
    pub async fn bind(&self) -> String {
        self.bind_as("a").await
    }

    /// Binds the pod of this UID, and gives the error.
    pub async fn bind_as(&self, uid: &str) -> String {
        let response = self.router.clone().oneshot(bind_request(uid)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        answer["Error"].as_str().unwrap().to_owned()
    }

    /// The ledger as it is.
    pub fn ledger(&self) -> GpuNode {
        serde_json::from_value(self.server.get(&ledger_path("n1")).unwrap()).unwrap()
    }

    /// State, boundAt and deadline of pod "a" in the ledger, and the ledger's revision.
    #[track_caller]
    pub fn expect_ledger(&self, state: ReservationState, bound: bool, ends_s: u64, revision: i64) {
        let status = self.ledger().status.unwrap();
        let reservation = status.reservations.iter().find(|r| r.uid == "a").unwrap();
        assert_eq!(reservation.state, state);
        assert_eq!(reservation.bound_at.is_some(), bound);
        assert_eq!(reservation.deadline, Some(at(ends_s)));
        assert_eq!(status.revision, revision);
    }

    /// When the claim of pod "a" was made.
    pub fn bound_at(&self) -> Option<Time> {
        let status = self.ledger().status.unwrap();
        status.reservations.into_iter().find(|r| r.uid == "a").unwrap().bound_at
    }

    /// The node that pod "a" is bound to.
    pub fn node_of_pod(&self) -> Value {
        self.server.get(&pod_path("a")).unwrap()["spec"]["nodeName"].clone()
    }

    /// How often a Binding was posted.
    pub fn bindings(&self) -> usize {
        self.server.count(&post())
    }
}

/// A request to bind the pod of this UID.
pub fn bind_request(uid: &str) -> Request<Body> {
    let body = json!({
        "PodName": "pod-a", "PodNamespace": "team", "PodUID": uid, "Node": "n1",
    });
    Request::post("/bind")
        .header("content-type", "application/json; charset=utf-8")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// The call that posts the Binding.
pub fn post() -> String {
    format!("POST {}/binding", pod_path("a"))
}

/// The call that reads the pod.
pub fn read_pod() -> String {
    format!("GET {}", pod_path("a"))
}

/// The call that writes the ledger.
pub fn put() -> String {
    format!("PUT {}/status", ledger_path("n1"))
}

/// The call that reads the ledger.
pub fn read() -> String {
    format!("GET {}", ledger_path("n1"))
}

/// A pod's reservation in a ledger.
pub fn reservation<'a>(object: &'a mut Value, uid: &str) -> &'a mut Value {
    let reservations = object["status"]["reservations"].as_array_mut().unwrap();
    reservations.iter_mut().find(|reservation| reservation["uid"] == uid).unwrap()
}
