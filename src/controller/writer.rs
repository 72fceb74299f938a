//! Cluster side: carries out one write at a time to each object, each within a time limit.
//!
//! The answers go back to the engine, which alone decides what follows from them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, EvictParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::{Api, Client, Resource as _};
use serde_json::{Value, json};

use crate::api::{GpuNode, GpuNodeStatus, GpuPool, GpuPoolStatus, PodRef, names};
use crate::metrics::{CallErrorLabel, CallLabel, Metrics};
use crate::policy::Millis;
use crate::translate::node::spare_patch;
use crate::translate::plan::{Action, Nomination};
use crate::translate::pod::Admitted;
use crate::translate::time::began;

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// What became of a write.
#[derive(Debug)]
pub(super) enum Answer {
    /// The ledger as written.
    Ledger(Box<GpuNode>),
    /// The ledger as created.
    Created(Box<GpuNode>),
    /// The pod as written.
    Pod(Box<Pod>),
    /// The node as written.
    Node(Box<Node>),
    /// Done, and nothing came back.
    Done,
    /// The object is gone or is another one now; the watch will say so.
    Gone,
    /// Somebody else wrote the ledger: as it was read for our write, and as it is now.
    Overtaken {
        /// The status that our write was made from.
        read: Box<GpuNodeStatus>,
        /// The ledger now.
        fresh: Box<GpuNode>,
    },
    /// It failed, and will be tried again.
    Failed(WriteError),
}

/// A write that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The API server, or the way to it.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// No answer in time.
    #[error("no answer within {CALL_LIMIT:?}")]
    TimedOut,
}

impl WriteError {
    /// A fixed word for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::TimedOut => "timeout",
            Self::Api(kube::Error::Api(status)) => match status.code {
                404 => "not_found",
                409 => "conflict",
                400..=499 => "refused",
                _ => "server",
            },
            Self::Api(_) => "transport",
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            Self::Api(_) | Self::TimedOut => None,
        }
    }
}

/// Writes to the API server.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    metrics: Metrics,
}

impl Writer {
    /// A writer.
    pub(super) fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics }
    }

    /// Carries out one action.
    pub(super) async fn carry_out(&self, action: Action, now: Millis) -> Answer {
        let done = match action {
            Action::CreateLedger(ledger) => self.create_ledger(&ledger).await,
            Action::DeleteLedger { name, uid } => self.delete_ledger(&name, uid).await,
            Action::WriteLedger { object, read, .. } => self.write_ledger(&object, read).await,
            Action::Tell { pod, admitted, flips, nominate, .. } => {
                let patch = tell_patch(&pod, &admitted, flips, &nominate, now);
                let params = PatchParams::apply(names::MANAGER_CONTROLLER);
                let (api, patch) = (self.pods(&pod), Patch::Strategic(patch));
                let call = api.patch_status(&pod.name, &params, &patch);
                self.call("patch", "pod", call).await.map(|pod| Answer::Pod(Box::new(pod)))
            }
            Action::Ungate { pod, sequence } => self.ungate(&pod, sequence).await,
            Action::Number { pod, sequence } => {
                let annotations = numbered(sequence);
                let patch = json!({"metadata": {"uid": pod.uid, "annotations": annotations}});
                self.patch_pod(&pod, Patch::Merge(patch)).await
            }
            Action::Spare { node, spare } => self.spare(&node, spare).await,
            Action::Evict { pod } => self.evict(&pod).await,
        };
        match done {
            Ok(answer) => answer,
            Err(error) if error.code() == Some(404) => Answer::Gone,
            Err(error) => Answer::Failed(error),
        }
    }

    /// Writes a pool's status. The leader is its only writer, so the last word counts.
    pub(super) async fn write_pool(&self, name: &str, status: &GpuPoolStatus) -> Answer {
        self.apply_pool(name, names::MANAGER_CONTROLLER, json!(status)).await
    }

    /// Sets the condition of a pool that cannot be read. What else is in its status is not known, so
    /// it is left to the manager who wrote it.
    pub(super) async fn tell_unreadable(&self, name: &str, ready: &Condition) -> Answer {
        let status = json!({"conditions": [ready]});
        self.apply_pool(name, names::MANAGER_UNREADABLE, status).await
    }

    async fn apply_pool(&self, name: &str, manager: &str, status: Value) -> Answer {
        let apply = json!({
            "apiVersion": GpuPool::api_version(&()),
            "kind": GpuPool::kind(&()),
            "metadata": {"name": name},
            "status": status,
        });
        // The answer is not read: the pool may be one that cannot be.
        let kind = ApiResource::erase::<GpuPool>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let params = PatchParams::apply(manager).force();
        let patch = Patch::Apply(apply);
        let call = api.patch_status(name, &params, &patch);
        match self.call("patch", "gpupool", call).await {
            Ok(_) => Answer::Done,
            Err(error) if error.code() == Some(404) => Answer::Gone,
            Err(error) => Answer::Failed(error),
        }
    }

    fn pods(&self, pod: &PodRef) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &pod.namespace)
    }

    fn ledgers(&self) -> Api<GpuNode> {
        Api::all(self.client.clone())
    }

    async fn create_ledger(&self, ledger: &GpuNode) -> Result<Answer, WriteError> {
        let (api, params) = (self.ledgers(), post_params());
        let call = api.create(&params, ledger);
        let created = self.call("create", "gpunode", call).await?;
        Ok(Answer::Created(Box::new(created)))
    }

    async fn delete_ledger(&self, name: &str, uid: String) -> Result<Answer, WriteError> {
        let precondition = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { preconditions: Some(precondition), ..DeleteParams::default() };
        let api = self.ledgers();
        self.call("delete", "gpunode", api.delete(name, &params)).await?;
        Ok(Answer::Done)
    }

    /// Writes the status under the object's resource version. Where somebody was faster, the
    /// ledger is read again for the engine to judge.
    async fn write_ledger(
        &self,
        ledger: &GpuNode,
        read: Box<GpuNodeStatus>,
    ) -> Result<Answer, WriteError> {
        let name = ledger.metadata.name.as_deref().unwrap_or_default();
        let (api, params) = (self.ledgers(), post_params());
        let call = api.replace_status(name, &params, ledger);
        match self.call("update", "gpunode", call).await {
            Ok(written) => Ok(Answer::Ledger(Box::new(written))),
            Err(error) if error.code() == Some(409) => {
                self.metrics.ledger_conflicts.inc();
                let fresh = self.call("get", "gpunode", api.get(name)).await?;
                Ok(Answer::Overtaken { read, fresh: Box::new(fresh) })
            }
            // Without an answer the write may have been made: only the ledger itself can tell.
            Err(error @ (WriteError::TimedOut | WriteError::Api(_))) if error.code().is_none() => {
                let fresh = self.call("get", "gpunode", api.get(name)).await?;
                Ok(Answer::Overtaken { read, fresh: Box::new(fresh) })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes our gate out of the list, whatever else is in it. The UID makes sure that it is still
    /// the same pod: it can never change.
    async fn ungate(&self, pod: &PodRef, sequence: Option<u64>) -> Result<Answer, WriteError> {
        let mut patch = json!({
            "metadata": {"uid": pod.uid},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names::GATE}]},
        });
        if let Some(sequence) = sequence {
            patch["metadata"]["annotations"] = numbered(sequence);
        }
        self.patch_pod(pod, Patch::Strategic(patch)).await
    }

    async fn patch_pod(&self, pod: &PodRef, patch: Patch<Value>) -> Result<Answer, WriteError> {
        let api = self.pods(pod);
        let params = PatchParams::apply(names::MANAGER_CONTROLLER);
        let call = api.patch(&pod.name, &params, &patch);
        let written = self.call("patch", "pod", call).await?;
        Ok(Answer::Pod(Box::new(written)))
    }

    async fn spare(&self, node: &str, spare: bool) -> Result<Answer, WriteError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams::apply(names::MANAGER_CONTROLLER);
        let patch = Patch::Merge(spare_patch(spare));
        let call = api.patch(node, &params, &patch);
        let written = self.call("patch", "node", call).await?;
        Ok(Answer::Node(Box::new(written)))
    }

    async fn evict(&self, pod: &PodRef) -> Result<Answer, WriteError> {
        let precondition = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
        let options = DeleteParams { preconditions: Some(precondition), ..DeleteParams::default() };
        let params =
            EvictParams { delete_options: Some(options), post_options: PostParams::default() };
        let api = self.pods(pod);
        self.call("evict", "pod", api.evict(&pod.name, &params)).await?;
        Ok(Answer::Done)
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        kind: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WriteError> {
        let start = crate::clock::instant();
        let result = match tokio::time::timeout(CALL_LIMIT, call).await {
            Ok(result) => result.map_err(WriteError::from),
            Err(_) => Err(WriteError::TimedOut),
        };
        let label = CallLabel { verb, kind };
        let seconds = start.elapsed().as_secs_f64();
        self.metrics.api_duration.get_or_create_owned(&label).observe(seconds);
        if let Err(error) = &result {
            let label = CallErrorLabel { verb, kind, reason: error.label() };
            self.metrics.api_errors.get_or_create_owned(&label).inc();
        }
        result
    }
}

fn numbered(sequence: u64) -> Value {
    json!({names::ANNOTATION_SEQUENCE: sequence.to_string()})
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(names::MANAGER_CONTROLLER.to_owned()), dry_run: false }
}

/// Conditions of a pod are merged by their type, so others' conditions stay. The UID makes sure
/// that it is still the same pod.
fn tell_patch(
    pod: &PodRef,
    admitted: &Admitted,
    flips: bool,
    nominate: &Nomination,
    now: Millis,
) -> Value {
    let mut condition = json!({
        "type": names::CONDITION_ADMITTED,
        "status": if admitted.yes { "True" } else { "False" },
        "reason": admitted.reason,
        "message": admitted.message,
    });
    if flips {
        condition["lastTransitionTime"] = json!(began(now));
    }
    let mut status = json!({"conditions": [condition]});
    match nominate {
        Nomination::Keep => {}
        Nomination::Clear => status["nominatedNodeName"] = Value::Null,
        Nomination::Node(node) => status["nominatedNodeName"] = json!(node),
    }
    json!({"metadata": {"uid": pod.uid}, "status": status})
}
