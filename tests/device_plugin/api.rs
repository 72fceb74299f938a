//! Cluster side: as much of an API server as the agent talks to: one ledger and some pods, lists,
//! watches, and server-side apply to a status. The real one is used by the tests on a cluster.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use axum::{Json, Router};
use futures::StreamExt as _;
use serde_json::{Value, json};
use sluice::api::GpuNodeStatus;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;
use tower::ServiceExt as _;

use super::kubelet::within;

/// Name of the node and of its ledger.
pub(crate) const NODE: &str = "n1";

#[derive(Default)]
struct Objects {
    version: u64,
    ledger: Option<Value>,
    pods: Vec<Value>,
    applied: u32,
}

/// The API server.
#[derive(Clone)]
pub(crate) struct Api {
    objects: Arc<Mutex<Objects>>,
    ledger_events: broadcast::Sender<Value>,
    pod_events: broadcast::Sender<Value>,
}

impl Api {
    pub(crate) fn new() -> Self {
        Self {
            objects: Arc::default(),
            ledger_events: broadcast::Sender::new(256),
            pod_events: broadcast::Sender::new(256),
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        let router = Router::new()
            .route("/api/v1/pods", get(pods))
            .route("/apis/sluice.dev/v1alpha1/gpunodes", get(ledgers))
            .route("/apis/sluice.dev/v1alpha1/gpunodes/{name}/status", patch(apply))
            .with_state(self.clone());
        let service =
            router.map_request(|request: http::Request<kube::client::Body>| request.map(Body::new));
        kube::Client::new(service, "default")
    }

    fn change<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        let version = objects.version.to_string();
        let result = change(&mut objects);
        if let Some(ledger) = &mut objects.ledger {
            ledger["metadata"]["resourceVersion"] = json!(version);
            let event = json!({ "type": "MODIFIED", "object": ledger });
            let _ = self.ledger_events.send(event);
        }
        result
    }

    /// Creates the ledger, as the controller does.
    pub(crate) fn create_ledger(&self, status: &Value) {
        self.change(|objects| {
            objects.ledger = Some(json!({
                "apiVersion": "sluice.dev/v1alpha1",
                "kind": "GpuNode",
                "metadata": { "name": NODE, "uid": "ledger", "resourceVersion": "1" },
                "spec": { "pool": "default", "nodeUid": "node" },
                "status": status,
            }));
        });
    }

    /// Changes what the controller owns.
    pub(crate) fn decide(&self, field: &str, value: Value) {
        self.change(|objects| {
            objects.ledger.as_mut().expect("a ledger")["status"][field] = value;
        });
    }

    /// The ledger's status now.
    pub(crate) fn status(&self) -> GpuNodeStatus {
        let objects = self.objects.lock().unwrap();
        let status = objects.ledger.as_ref().map(|ledger| ledger["status"].clone());
        status.map(|status| serde_json::from_value(status).unwrap()).unwrap_or_default()
    }

    /// How often the agent has written.
    pub(crate) fn applied(&self) -> u32 {
        self.objects.lock().unwrap().applied
    }

    /// Waits until the ledger's status is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&GpuNodeStatus) -> bool) -> GpuNodeStatus {
        let mut events = self.ledger_events.subscribe();
        within(async {
            loop {
                let status = self.status();
                if wanted(&status) {
                    return status;
                }
                let _ = events.recv().await;
            }
        })
        .await
    }

    /// A pod is bound to the node, or changes.
    pub(crate) fn pod(&self, name: &str, uid: &str, phase: &str) {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "ns", "uid": uid, "resourceVersion": "1" },
            "spec": { "nodeName": NODE, "containers": [] },
            "status": { "phase": phase },
        });
        let mut objects = self.objects.lock().unwrap();
        objects.pods.retain(|known| known["metadata"]["name"] != name);
        objects.pods.push(pod.clone());
        let _ = self.pod_events.send(json!({ "type": "MODIFIED", "object": pod }));
    }

    /// A pod is gone.
    pub(crate) fn delete_pod(&self, name: &str) {
        let mut objects = self.objects.lock().unwrap();
        let at = objects.pods.iter().position(|pod| pod["metadata"]["name"] == name).unwrap();
        let pod = objects.pods.remove(at);
        let _ = self.pod_events.send(json!({ "type": "DELETED", "object": pod }));
    }
}

/// Whether a list is wanted or a watch, of what matches the selector.
fn is_watch(RawQuery(query): RawQuery, selector: &str) -> bool {
    let query = query.unwrap_or_default();
    let selector = format!("fieldSelector={}", selector.replace('=', "%3D"));
    assert!(query.split('&').any(|part| part == selector), "{query}");
    query.split('&').any(|part| part == "watch=true")
}

/// A watch answers with everything that happens from now on; the agent lists before it.
fn watch(events: &broadcast::Sender<Value>) -> Response {
    let lines = BroadcastStream::new(events.subscribe()).map(|event| {
        let mut line = event.expect("the watcher keeps up").to_string();
        line.push('\n');
        Ok::<_, Infallible>(Bytes::from(line))
    });
    Body::from_stream(lines).into_response()
}

async fn ledgers(State(api): State<Api>, query: RawQuery) -> Response {
    let watching = is_watch(query, &format!("metadata.name={NODE}"));
    let objects = api.objects.lock().unwrap();
    if watching {
        return watch(&api.ledger_events);
    }
    let items: Vec<&Value> = objects.ledger.iter().collect();
    Json(json!({
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "GpuNodeList",
        "metadata": { "resourceVersion": objects.version.to_string() },
        "items": items,
    }))
    .into_response()
}

async fn pods(State(api): State<Api>, query: RawQuery) -> Response {
    let watching = is_watch(query, &format!("spec.nodeName={NODE}"));
    let objects = api.objects.lock().unwrap();
    if watching {
        return watch(&api.pod_events);
    }
    Json(json!({
        "apiVersion": "v1",
        "kind": "PodList",
        "metadata": { "resourceVersion": objects.version.to_string() },
        "items": objects.pods,
    }))
    .into_response()
}

async fn apply(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    assert_eq!(headers["content-type"], "application/apply-patch+yaml");
    // JSON is YAML, and what the client sends.
    let body: Value = serde_json::from_slice(&body).unwrap();
    let query = query.unwrap_or_default();
    for part in ["force=true", "fieldManager=sluice-agent"] {
        assert!(query.split('&').any(|found| found == part), "{query}");
    }
    assert_eq!((name.as_str(), &body["metadata"]["name"]), (NODE, &json!(NODE)));
    assert_eq!(body["kind"], "GpuNode");
    let fields = body["status"].as_object().expect("a status");
    let owned: Vec<&String> = fields.keys().collect();
    assert_eq!(owned, ["agentSeen", "gpus", "released"], "what the agent owns and nothing else");
    api.change(|objects| {
        objects.applied += 1;
        let Some(ledger) = &mut objects.ledger else {
            return StatusCode::NOT_FOUND.into_response();
        };
        for (field, value) in fields {
            ledger["status"][field] = value.clone();
        }
        Json(ledger.clone()).into_response()
    })
}
