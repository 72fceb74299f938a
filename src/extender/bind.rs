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

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::calls::{CallError, Calls};
use super::filter::{Ledgers, Standing, find, standing};
use super::wire::BindArgs;
use crate::api::{GpuHealth, GpuNode, GpuNodeStatus, Reservation, ReservationState};
use crate::clock::{Clock, to_timestamp};
use crate::metrics::Metrics;

/// Tries to write a ledger that others write too. A node agent and the controller each write a
/// few times a second at the most, so that many losses in a row mean something else.
const WRITE_ATTEMPTS: u32 = 6;
/// Pause after the first lost write; it doubles with each.
const WRITE_PAUSE: Duration = Duration::from_millis(5);
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
    /// The ledger knows nothing of the pod.
    #[error("no GPUs of node {node} are reserved for pod {uid}")]
    NotReserved {
        /// The node.
        node: String,
        /// UID of the pod.
        uid: String,
    },
    /// The reservation came to its end.
    #[error("the reservation on node {node} was to be used by {at}")]
    Expired {
        /// The node.
        node: String,
        /// When it ended.
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
    pub(super) ledgers: L,
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
}

impl<L: Ledgers> Binder<L> {
    /// Binds a pod, or finds it bound, within `limit`.
    pub(super) async fn bind(&self, args: &BindArgs, limit: Duration) -> Result<(), BindError> {
        let claim_and_post = async {
            complete(args)?;
            self.claim(args).await?;
            Ok(self.post(args).await)
        };
        let posted = match tokio::time::timeout(limit, claim_and_post).await {
            Ok(claimed) => claimed?,
            Err(_) => Err(BindError::Unclear(format!("not bound within {limit:?}"))),
        };
        // With an unclear answer the Binding may still arrive, so the GPUs stay claimed. To undo
        // the claim is outside the limit: half undone would be worse than late.
        if posted.as_ref().is_err_and(|error| !matches!(error, BindError::Unclear(_))) {
            self.undo(args).await;
        }
        posted
    }

    /// Moves the reservation from Reserved to Bound, or finds it there.
    async fn claim(&self, args: &BindArgs) -> Result<(), BindError> {
        // The copy in memory is good for a first try: the condition of the write proves it
        // current. For a refusal, or to find the claim made, the ledger itself is read.
        if let Some(ledger) = self.ledgers.get(&args.node)
            && let Ok(Next::Write(ledger)) = self.claimed(&ledger, args)
            && self.write(&ledger).await.is_ok()
        {
            return Ok(());
        }
        let mut pause = WRITE_PAUSE;
        let mut lost = BindError::Contended(args.node.clone());
        for _ in 0..WRITE_ATTEMPTS {
            let failure = match self.calls.ledger(&args.node).await {
                Ok(ledger) => match self.claimed(&ledger, args)? {
                    Next::Done => return Ok(()),
                    Next::Write(ledger) => match self.write(&ledger).await {
                        Ok(()) => return Ok(()),
                        Err(failure) => failure,
                    },
                },
                Err(failure) => failure,
            };
            lost = match failure {
                CallError::NotFound(_) => return Err(BindError::NoLedger(args.node.clone())),
                CallError::Refused(text) => return Err(BindError::Ledger(text)),
                CallError::Conflict(_) => BindError::Contended(args.node.clone()),
                CallError::Unclear(text) => BindError::Unclear(text),
            };
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(lost)
    }

    async fn write(&self, ledger: &GpuNode) -> Result<(), CallError> {
        let result = self.calls.write_ledger(ledger).await;
        if let Err(error) = &result {
            let node = ledger.metadata.name.as_deref().unwrap_or_default();
            tracing::debug!(node, %error, "ledger not written");
            if matches!(error, CallError::Conflict(_)) {
                self.metrics.ledger_conflicts.inc();
            }
        }
        result
    }

    /// The ledger with the claim made, if it may be made.
    fn claimed(&self, ledger: &GpuNode, args: &BindArgs) -> Result<Next, BindError> {
        let node = args.node.clone();
        let Some(reservation) = find(ledger, &args.pod_uid) else {
            return Err(BindError::NotReserved { node, uid: args.pod_uid.clone() });
        };
        match standing(ledger, reservation, self.clock.now()) {
            Standing::Claimed => return Ok(Next::Done),
            Standing::Promised => {}
            Standing::Expired(at) => return Err(BindError::Expired { node, at: at.0 }),
            Standing::Releasing => {
                let why = "its GPUs are being released".to_owned();
                return Err(BindError::Unusable { node, why });
            }
            Standing::Foreign => {
                return Err(BindError::NotReserved { node, uid: args.pod_uid.clone() });
            }
        }
        if let Some(why) = ledger.status.as_ref().and_then(|status| unfit(status, reservation)) {
            return Err(BindError::Unusable { node, why });
        }
        let now = Time(to_timestamp(self.clock.now()));
        let ledger = changed(ledger, &args.pod_uid, |reservation| {
            reservation.state = ReservationState::Bound;
            reservation.bound_at = Some(now);
        });
        Ok(Next::Write(Box::new(ledger)))
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
            if self.is_bound(args, &failure).await? {
                return Ok(());
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

    /// Gives the claim back, and lets the reservation end now: the controller takes it back and
    /// others pass. Where this fails the claim stays, and the controller finds a claim without a
    /// binding.
    async fn undo(&self, args: &BindArgs) {
        let mut pause = WRITE_PAUSE;
        for _ in 0..WRITE_ATTEMPTS {
            match self.calls.ledger(&args.node).await {
                Ok(ledger) => {
                    let claimed = find(&ledger, &args.pod_uid)
                        .is_some_and(|reservation| reservation.state == ReservationState::Bound);
                    if !claimed {
                        return;
                    }
                    let now = Time(to_timestamp(self.clock.now()));
                    let ledger = changed(&ledger, &args.pod_uid, |reservation| {
                        reservation.state = ReservationState::Reserved;
                        reservation.bound_at = None;
                        reservation.deadline = Some(now);
                    });
                    if self.write(&ledger).await.is_ok() {
                        return;
                    }
                }
                Err(CallError::NotFound(_)) => return,
                Err(error) => tracing::debug!(node = args.node, %error, "ledger not read"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        tracing::warn!(node = args.node, uid = args.pod_uid, "a claim without a binding is left");
    }
}

/// What is to be done for a claim.
enum Next {
    /// Write this.
    Write(Box<GpuNode>),
    /// Nothing: it is made.
    Done,
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

/// Why GPUs that were fit when they were reserved are not now.
fn unfit(status: &GpuNodeStatus, reservation: &Reservation) -> Option<String> {
    for id in &reservation.gpus {
        match status.gpus.iter().find(|gpu| gpu.id == *id) {
            Some(gpu) if gpu.health == GpuHealth::Healthy => {}
            Some(gpu) => {
                let reason = gpu.reason.as_deref().unwrap_or("no reason given");
                return Some(format!("GPU {id} is unhealthy: {reason}"));
            }
            None => return Some(format!("GPU {id} is not on the node")),
        }
        let mut others = status.reservations.iter().filter(|other| other.uid != reservation.uid);
        if let Some(other) = others.find(|other| other.gpus.contains(id)) {
            return Some(format!("GPU {id} is held by {}/{}", other.namespace, other.name));
        }
    }
    reservation.gpus.is_empty().then(|| "it names no GPU".to_owned())
}

/// A ledger with one reservation changed, as the next revision.
fn changed(ledger: &GpuNode, uid: &str, change: impl FnOnce(&mut Reservation)) -> GpuNode {
    let mut ledger = ledger.clone();
    if let Some(status) = &mut ledger.status {
        let mut reservations = status.reservations.iter_mut();
        if let Some(reservation) = reservations.find(|reservation| reservation.uid == uid) {
            change(reservation);
            status.revision += 1;
        }
    }
    ledger
}
