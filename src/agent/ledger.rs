//! Cluster side: the ledger of this node, read by a watch and written on change.
//!
//! The agent owns three fields of it: `gpus`, `agentSeen` and `released`. It writes them by
//! server-side apply under its own field manager, so that it cannot touch what the controller owns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::choose::Promise;
use super::holders::PodName;
use super::metrics::Metrics;
use crate::admin::Check;
use crate::api::{GpuNode, GpuNodeStatus, GpuStatus, ReservationState, names};

/// How long a watch lasts before it is renewed, and so how long a dead one goes unnoticed.
const WATCH_SECS: u32 = 60;
/// How long one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait after a first failed call; it doubles with each further one.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// The longest wait after failed writes.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The longest wait after failed watches. While the agent does not see its ledger no pod of a large
/// that waits for a release is started, so it comes back soon after the API server does.
const REWATCH_MAX: Duration = Duration::from_secs(5);

/// What is known of this node's ledger.
#[derive(Clone, Debug, Default)]
pub(super) enum Ledger {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// There is none: no pool has this node, or the controller has not come to it.
    Absent,
    /// This is it.
    Present(Arc<GpuNode>),
}

impl Ledger {
    fn status(&self) -> Option<&GpuNodeStatus> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(node) => node.status.as_ref(),
        }
    }

    /// Reservations that kubelet may still be about to serve, in the order in which they were made.
    pub(super) fn promises(&self) -> Vec<Promise> {
        let Some(status) = self.status() else { return vec![] };
        let mut reservations: Vec<_> = status
            .reservations
            .iter()
            .filter(|reservation| reservation.state < ReservationState::Running)
            .collect();
        reservations.sort_by_key(|reservation| (reservation.since.clone(), &reservation.uid));
        let promise = |gpus: &Vec<String>| Promise { gpus: gpus.iter().cloned().collect() };
        reservations.into_iter().map(|reservation| promise(&reservation.gpus)).collect()
    }

    /// Whether a pod is on its way to its GPUs or off them.
    pub(super) fn in_motion(&self) -> bool {
        self.status().is_some_and(|status| {
            status.releasing.iter().any(|uid| !status.released.contains(uid))
                || status.reservations.iter().any(|r| r.state != ReservationState::Running)
        })
    }

    /// UIDs that the controller asks about, with the names that the ledger has for them.
    pub(super) fn releasing(&self) -> BTreeMap<String, Option<PodName>> {
        let Some(status) = self.status() else { return BTreeMap::new() };
        let name = |uid: &String| {
            let reservation = status.reservations.iter().find(|r| &r.uid == uid)?;
            let (namespace, name) = (reservation.namespace.clone(), reservation.name.clone());
            Some(PodName { namespace, name })
        };
        status.releasing.iter().map(|uid| (uid.clone(), name(uid))).collect()
    }
}

/// What the agent says in the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Every GPU, with its health and holder.
    pub gpus: Vec<GpuStatus>,
    /// When the agent started.
    pub agent_seen: Time,
    /// Pods of which nothing is left.
    pub released: Vec<String>,
}

impl Report {
    /// Whether the ledger says the same. The order of lists means nothing.
    fn stands_in(&self, status: Option<&GpuNodeStatus>) -> bool {
        fn by_id(gpus: &[GpuStatus]) -> BTreeMap<&str, &GpuStatus> {
            gpus.iter().map(|gpu| (gpu.id.as_str(), gpu)).collect()
        }
        fn set(uids: &[String]) -> BTreeSet<&String> {
            uids.iter().collect()
        }
        status.is_some_and(|status| {
            by_id(&self.gpus) == by_id(&status.gpus)
                && set(&self.released) == set(&status.released)
                && status.agent_seen.as_ref() == Some(&self.agent_seen)
        })
    }
}

/// The waits before a failed watch starts anew.
pub(super) fn rewatch(node: &str) -> Backoff {
    Backoff::new(RETRY_MIN, REWATCH_MAX, node)
}

/// Takes what is known of the ledger.
pub(super) struct Followed {
    /// The ledger.
    pub ledger: watch::Sender<Ledger>,
    /// Whether the watch is up.
    pub check: Check,
}

/// Follows the ledger of a node until shutdown.
pub(super) async fn follow(
    client: Client,
    node: String,
    Followed { ledger, check }: Followed,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let config =
        watcher::Config::default().fields(&format!("metadata.name={node}")).timeout(WATCH_SECS);
    let mut events = watcher(Api::<GpuNode>::all(client), config).backoff(rewatch(&node)).boxed();
    let mut listed = Ledger::Absent;
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        // A list that has begun is no answer yet.
        if !matches!(event, Ok(Some(watcher::Event::Init))) {
            check.set(matches!(event, Ok(Some(_))));
        }
        match event {
            Ok(Some(watcher::Event::Init)) => listed = Ledger::Absent,
            Ok(Some(watcher::Event::InitApply(node))) => listed = Ledger::Present(Arc::new(node)),
            Ok(Some(watcher::Event::InitDone)) => {
                if matches!(listed, Ledger::Absent) {
                    tracing::info!(node, "no ledger yet: serving kubelet and waiting for one");
                }
                ledger.send_replace(std::mem::replace(&mut listed, Ledger::Absent));
            }
            Ok(Some(watcher::Event::Apply(node))) => {
                ledger.send_replace(Ledger::Present(Arc::new(node)));
            }
            Ok(Some(watcher::Event::Delete(_))) => {
                tracing::info!(node, "the ledger was deleted");
                ledger.send_replace(Ledger::Absent);
            }
            // The watcher starts anew by itself, after a growing wait.
            Err(error) => {
                tracing::warn!(node, %error, "cannot watch the ledger");
                metrics.api_error("watch_ledger");
            }
            Ok(None) => return,
        }
    }
}

/// What the ledger is compared with.
pub(super) struct Told {
    /// What it should say.
    pub reports: watch::Receiver<Option<Report>>,
    /// What it says.
    pub ledger: watch::Receiver<Ledger>,
    /// Whether it could be written when it had to be.
    pub check: Check,
}

/// Writes the newest report whenever the ledger says something else, until shutdown.
pub(super) async fn write(
    client: Client,
    node: String,
    Told { mut reports, mut ledger, check }: Told,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    check.set(true);
    let api = Api::<GpuNode>::all(client);
    let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX, &node);
    let mut retry = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = reports.changed() => if changed.is_err() { return },
            changed = ledger.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
        }
        let Some(report) = reports.borrow_and_update().clone() else { continue };
        let known = ledger.borrow_and_update().clone();
        let found = match known {
            Ledger::Present(found) => found,
            // The node is in no pool: nobody waits for a report, and a failed one is void.
            Ledger::Absent => {
                retry = None;
                backoff.start_over();
                check.set(true);
                continue;
            }
            Ledger::Unknown => continue,
        };
        if report.stands_in(found.status.as_ref()) {
            retry = None;
            backoff.start_over();
            check.set(true);
            continue;
        }
        match apply(&api, &node, &report).await {
            Ok(written) => {
                retry = None;
                backoff.start_over();
                let version = written.resource_version();
                tracing::debug!(node, version, "reported to the ledger");
                metrics.reported();
                check.set(true);
                if !report.stands_in(written.status.as_ref()) {
                    tracing::warn!(node, "the ledger holds GPUs that this node does not have");
                }
            }
            Err(error) => {
                tracing::warn!(node, %error, "failed to report to the ledger");
                metrics.api_error(error.label());
                check.set(false);
                retry = Some(backoff.wait());
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("no answer within {} s", WRITE_TIMEOUT.as_secs())]
    Timeout,
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl WriteError {
    fn label(&self) -> &'static str {
        match self {
            Self::Timeout => "write_ledger_timeout",
            Self::Api(_) => "write_ledger",
        }
    }
}

async fn apply(api: &Api<GpuNode>, node: &str, report: &Report) -> Result<GpuNode, WriteError> {
    let body = serde_json::json!({
        "apiVersion": GpuNode::api_version(&()),
        "kind": GpuNode::kind(&()),
        "metadata": { "name": node },
        "status": report,
    });
    let params = PatchParams::apply(names::MANAGER_AGENT).force();
    let patch = Patch::Apply(&body);
    let write = api.patch_status(node, &params, &patch);
    match tokio::time::timeout(WRITE_TIMEOUT, write).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(WriteError::Timeout),
    }
}
