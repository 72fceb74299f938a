//! Cluster side: the calls under way: one at a time to each object, those that something waits for
//! before the others, and pauses after failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::warn;

use super::retries::Retries;
use super::writer::Answer;
use crate::clock::instant;
use crate::policy::Millis;
use crate::translate::plan::Target;

/// Calls under way at a time that something waits for.
const URGENT_MAX: usize = 24;
/// Calls under way at a time that nothing waits for.
const REST_MAX: usize = 8;
/// Time between two writes of a ledger for which nothing waits.
const COALESCE: Duration = Duration::from_millis(250);

/// What a call is for.
pub(super) struct Call {
    /// The object that it writes to.
    pub(super) target: Target,
    /// The pool on whose behalf.
    pub(super) pool: String,
    urgent: bool,
}

/// The calls under way. Dropping them breaks them off.
#[derive(Default)]
pub(super) struct Calls {
    set: JoinSet<(Call, Answer)>,
    /// Objects that are being written, and whether something waits for it.
    under_way: BTreeMap<Target, bool>,
    retries: Retries,
    /// When ledgers were last written.
    written_at: BTreeMap<Target, Instant>,
}

impl Calls {
    /// Objects that are being written.
    pub(super) fn busy(&self) -> BTreeSet<Target> {
        self.under_way.keys().cloned().collect()
    }

    /// Objects that are being written, and those that are left alone after a failed write: nothing
    /// need be worked out for them now.
    pub(super) fn off_limits(&self, now: Millis) -> BTreeSet<Target> {
        let mut targets = self.busy();
        targets.extend(self.retries.resting(now).cloned());
        targets
    }

    /// Whether a call may start now.
    pub(super) fn may_start(&self, target: &Target, urgent: bool, now: Millis) -> bool {
        let most = if urgent { URGENT_MAX } else { REST_MAX };
        let as_urgent = self.under_way.values().filter(|&&other| other == urgent).count();
        // What nobody waits for is written together.
        let quiet = || self.written_at.get(target).is_none_or(|at| at.elapsed() >= COALESCE);
        as_urgent < most
            && !self.under_way.contains_key(target)
            && !self.retries.must_wait(target, now)
            && (urgent || quiet())
    }

    /// Starts a call.
    pub(super) fn start(
        &mut self,
        pool: &str,
        target: Target,
        urgent: bool,
        call: impl Future<Output = Answer> + Send + 'static,
    ) {
        self.under_way.insert(target.clone(), urgent);
        let call_for = Call { target, pool: pool.to_owned(), urgent };
        self.set.spawn(async move { (call_for, call.await) });
    }

    /// Waits for an answer; `None` if nothing is under way.
    pub(super) async fn next(&mut self) -> Option<Result<(Call, Answer), JoinError>> {
        self.set.join_next().await
    }

    /// An answer that is there already.
    pub(super) fn try_next(&mut self) -> Option<Result<(Call, Answer), JoinError>> {
        self.set.try_join_next()
    }

    /// A call has got its answer.
    pub(super) fn settled(&mut self, call: &Call, answer: &Answer, now: Millis) {
        let target = &call.target;
        self.under_way.remove(target);
        match answer {
            Answer::Ledger(_) => {
                self.retries.succeeded(target);
                self.written_at.insert(target.clone(), instant());
            }
            // Until the watch says so too, each look would write to it once more.
            Answer::Gone => {
                self.retries.failed(target, now);
            }
            Answer::Done if matches!(target, Target::Eviction(_)) => {
                self.retries.failed(target, now);
            }
            Answer::Failed(error) => {
                let attempts = self.retries.failed(target, now);
                warn!(?target, urgent = call.urgent, attempts, %error, "write failed");
            }
            Answer::Created(_)
            | Answer::Pod(_)
            | Answer::Node(_)
            | Answer::Done
            | Answer::Overtaken { .. } => self.retries.succeeded(target),
        }
    }

    /// Forgets pauses that are over. Says when the next one ends.
    pub(super) fn tidy(&mut self, now: Millis) -> Option<Millis> {
        self.retries.tidy(now);
        self.written_at.retain(|_, at| at.elapsed() < COALESCE);
        let quiet = self.written_at.values().map(|at| COALESCE.saturating_sub(at.elapsed()));
        let quiet = quiet.map(|rest| now + Millis(u64::try_from(rest.as_millis()).unwrap_or(0)));
        self.retries.next(now).into_iter().chain(quiet).min()
    }
}
