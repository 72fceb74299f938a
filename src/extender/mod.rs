//! Cluster side: kube-scheduler's extender, which lets a pod start only where GPUs are reserved
//! for it.
//!
//! Every replica answers the kube-scheduler beside it, the leader or not: `filter` from the
//! ledgers that it keeps in memory, `bind` by a conditional write of the ledger followed by the
//! Binding. Nothing here decides who gets GPUs.
//!
//! A logical refusal is status 200 with `Error`, because kube-scheduler shows that text and drops
//! the body of any other status; what is no request at all is a 4xx. One request that panics fails
//! alone.

mod bind;
mod calls;
mod claim;
pub mod filter;
pub mod promise;
pub mod wire;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

pub use self::bind::BindError;
use self::bind::Binder;
use self::calls::Calls;
use self::claim::Claims;
use self::filter::{Home, Ledgers};
use self::wire::{BindArgs, BindResult, FilterArgs, FilterResult, Pod, PreemptResult};
use crate::api::GpuNode;
use crate::clock::{self, Clock, to_millis};
use crate::metrics::{Metrics, RequestLabel};
use crate::policy::Millis;

/// Time limits of the extender.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long `filter` waits for the ledger to show a reservation that the pod says it has: the
    /// pod and the ledger come by two watches, and either may be ahead. kube-scheduler places one
    /// pod at a time, so this holds up all others.
    pub filter_wait: Duration,
    /// How fresh the pod's word must be for that: an old one is not about to come true.
    pub filter_fresh: Millis,
    /// One call to the API server.
    pub call: Duration,
    /// The whole of a `bind`; below the `httpTimeout` of kube-scheduler, so that it hears an answer.
    pub bind: Duration,
    /// The largest request. 5,000 names of nodes and a large pod are under 2 MiB.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            filter_wait: Duration::from_secs(1),
            filter_fresh: Millis::from_secs(5),
            call: Duration::from_secs(2),
            bind: Duration::from_millis(4_500),
            body_bytes: 4 << 20,
        }
    }
}

/// What the extender works with.
pub struct Extender {
    memory: Memory,
    changed: watch::Receiver<u64>,
    binder: Binder<Memory>,
    clock: Clock,
    metrics: Metrics,
    limits: Limits,
}

/// What a replica has in memory: the ledgers, and the nodes that they are of.
#[derive(Clone)]
struct Memory {
    ledgers: Store<GpuNode>,
    nodes: Store<Node>,
}

impl Memory {
    /// Whether both were read once.
    fn is_read(&self) -> bool {
        self.ledgers.wait_until_ready().now_or_never().is_some()
            && self.nodes.wait_until_ready().now_or_never().is_some()
    }
}

impl Ledgers for Memory {
    fn get(&self, node: &str) -> Option<Arc<GpuNode>> {
        self.ledgers.get(&ObjectRef::new(node))
    }

    fn all(&self) -> Vec<Arc<GpuNode>> {
        self.ledgers.state()
    }

    fn node_uid(&self, node: &str) -> Option<String> {
        self.nodes.get(&ObjectRef::new(node))?.metadata.uid.clone()
    }
}

impl Extender {
    /// An extender that answers from `ledgers` and `nodes`. `changed` must change after either does.
    pub fn new(
        client: Client,
        ledgers: Store<GpuNode>,
        nodes: Store<Node>,
        changed: watch::Receiver<u64>,
        clock: Clock,
        metrics: Metrics,
        limits: Limits,
    ) -> Self {
        let memory = Memory { ledgers, nodes };
        let calls = Calls::new(client, metrics.clone(), limits.call);
        let claims = Claims::new(calls.clone(), memory.clone(), clock.clone(), metrics.clone());
        let binder = Binder { calls, claims };
        Self { memory, changed, binder, clock, metrics, limits }
    }

    /// The endpoints that kube-scheduler calls.
    pub fn router(self) -> Router {
        let (limit, metrics) = (self.limits.body_bytes, self.metrics.clone());
        let routes = Router::new()
            .route("/filter", post(filter))
            .route("/bind", post(bind))
            .route("/preempt", post(preempt))
            .layer(DefaultBodyLimit::max(limit))
            .with_state(Arc::new(self));
        guard(routes, metrics)
    }

    /// Which of the offered nodes can take the pod.
    async fn filter(&self, args: &FilterArgs, pod: &Pod) -> Result<FilterResult, FilterError> {
        let uid = &pod.metadata.uid;
        let home = self.home(pod).await?;
        let result = filter::answer(&self.memory, &home, pod, args);
        let passed = result.node_names.as_ref().map_or(0, Vec::len);
        tracing::debug!(pod = pod.metadata.name, uid, ?home, passed, "filtered");
        Ok(result)
    }

    /// Finds the pod's GPUs, and waits a little for them where the pod was just told that it has
    /// some.
    async fn home(&self, pod: &Pod) -> Result<Home, FilterError> {
        let until = clock::instant() + self.limits.filter_wait;
        let mut changed = self.changed.clone();
        let mut waited = false;
        loop {
            changed.borrow_and_update();
            let ready = self.memory.is_read();
            let home = filter::home(&self.memory, &pod.metadata.uid, self.clock.now());
            let promised = || self.just_admitted(pod) || filter::gate_has_gone(&self.memory, pod);
            // A node made anew may be known later than its ledger.
            let late = ready && matches!(home, Home::Nowhere | Home::Replaced(_)) && promised();
            if ready && !late {
                self.count_wait(waited, "seen");
                return Ok(home);
            }
            waited = true;
            match tokio::time::timeout_at(until, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(FilterError::Stopped),
                Err(_) if ready => {
                    self.count_wait(waited, "not_seen");
                    return Ok(home);
                }
                Err(_) => return Err(FilterError::NotReady),
            }
        }
    }

    /// Whether the pod says that GPUs were reserved for it a moment ago.
    fn just_admitted(&self, pod: &Pod) -> bool {
        let told = pod.admitted().filter(|condition| condition.status == "True");
        let since = told.and_then(|condition| condition.last_transition_time.as_ref());
        // Clocks of two replicas differ a little, so a time to come is as good as now.
        since.is_some_and(|since| {
            self.clock.now().since(to_millis(since.0)) <= self.limits.filter_fresh
        })
    }

    fn count_wait(&self, waited: bool, result: &'static str) {
        if waited {
            let label = RequestLabel { verb: "filter", result };
            self.metrics.extender_waits.get_or_create(&label).inc();
        }
    }

    fn count(&self, verb: &'static str, result: &'static str, start: tokio::time::Instant) {
        let label = RequestLabel { verb, result };
        let took = start.elapsed().as_secs_f64();
        self.metrics.extender_duration.get_or_create(&label).observe(took);
    }
}

/// Why a filter has no answer.
#[derive(Debug, thiserror::Error)]
enum FilterError {
    #[error("Sluice has not read the ledgers yet")]
    NotReady,
    #[error("Sluice is stopping")]
    Stopped,
    #[error("the request names no pod")]
    NoPod,
}

async fn filter(
    State(extender): State<Arc<Extender>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, BadRequest> {
    let start = clock::instant();
    let args: FilterArgs = parse(&headers, &body)?;
    let answer = match args.pod.as_ref().filter(|pod| !pod.metadata.uid.is_empty()) {
        Some(pod) => extender.filter(&args, pod).await,
        None => Err(FilterError::NoPod),
    };
    let result = answer
        .unwrap_or_else(|error| FilterResult { error: error.to_string(), ..Default::default() });
    let passed = result.node_names.as_ref().is_some_and(|names| !names.is_empty())
        || result.nodes.as_ref().is_some_and(|nodes| nodes.iter().next().is_some());
    let label = match (result.error.is_empty(), passed) {
        (false, _) => "error",
        (true, true) => "passed",
        (true, false) => "refused",
    };
    extender.count("filter", label, start);
    Ok(axum::Json(result).into_response())
}

async fn bind(
    State(extender): State<Arc<Extender>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, BadRequest> {
    let start = clock::instant();
    let args: BindArgs = parse(&headers, &body)?;
    let (namespace, pod) = (args.pod_namespace.clone(), args.pod_name.clone());
    let (uid, node) = (args.pod_uid.clone(), args.node.clone());
    // A task of its own: a scheduler that hangs up must not stop a binding half-way.
    let (binder, limit) = (extender.binder.clone(), extender.limits.bind);
    let task = tokio::spawn(async move { binder.bind(&args, limit).await });
    let result = match task.await {
        Ok(result) => result,
        Err(error) => {
            extender.metrics.extender_panics.inc();
            tracing::error!(pod, namespace, uid, node, %error, "bind panicked");
            Err(BindError::Unclear("a fault in the extender".to_owned()))
        }
    };
    let took_ms = start.elapsed().as_millis();
    let error = match result {
        Ok(()) => {
            tracing::info!(pod, namespace, uid, node, took_ms, "bound");
            extender.count("bind", "bound", start);
            String::new()
        }
        Err(error) => {
            tracing::warn!(pod, namespace, uid, node, took_ms, %error, "not bound");
            extender.count("bind", error.label(), start);
            error.to_string()
        }
    };
    Ok(axum::Json(BindResult { error }).into_response())
}

/// Sluice frees GPUs by waiting, never by evicting, so it offers nobody.
async fn preempt(
    State(extender): State<Arc<Extender>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, BadRequest> {
    let start = clock::instant();
    parse::<serde_json::Value>(&headers, &body)?;
    extender.count("preempt", "nobody", start);
    Ok(axum::Json(PreemptResult::default()).into_response())
}

/// What is no request.
struct BadRequest(StatusCode, String);

impl IntoResponse for BadRequest {
    fn into_response(self) -> Response {
        (self.0, axum::Json(json!({ "Error": self.1 }))).into_response()
    }
}

fn parse<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, BadRequest> {
    let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = content.and_then(|content| content.split(';').next()).map(str::trim);
    if media.is_none_or(|media| !media.eq_ignore_ascii_case("application/json")) {
        let text = "the content type must be application/json".to_owned();
        return Err(BadRequest(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    serde_json::from_slice(body)
        .map_err(|error| BadRequest(StatusCode::BAD_REQUEST, format!("cannot read: {error}")))
}

/// Makes a panic the failure of one request.
pub fn guard(routes: Router, metrics: Metrics) -> Router {
    routes.layer(from_fn_with_state(metrics, catch_panic))
}

async fn catch_panic(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if let Ok(response) = AssertUnwindSafe(next.run(request)).catch_unwind().await {
        return response;
    }
    metrics.extender_panics.inc();
    tracing::error!(path, "a request panicked");
    let text = "a fault in the extender".to_owned();
    BadRequest(StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}
