//! Cluster side: the extender's calls to the API server, each with a time limit, and what their
//! failures say about whether the call took effect.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::api::{ObjectMeta, PostParams};
use kube::core::Status;
use kube::{Api, Client};

use super::wire::BindArgs;
use crate::api::{GpuNode, names};
use crate::clock;
use crate::metrics::{CallErrorLabel, CallLabel, Metrics};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The object is not there.
    #[error("{0}")]
    NotFound(String),
    /// Somebody else wrote in between, or the object is another than was meant.
    #[error("{0}")]
    Conflict(String),
    /// The API server will not do it: it took no effect.
    #[error("{0}")]
    Refused(String),
    /// No clear answer: it may have taken effect, or may still.
    #[error("{0}")]
    Unclear(String),
}

impl CallError {
    fn of(error: &kube::Error) -> (Self, &'static str) {
        let kube::Error::Api(status) = error else {
            return (Self::Unclear(describe(error)), "transport");
        };
        let message = status.message.clone();
        if status.is_not_found() {
            (Self::NotFound(message), "not_found")
        } else if status.is_conflict() {
            (Self::Conflict(message), "conflict")
        } else if matches!(status.code, 400..=407 | 409..=428 | 430..=499) {
            (Self::Refused(message), "refused")
        } else {
            (Self::Unclear(message), "server")
        }
    }
}

/// An error with its causes: kube's own texts name the cause only below the first level.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// The API server, as the extender uses it.
#[derive(Clone)]
pub(super) struct Calls {
    client: Client,
    metrics: Metrics,
    limit: Duration,
}

impl Calls {
    pub(super) fn new(client: Client, metrics: Metrics, limit: Duration) -> Self {
        Self { client, metrics, limit }
    }

    /// Reads a ledger.
    pub(super) async fn ledger(&self, node: &str) -> Result<GpuNode, CallError> {
        let api = Api::<GpuNode>::all(self.client.clone());
        self.call("get", "gpunode", api.get(node)).await
    }

    /// Writes the status of a ledger, if it is still the one that was read.
    pub(super) async fn write_ledger(&self, ledger: &GpuNode) -> Result<GpuNode, CallError> {
        debug_assert!(ledger.metadata.resource_version.is_some(), "a write has a condition");
        let api = Api::<GpuNode>::all(self.client.clone());
        let name = ledger.metadata.name.as_deref().unwrap_or_default();
        let params =
            PostParams { field_manager: Some(names::MANAGER_CONTROLLER.into()), dry_run: false };
        let write = api.replace_status(name, &params, ledger);
        self.call("update", "gpunode", write).await
    }

    /// Reads a pod.
    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, CallError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        self.call("get", "pod", api.get(name)).await
    }

    /// Binds the pod of this UID, and no other of the same name.
    pub(super) async fn bind(&self, args: &BindArgs) -> Result<(), CallError> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &args.pod_namespace);
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(args.pod_name.clone()),
                namespace: Some(args.pod_namespace.clone()),
                uid: Some(args.pod_uid.clone()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(args.node.clone()),
                ..ObjectReference::default()
            },
        };
        let params = PostParams::default();
        let post = api.create_subresource("binding", &args.pod_name, &params, &binding);
        self.call::<Status>("bind", "pod", post).await.map(drop)
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        kind: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CallError> {
        let start = clock::instant();
        let result = tokio::time::timeout(self.limit, call).await;
        let took = start.elapsed().as_secs_f64();
        self.metrics.api_duration.get_or_create(&CallLabel { verb, kind }).observe(took);
        let (error, reason) = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => CallError::of(&error),
            Err(_) => {
                let text = format!("no answer to {verb} {kind} within {:?}", self.limit);
                (CallError::Unclear(text), "timeout")
            }
        };
        self.metrics.api_errors.get_or_create(&CallErrorLabel { verb, kind, reason }).inc();
        Err(error)
    }
}
