//! Cluster side: binds a pod to the node where GPUs are reserved for it, once, whatever is lost on
//! the way.
//!
//! ```text
//! Reserved ──claim──► Bound ──Binding posted──► the pod has a node
//!     ▲                 │
//!     └──claim undone───┘  only where the Binding certainly took no effect and never will
//! ```
//!
//! The claim is a write under the ledger's resource version: either it or the write that takes the
//! reservation back wins, never both. It comes first, so that GPUs are never given to somebody
//! else while a Binding is under way. Where an answer is lost, the pod is read back; where that
//! leaves it open, the claim stays and the next call goes on from there.

use std::time::Duration;

use super::calls::{CallError, Calls};
use super::claim::{Claimed, Claims};
use super::filter::Ledgers;
use super::wire::BindArgs;

/// Tries to post a Binding whose answer was lost and which took no effect. More are the
/// scheduler's business, which comes again.
const POST_ATTEMPTS: u32 = 2;

/// Why a pod was not bound. What it says ends in the pod's events.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The request does not name a pod and a node.
    #[error("the request lacks {0}")]
    Incomplete(&'static str),
    /// There is no ledger for the node.
    #[error("node {0} belongs to no GpuPool")]
    NoLedger(String),
    /// The ledger is that of an earlier node of the name.
    #[error("the ledger of node {0} is that of an earlier node of its name")]
    Replaced(String),
    /// The ledger knows nothing of the pod.
    #[error("no GPUs of node {node} are reserved for pod {uid}")]
    NotReserved {
        /// The node.
        node: String,
        /// UID of the pod.
        uid: String,
    },
    /// The reservation has come to its end, or is about to.
    #[error("the reservation on node {node} ends at {at} and was not used in time")]
    Expired {
        /// The node.
        node: String,
        /// When it ends.
        at: jiff::Timestamp,
    },
    /// The reservation cannot be used.
    #[error("the reservation on node {node} cannot be used: {why}")]
    Unusable {
        /// The node.
        node: String,
        /// Why not.
        why: String,
    },
    /// Others kept writing the ledger.
    #[error("the ledger of node {0} could not be written: others kept changing it")]
    Contended(String),
    /// The API server refuses the ledger: a fault of Sluice or of its role.
    #[error("the ledger cannot be written: {0}")]
    Ledger(String),
    /// The pod is gone, or another pod has its name.
    #[error("pod {namespace}/{name} with UID {uid} is gone")]
    PodGone {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// The pod is on another node.
    #[error("the pod is bound to node {0} already")]
    Elsewhere(String),
    /// The API server refuses the Binding.
    #[error("the API server refuses the binding: {0}")]
    Refused(String),
    /// Whether the pod is bound is not known; trying again finds out.
    #[error("{0}; trying again is safe")]
    Unclear(String),
}

impl BindError {
    /// A fixed word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Incomplete(_) => "incomplete",
            Self::NoLedger(_) => "no_ledger",
            Self::Replaced(_) => "replaced",
            Self::NotReserved { .. } => "not_reserved",
            Self::Expired { .. } => "expired",
            Self::Unusable { .. } => "unusable",
            Self::Contended(_) => "contended",
            Self::Ledger(_) => "ledger",
            Self::PodGone { .. } => "pod_gone",
            Self::Elsewhere(_) => "elsewhere",
            Self::Refused(_) => "refused",
            Self::Unclear(_) => "unclear",
        }
    }
}

/// Binds pods.
#[derive(Clone)]
pub(super) struct Binder<L> {
    pub(super) calls: Calls,
    pub(super) claims: Claims<L>,
}

impl<L: Ledgers> Binder<L> {
    /// Binds a pod, or finds it bound, within `limit`.
    pub(super) async fn bind(&self, args: &BindArgs, limit: Duration) -> Result<(), BindError> {
        let claim_and_post = async {
            complete(args)?;
            let claimed = self.claims.claim(&args.node, &args.pod_uid).await?;
            Ok((claimed, self.post(args).await))
        };
        let Ok(result) = tokio::time::timeout(limit, claim_and_post).await else {
            // The Binding may still arrive, so the GPUs stay claimed.
            return Err(BindError::Unclear(format!("not bound within {limit:?}")));
        };
        let (claimed, posted) = result?;
        // To undo the claim is outside the limit: half undone would be worse than late.
        if posted.as_ref().is_err_and(|error| took_no_effect(claimed, error)) {
            self.claims.give_back(&args.node, &args.pod_uid).await;
        }
        posted
    }

    /// Posts the Binding, or finds the pod bound.
    async fn post(&self, args: &BindArgs) -> Result<(), BindError> {
        let mut attempt = 1;
        loop {
            let failure = match self.calls.bind(args).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            tracing::debug!(uid = args.pod_uid, error = %failure, "no binding, reading the pod");
            match self.is_bound(args, &failure).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // One of these calls may have bound the pod, and it may have run since.
                Err(gone @ BindError::PodGone { .. })
                    if attempt > 1 || matches!(failure, CallError::Unclear(_)) =>
                {
                    return Err(BindError::Unclear(format!("{gone}, and may have run")));
                }
                Err(error) => return Err(error),
            }
            match failure {
                CallError::Unclear(_) if attempt < POST_ATTEMPTS => attempt += 1,
                CallError::Unclear(text) => return Err(BindError::Unclear(text)),
                // Neither gone nor bound: the pod is being deleted, or a policy forbids it.
                CallError::NotFound(text)
                | CallError::Conflict(text)
                | CallError::Refused(text) => return Err(BindError::Refused(text)),
            }
        }
    }

    /// Whether the pod is bound to the node after all.
    async fn is_bound(&self, args: &BindArgs, failure: &CallError) -> Result<bool, BindError> {
        let gone = || BindError::PodGone {
            namespace: args.pod_namespace.clone(),
            name: args.pod_name.clone(),
            uid: args.pod_uid.clone(),
        };
        let pod = match self.calls.pod(&args.pod_namespace, &args.pod_name).await {
            Ok(pod) => pod,
            Err(CallError::NotFound(_)) => return Err(gone()),
            Err(error) => return Err(BindError::Unclear(format!("{failure}, then {error}"))),
        };
        if pod.metadata.uid.as_deref() != Some(&args.pod_uid) {
            return Err(gone());
        }
        match pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty()) {
            None => Ok(false),
            Some(node) if node == args.node => Ok(true),
            Some(node) => Err(BindError::Elsewhere(node)),
        }
    }
}

/// Whether an error proves that no Binding of the pod ever took effect, nor will. With an unclear
/// answer it may still arrive. A pod that is gone may have been bound by an earlier call, which
/// made the claim; its containers may live on after it was deleted by force, so that the claim
/// stays, and the controller asks the node.
fn took_no_effect(claimed: Claimed, error: &BindError) -> bool {
    match error {
        BindError::Unclear(_) => false,
        BindError::PodGone { .. } => claimed == Claimed::Made,
        _ => true,
    }
}

fn complete(args: &BindArgs) -> Result<(), BindError> {
    let fields = [
        ("PodName", &args.pod_name),
        ("PodNamespace", &args.pod_namespace),
        ("PodUID", &args.pod_uid),
        ("Node", &args.node),
    ];
    match fields.into_iter().find(|(_, value)| value.is_empty()) {
        Some((name, _)) => Err(BindError::Incomplete(name)),
        None => Ok(()),
    }
}
