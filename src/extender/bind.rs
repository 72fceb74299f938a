//! Cluster side: binds a pod to the node where GPUs are reserved for it, once, whatever is lost on
//! the way.
//!
//! ```text
//! Reserved ──claim──► Bound ──Binding posted──► the pod has a node
//!     ▲                 │
//!     └──claim undone───┘  only by whoever made it, where no Binding took effect or ever will
//! ```
//!
//! The claim is a write under the ledger's resource version: either it or the write that takes the
//! reservation back wins, never both. It comes first, so that GPUs are never given to somebody
//! else while a Binding is under way. Where an answer is lost, the pod is read back; where that
//! leaves it open, the claim stays and the next call goes on from there: it makes the claim anew
//! before it posts, so that the claim always outlasts what was posted by it.

use std::time::Duration;

use tokio::time::Instant;

use super::calls::{CallError, Calls};
use super::claim::Claims;
use super::filter::Ledgers;
use super::promise::{Claimed, Failure, Next, Seen, after_post, is_bound, to_give_back};
use super::wire::BindArgs;
use crate::clock;

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
        let until = clock::instant() + limit;
        let claim_and_post = async {
            complete(args)?;
            let claimed = self.claims.claim(&args.node, &args.pod_uid).await?;
            if claimed == Claimed::Found {
                if is_bound(args, self.read(args).await)? {
                    return Ok((claimed, Ok(())));
                }
                self.claims.renew(&args.node, &args.pod_uid).await?;
            }
            Ok((claimed, self.post(args, until).await))
        };
        let late = || BindError::Unclear(format!("not bound within {limit:?}"));
        // The Binding may still arrive, so the GPUs stay claimed.
        let result = tokio::time::timeout_at(until, claim_and_post).await;
        let (claimed, posted) = result.unwrap_or_else(|_| Err(late()))?;
        // To undo the claim is outside the limit: half undone would be worse than late.
        if let Err(error) = &posted
            && let Some(made) = to_give_back(claimed, error)
        {
            self.claims.give_back(&args.node, &args.pod_uid, &made).await;
        }
        posted
    }

    /// Posts the Binding, or finds the pod bound. Nothing is posted after `until`: a process that
    /// was stopped in its tracks meanwhile may find its claim taken for over.
    async fn post(&self, args: &BindArgs, until: Instant) -> Result<(), BindError> {
        let mut attempt = 1;
        loop {
            if clock::instant() >= until {
                return Err(BindError::Unclear("no time is left to post a binding".to_owned()));
            }
            let failure = match self.calls.bind(args).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            tracing::debug!(uid = args.pod_uid, error = %failure, "no binding, reading the pod");
            let seen = match self.read(args).await {
                Seen::Unread(why) => Seen::Unread(format!("{failure}, then {why}")),
                seen => seen,
            };
            let failure = match failure {
                CallError::Unclear(text) => Failure::Unclear(text),
                CallError::NotFound(text)
                | CallError::Conflict(text)
                | CallError::Refused(text) => Failure::Definite(text),
            };
            match after_post(args, attempt, failure, seen) {
                Next::Bound => return Ok(()),
                Next::Again => attempt += 1,
                Next::Fail(error) => return Err(error),
            }
        }
    }

    /// Where the pod is.
    async fn read(&self, args: &BindArgs) -> Seen {
        let pod = match self.calls.pod(&args.pod_namespace, &args.pod_name).await {
            Ok(pod) => pod,
            Err(CallError::NotFound(_)) => return Seen::Gone,
            Err(error) => return Seen::Unread(error.to_string()),
        };
        if pod.metadata.uid.as_deref() != Some(&args.pod_uid) {
            return Seen::Gone;
        }
        let node = pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
        node.map_or(Seen::Unbound, Seen::On)
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
