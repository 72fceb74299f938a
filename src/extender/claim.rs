//! Cluster side: writes into the ledger that a pod is about to be bound, or takes that back.
//!
//! kube-scheduler binds the pods of a wave at the same time, all to one node and so into one
//! ledger. Each write has to be made from the state that the one before it left, so claims of one
//! node queue up here: while one write is under way the others gather, and the next write makes
//! all of them at once. Without that they would lose against each other.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::bind::BindError;
use super::calls::{CallError, Calls};
use super::filter::{Ledgers, is_current};
use super::promise::{self, Claimed, May};
use crate::api::GpuNode;
use crate::clock::Clock;
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
            return made(claims, last.insert(written));
        }
        let mut pause = WRITE_PAUSE;
        let mut reason = CallError::Conflict(String::new());
        for _ in 0..WRITE_ATTEMPTS {
            reason = match self.try_claims(node, &mut claims).await {
                Ok(written) => return made(claims, last.insert(written)),
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
    async fn try_claims(&self, node: &str, claims: &mut Vec<Claim>) -> Result<GpuNode, CallError> {
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
            return Ok(ledger);
        }
        self.write(&self.claimed(&ledger, claims)).await
    }

    /// The ledger with every one of these claims made, if every one may be.
    fn all_promised(&self, ledger: &GpuNode, claims: &[Claim]) -> Option<GpuNode> {
        let mut all = claims.iter().map(|claim| self.may_claim(ledger, &claim.uid));
        all.all(|may| matches!(may, Ok(May::Claim))).then(|| self.claimed(ledger, claims))
    }

    fn claimed(&self, ledger: &GpuNode, claims: &[Claim]) -> GpuNode {
        let ours = |uid: &str| claims.iter().any(|claim| claim.uid == uid);
        promise::claimed(ledger, ours, self.clock.now())
    }

    fn may_claim(&self, ledger: &GpuNode, uid: &str) -> Result<May, BindError> {
        if !is_current(&self.ledgers, ledger) {
            return Err(BindError::Replaced(ledger.metadata.name.clone().unwrap_or_default()));
        }
        promise::may_claim(ledger, uid, self.clock.now())
    }

    /// Makes a claim anew that was found, before a Binding is posted by it.
    pub(super) async fn renew(&self, node: &str, uid: &str) -> Result<(), BindError> {
        let change = |ledger: &GpuNode| promise::renewed(ledger, uid, self.clock.now());
        match self.change(node, change).await {
            Ok(()) => Ok(()),
            Err(NotChanged::Judged(error)) => Err(error),
            Err(NotChanged::NoLedger) => Err(BindError::NoLedger(node.to_owned())),
            Err(NotChanged::Unwritten) => Err(BindError::Contended(node.to_owned())),
        }
    }

    /// Gives back the claim that was made then, and lets the reservation end now: the controller
    /// takes it back and others pass. Where this fails the claim stays, and the controller finds a
    /// claim without a binding.
    pub(super) async fn give_back(&self, node: &str, uid: &str, made: &Time) {
        let change = |ledger: &GpuNode| {
            Ok::<_, Infallible>(promise::given_back(ledger, uid, made, self.clock.now()))
        };
        if let Err(NotChanged::Unwritten) = self.change(node, change).await {
            tracing::warn!(node, uid, "a claim without a binding is left");
        }
    }

    /// Changes a ledger as it is now, if `change` finds anything to be changed.
    async fn change<E>(
        &self,
        node: &str,
        change: impl Fn(&GpuNode) -> Result<Option<GpuNode>, E>,
    ) -> Result<(), NotChanged<E>> {
        let queue = self.queue(node);
        let mut last = queue.writing.lock().await;
        let mut pause = WRITE_PAUSE;
        for _ in 0..WRITE_ATTEMPTS {
            match self.calls.ledger(node).await {
                Ok(ledger) => match change(&ledger).map_err(NotChanged::Judged)? {
                    None => return Ok(()),
                    Some(next) => {
                        if let Ok(written) = self.write(&next).await {
                            *last = Some(written);
                            return Ok(());
                        }
                    }
                },
                Err(CallError::NotFound(_)) => return Err(NotChanged::NoLedger),
                Err(error) => tracing::debug!(node, %error, "ledger not read"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(NotChanged::Unwritten)
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

/// Why a ledger was not changed.
enum NotChanged<E> {
    /// What it shows forbids it.
    Judged(E),
    /// There is none.
    NoLedger,
    /// It could not be written.
    Unwritten,
}

/// Answers claims that were written.
fn made(claims: Vec<Claim>, written: &GpuNode) {
    for claim in claims {
        let made = Claimed::made(written, &claim.uid);
        claim.answer(Ok(made));
    }
}

/// Resource versions of one object grow. A wrong guess here costs one more read.
fn version(ledger: &GpuNode) -> Option<u64> {
    ledger.metadata.resource_version.as_ref()?.parse().ok()
}
