//! Cluster side: which replica leads, by a `Lease` object.
//!
//! Each write of the lease is made under its resource version, so two replicas cannot both get it.
//! A holder's time is counted on this process's own clock that never steps back: another's lease
//! ends when *we* have not seen it renewed for its duration, whatever the two wall clocks say; our
//! own ends for us before it can end for another, counted from the moment that the renewal was
//! sent. A leader that was stopped in its tracks therefore stops believing by itself, without a
//! word from anyone. What it has in flight then is caught by the ledgers' resource versions.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::names::MANAGER_CONTROLLER;
use crate::clock::{self, Clock, to_timestamp};

/// Tries to write a lease that another wrote in between.
const WRITE_ATTEMPTS: u32 = 3;

/// The lease and its timing.
#[derive(Clone, Debug)]
pub struct Params {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Who we are. A process that starts under the identity of the holder takes over at once:
    /// a pod's name will do, because its next container starts only after the last one ended.
    pub identity: String,
    /// How long others wait for a holder that is silent.
    pub duration: Duration,
    /// How long a holder believes in itself after its last renewal; less than `duration`.
    pub trust: Duration,
    /// Time between renewals, and between looks at another's lease.
    pub period: Duration,
}

impl Params {
    /// The timing that suits a scheduler: after a crash of the leader, another leads within eight
    /// to nine seconds; a silent API server is survived for five.
    pub fn new(namespace: String, name: String, identity: String) -> Self {
        Self {
            namespace,
            name,
            identity,
            duration: Duration::from_secs(8),
            trust: Duration::from_secs(6),
            period: Duration::from_secs(1),
        }
    }
}

/// Whether this replica leads, and until when it may believe so.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Term>>);

/// One unbroken time of leading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The number of this term: it grows with each change of the holder.
    pub number: i32,
    /// When it ends unless it is renewed.
    pub until: Instant,
}

/// The campaign has ended.
#[derive(Debug, thiserror::Error)]
#[error("nobody campaigns for the lease any more")]
pub struct Ended;

impl Leadership {
    /// The present term, if this replica leads.
    pub fn term(&self) -> Option<Term> {
        self.0.borrow().filter(|term| clock::instant() < term.until)
    }

    /// Whether this replica leads.
    pub fn holds(&self) -> bool {
        self.term().is_some()
    }

    /// Waits until this replica leads.
    pub async fn acquired(&mut self) -> Result<Term, Ended> {
        loop {
            self.0.borrow_and_update();
            if let Some(term) = self.term() {
                return Ok(term);
            }
            self.0.changed().await.map_err(|_| Ended)?;
        }
    }

    /// Waits until the term of this number is over: lost, given up, or not renewed in time.
    pub async fn lost(&mut self, number: i32) {
        loop {
            let known = *self.0.borrow_and_update();
            let Some(term) = known.filter(|term| term.number == number) else { return };
            if clock::instant() >= term.until {
                return;
            }
            tokio::select! {
                // Without a campaign nobody renews: the term ends with its time.
                Ok(()) = self.0.changed() => {}
                () = tokio::time::sleep_until(term.until) => {}
            }
        }
    }
}

/// Prepares a campaign for the lease.
pub fn campaign(client: Client, params: Params, clock: Clock) -> (Campaign, Leadership) {
    let (sender, receiver) = watch::channel(None);
    let api = Api::namespaced(client, &params.namespace);
    let campaign = Campaign { api, params, clock, seen: None, sender };
    (campaign, Leadership(receiver))
}

/// Wins the lease, keeps it, and gives it back in the end.
pub struct Campaign {
    api: Api<Lease>,
    params: Params,
    clock: Clock,
    seen: Option<Seen>,
    sender: watch::Sender<Option<Term>>,
}

/// The lease as it was when it was last read or written, and since when it has looked so.
struct Seen {
    lease: Lease,
    since: Instant,
}

impl Campaign {
    /// Runs until `stop` is cancelled; then gives the lease back, if this replica holds it.
    /// Cancel `stop` only after everything has ended that rests on leading.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            self.round().await;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.params.period) => {}
            }
        }
        self.release().await;
    }

    /// Looks at the lease once, and renews or takes it where that is due.
    async fn round(&mut self) {
        let sent = clock::instant();
        let result = tokio::time::timeout(self.params.trust / 2, self.try_hold()).await;
        let leads = self.sender.borrow().is_some();
        match result {
            Ok(Ok(Some(number))) => {
                self.publish(Some(Term { number, until: sent + self.params.trust }));
            }
            Ok(Ok(None)) => self.publish(None),
            Ok(Err(error)) => {
                // What was written, if anything, is not known: read it next time.
                self.seen = self.seen.take().filter(|_| !leads);
                tracing::warn!(%error, leads, "lease not read or written");
            }
            Err(_) => {
                self.seen = self.seen.take().filter(|_| !leads);
                tracing::warn!(leads, "no answer about the lease");
            }
        }
        let expired = self.sender.borrow().is_some_and(|term| term.until <= clock::instant());
        if expired {
            self.publish(None);
        }
    }

    /// The number of the term that is held now, or nothing while another holds the lease.
    async fn try_hold(&mut self) -> kube::Result<Option<i32>> {
        for _ in 0..WRITE_ATTEMPTS {
            // A holder writes at once: the condition of the write proves what it remembers.
            let remembered = self.seen.as_ref().filter(|seen| self.holder_of(&seen.lease).is_us());
            let current = match remembered {
                Some(seen) => Some(seen.lease.clone()),
                None => self.read().await?,
            };
            let other = current
                .as_ref()
                .is_some_and(|lease| self.holder_of(lease) == Holder::Other && !self.silent(lease));
            if other {
                return Ok(None);
            }
            match self.write(current.as_ref()).await {
                Ok(written) => {
                    let number = transitions(&written);
                    self.seen = Some(Seen { lease: written, since: clock::instant() });
                    return Ok(Some(number));
                }
                // Another wrote, made it or removed it in between: see whose it is now.
                Err(kube::Error::Api(status))
                    if status.is_conflict()
                        || status.is_already_exists()
                        || status.is_not_found() =>
                {
                    self.seen = None;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn write(&self, current: Option<&Lease>) -> kube::Result<Lease> {
        let params = PostParams { field_manager: Some(MANAGER_CONTROLLER.into()), dry_run: false };
        if let Some(current) = current {
            return self.api.replace(&self.params.name, &params, &self.claim(current)).await;
        }
        let named = ObjectMeta { name: Some(self.params.name.clone()), ..ObjectMeta::default() };
        let empty = Lease { metadata: named, spec: None };
        self.api.create(&params, &self.claim(&empty)).await
    }

    async fn read(&mut self) -> kube::Result<Option<Lease>> {
        let lease = self.api.get_opt(&self.params.name).await?;
        if let Some(lease) = &lease {
            let version = |lease: &Lease| lease.metadata.resource_version.clone();
            let known =
                self.seen.as_ref().is_some_and(|seen| version(&seen.lease) == version(lease));
            if !known {
                self.seen = Some(Seen { lease: lease.clone(), since: clock::instant() });
            }
        }
        Ok(lease)
    }

    /// The lease with us as its holder.
    fn claim(&self, current: &Lease) -> Lease {
        let now = MicroTime(to_timestamp(self.clock.now()));
        let spec = current.spec.clone().unwrap_or_default();
        let renewed = self.holder_of(current).is_us();
        let duration = i32::try_from(self.params.duration.as_secs()).unwrap_or(i32::MAX);
        let acquired = spec.acquire_time.clone().filter(|_| renewed);
        let spec = LeaseSpec {
            holder_identity: Some(self.params.identity.clone()),
            lease_duration_seconds: Some(duration),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions(current) + i32::from(!renewed)),
            ..spec
        };
        Lease { metadata: current.metadata.clone(), spec: Some(spec) }
    }

    /// Whether we have watched this lease, unchanged, for as long as its holder asked for.
    fn silent(&self, lease: &Lease) -> bool {
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(self.params.duration, Duration::from_secs);
        self.seen.as_ref().is_some_and(|seen| seen.since.elapsed() >= duration)
    }

    fn holder_of(&self, lease: &Lease) -> Holder {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        match holder {
            None | Some("") => Holder::Nobody,
            Some(name) if name == self.params.identity => Holder::Us,
            Some(_) => Holder::Other,
        }
    }

    fn publish(&self, term: Option<Term>) {
        let before = self.sender.send_replace(term);
        match (before, term) {
            (None, Some(term)) => {
                tracing::info!(identity = self.params.identity, term = term.number, "leading");
            }
            (Some(term), None) => {
                tracing::warn!(
                    identity = self.params.identity,
                    term = term.number,
                    "no longer leading"
                );
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Gives the lease back, so that another need not wait for it to run out.
    async fn release(&mut self) {
        if let Some(term) = self.sender.send_replace(None) {
            tracing::info!(identity = self.params.identity, term = term.number, "stops leading");
        }
        let seen = self.seen.take().filter(|seen| self.holder_of(&seen.lease).is_us());
        let Some(Seen { mut lease, .. }) = seen else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(to_timestamp(self.clock.now())));
            spec.lease_duration_seconds = Some(1);
        }
        let params = PostParams { field_manager: Some(MANAGER_CONTROLLER.into()), dry_run: false };
        let write = self.api.replace(&self.params.name, &params, &lease);
        match tokio::time::timeout(self.params.trust / 2, write).await {
            Ok(Ok(_)) => tracing::info!("lease given back"),
            Ok(Err(error)) => tracing::warn!(%error, "lease not given back: it runs out"),
            Err(_) => tracing::warn!("lease not given back in time: it runs out"),
        }
    }
}

/// Whose a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Us,
    Other,
    Nobody,
}

impl Holder {
    fn is_us(self) -> bool {
        self == Self::Us
    }
}

fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0)
}
