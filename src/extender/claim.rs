//! Cluster side: writes into the ledger that a pod is about to be bound, or takes that back.
//!
//! kube-scheduler binds the pods of a wave at the same time, all to one node and so into one
//! ledger. Each write has to be made from the state that the one before it left, so claims of one
//! node queue up here: while one write is under way the others gather, and the next write makes
//! all of them at once. Without that they would lose against each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::bind::BindError;
use super::calls::{CallError, Calls};
use super::filter::{Ledgers, Standing, find, is_current, standing};
use crate::api::{GpuHealth, GpuNode, GpuNodeStatus, Reservation, ReservationState};
use crate::clock::{Clock, to_timestamp};
use crate::metrics::Metrics;

/// Tries to write a ledger that others write too. A node agent and the controller each write a
/// few times a second at the most, so that many losses in a row mean something else.
const WRITE_ATTEMPTS: u32 = 6;
/// Pause after the first lost write; it doubles with each.
const WRITE_PAUSE: Duration = Duration::from_millis(5);
/// Queues that are kept without anybody in them. More nodes than that bind at the same time only
/// in a cluster where the map is the least of all costs.
const IDLE_QUEUES: usize = 1_024;

/// Makes claims and takes them back.
#[derive(Clone)]
pub(super) struct Claims<L> {
    calls: Calls,
    ledgers: L,
    clock: Clock,
    metrics: Metrics,
    queues: Arc<Mutex<BTreeMap<String, Arc<Queue>>>>,
}

/// The claims of one node.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Claim>>,
    /// Held while the ledger is written. What was written last, which memory may not show yet.
    writing: AsyncMutex<Option<GpuNode>>,
}

impl Queue {
    fn push(&self, claim: Claim) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
    }

    fn take(&self) -> Vec<Claim> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where a claim comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// This call made it.
    Made,
    /// It was there: an earlier call made it, or this one did and the answer was lost.
    Found,
}

/// One pod that waits for its claim.
struct Claim {
    uid: String,
    answer: oneshot::Sender<Result<Claimed, BindError>>,
}

impl Claim {
    fn answer(self, answer: Result<Claimed, BindError>) {
        // Whoever asked may have run out of time; the claim is in the ledger all the same.
        let _ = self.answer.send(answer);
    }
}

impl<L: Ledgers> Claims<L> {
    pub(super) fn new(calls: Calls, ledgers: L, clock: Clock, metrics: Metrics) -> Self {
        Self { calls, ledgers, clock, metrics, queues: Arc::default() }
    }

    /// Moves the reservation of a pod from Reserved to Bound, or finds it there.
    pub(super) async fn claim(&self, node: &str, uid: &str) -> Result<Claimed, BindError> {
        let queue = self.queue(node);
        let (answer, answered) = oneshot::channel();
        queue.push(Claim { uid: uid.to_owned(), answer });
        {
            let mut last = queue.writing.lock().await;
            let claims = queue.take();
            // Whoever wrote before us has taken our claim along, unless we came too late for it.
            if !claims.is_empty() {
                self.claim_all(node, claims, &mut last).await;
            }
        }
        let cut = || Err(BindError::Unclear("the write of the claim was cut short".to_owned()));
        answered.await.unwrap_or_else(|_| cut())
    }

    /// Makes all of these claims that may be made, and answers each.
    async fn claim_all(&self, node: &str, mut claims: Vec<Claim>, last: &mut Option<GpuNode>) {
        // The copy in memory is good for a first try: the condition of the write proves it
        // current. For a refusal, or to find a claim made, the ledger itself is read.
        if let Some(ledger) = self.newest(node, last.take())
            && let Some(next) = self.all_promised(&ledger, &claims)
            && let Ok(written) = self.write(&next).await
        {
            *last = Some(written);
            return claims.into_iter().for_each(|claim| claim.answer(Ok(Claimed::Made)));
        }
        let mut pause = WRITE_PAUSE;
        let mut reason = CallError::Conflict(String::new());
        for _ in 0..WRITE_ATTEMPTS {
            reason = match self.try_claims(node, &mut claims).await {
                Ok(written) => {
                    *last = written;
                    return claims.into_iter().for_each(|claim| claim.answer(Ok(Claimed::Made)));
                }
                Err(failure @ (CallError::NotFound(_) | CallError::Refused(_))) => {
                    reason = failure;
                    break;
                }
                Err(failure) => failure,
            };
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        for claim in claims {
            claim.answer(Err(match &reason {
                CallError::NotFound(_) => BindError::NoLedger(node.to_owned()),
                CallError::Refused(text) => BindError::Ledger(text.clone()),
                CallError::Conflict(_) => BindError::Contended(node.to_owned()),
                CallError::Unclear(text) => BindError::Unclear(text.clone()),
            }));
        }
    }

    /// Reads the ledger, answers the claims that are made or may not be, and makes the others.
    /// Leaves those in `claims` whose answer depends on the write.
    async fn try_claims(
        &self,
        node: &str,
        claims: &mut Vec<Claim>,
    ) -> Result<Option<GpuNode>, CallError> {
        let ledger = self.calls.ledger(node).await?;
        let mut promised = Vec::new();
        for claim in std::mem::take(claims) {
            match self.may_claim(&ledger, &claim.uid) {
                Ok(May::Claim) => promised.push(claim),
                Ok(May::Done) => claim.answer(Ok(Claimed::Found)),
                Err(error) => claim.answer(Err(error)),
            }
        }
        *claims = promised;
        if claims.is_empty() {
            return Ok(Some(ledger));
        }
        self.write(&self.claimed(&ledger, claims)).await.map(Some)
    }

    /// The ledger with every one of these claims made, if every one may be.
    fn all_promised(&self, ledger: &GpuNode, claims: &[Claim]) -> Option<GpuNode> {
        let mut all = claims.iter().map(|claim| self.may_claim(ledger, &claim.uid));
        all.all(|may| matches!(may, Ok(May::Claim))).then(|| self.claimed(ledger, claims))
    }

    fn claimed(&self, ledger: &GpuNode, claims: &[Claim]) -> GpuNode {
        let now = Time(to_timestamp(self.clock.now()));
        let ours = |uid: &str| claims.iter().any(|claim| claim.uid == uid);
        changed(ledger, ours, |reservation| {
            reservation.state = ReservationState::Bound;
            reservation.bound_at = Some(now.clone());
        })
    }

    /// Whether the reservation of a pod may be claimed.
    fn may_claim(&self, ledger: &GpuNode, uid: &str) -> Result<May, BindError> {
        let node = ledger.metadata.name.clone().unwrap_or_default();
        if !is_current(&self.ledgers, ledger) {
            return Err(BindError::Replaced(node));
        }
        let Some(reservation) = find(ledger, uid) else {
            return Err(BindError::NotReserved { node, uid: uid.to_owned() });
        };
        match standing(ledger, reservation, self.clock.now()) {
            Standing::Claimed => return Ok(May::Done),
            Standing::Promised => {}
            Standing::Expired(at) => return Err(BindError::Expired { node, at: at.0 }),
            Standing::Releasing => {
                let why = "its GPUs are being released".to_owned();
                return Err(BindError::Unusable { node, why });
            }
            Standing::Foreign => {
                return Err(BindError::NotReserved { node, uid: uid.to_owned() });
            }
        }
        match ledger.status.as_ref().and_then(|status| unfit(status, reservation)) {
            Some(why) => Err(BindError::Unusable { node, why }),
            None => Ok(May::Claim),
        }
    }

    /// Gives a claim back, and lets the reservation end now: the controller takes it back and
    /// others pass. Where this fails the claim stays, and the controller finds a claim without a
    /// binding.
    pub(super) async fn give_back(&self, node: &str, uid: &str) {
        let queue = self.queue(node);
        let mut last = queue.writing.lock().await;
        let mut pause = WRITE_PAUSE;
        for _ in 0..WRITE_ATTEMPTS {
            match self.calls.ledger(node).await {
                Ok(ledger) => {
                    let claimed = find(&ledger, uid)
                        .is_some_and(|reservation| reservation.state == ReservationState::Bound);
                    if !claimed {
                        return;
                    }
                    let now = Time(to_timestamp(self.clock.now()));
                    let next = changed(
                        &ledger,
                        |of| of == uid,
                        |reservation| {
                            reservation.state = ReservationState::Reserved;
                            reservation.bound_at = None;
                            reservation.deadline = Some(now.clone());
                        },
                    );
                    if let Ok(written) = self.write(&next).await {
                        *last = Some(written);
                        return;
                    }
                }
                Err(CallError::NotFound(_)) => return,
                Err(error) => tracing::debug!(node, %error, "ledger not read"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        tracing::warn!(node, uid, "a claim without a binding is left");
    }

    async fn write(&self, ledger: &GpuNode) -> Result<GpuNode, CallError> {
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

    /// The newer of what was written last and what memory shows.
    fn newest(&self, node: &str, written: Option<GpuNode>) -> Option<GpuNode> {
        let shown = self.ledgers.get(node).map(|ledger| (*ledger).clone());
        match (written, shown) {
            (Some(written), Some(shown)) if version(&written) > version(&shown) => Some(written),
            // What memory no longer shows was removed.
            (_, shown) => shown,
        }
    }

    fn queue(&self, node: &str) -> Arc<Queue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= IDLE_QUEUES {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        queues.entry(node.to_owned()).or_default().clone()
    }
}

/// What a claim needs.
#[derive(Clone, Copy)]
enum May {
    /// To be written.
    Claim,
    /// Nothing: it is made.
    Done,
}

/// Resource versions of one object grow. A wrong guess here costs one more read.
fn version(ledger: &GpuNode) -> Option<u64> {
    ledger.metadata.resource_version.as_ref()?.parse().ok()
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

/// A ledger with some reservations changed, as the next revision.
fn changed(
    ledger: &GpuNode,
    which: impl Fn(&str) -> bool,
    change: impl Fn(&mut Reservation),
) -> GpuNode {
    let mut ledger = ledger.clone();
    if let Some(status) = &mut ledger.status {
        status.reservations.iter_mut().filter(|of| which(&of.uid)).for_each(change);
        status.revision += 1;
    }
    ledger
}
