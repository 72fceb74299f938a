//! Cluster side: the node agent, `sluice agent`. One runs on every GPU node.
//!
//! ```text
//! backend (NVML or simulated) ─► health ─► GpuList ─┬─► plugin ◄─► kubelet   (endpoint, register)
//!                                                  └─► observe ─► ledger ─► GpuNode.status
//! kubelet's pod resources, pods, cgroups ─► holders ─────┘ ▲
//! GpuNode.status.reservations, .releasing ─────────────────┘
//! ```
//!
//! It advertises the node's GPUs to kubelet as a device plugin, steers kubelet to the GPUs that
//! were reserved, refuses to hand out a GPU on which an earlier pod's containers still live, and
//! reports GPUs, health and real holders to the ledger. What it decides is in pure modules that
//! take state and time as values: [`choose`], [`health`], [`holders`], [`allocate`].

pub mod allocate;
pub mod backend;
pub mod cgroup;
pub mod choose;
pub mod gpu;
pub mod health;
pub mod holders;
pub mod metrics;
pub mod options;
pub mod wire;

mod backoff;
mod cdi;
pub mod clock;
mod endpoint;
mod folder;
mod ledger;
mod observe;
mod plugin;
mod podresources;
mod pods;
mod register;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inotify::Inotify;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::backend::BackendError;
use self::cdi::CdiFile;
use self::cgroup::Cgroups;
use self::clock::Uptime;
use self::folder::FolderEvents;
use self::gpu::GpuList;
use self::holders::PodIndex;
use self::ledger::Ledger;
use self::metrics::Metrics;
use self::observe::Observer;
use self::options::{BackendOptions, Options};
use self::plugin::Shared;
use self::podresources::{PodResources, PodResourcesError};
use self::register::Registrar;
use crate::admin::{self, Check, Readiness};

/// How long the agent's parts may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No configuration for the API server is found.
    #[error("cannot tell where the API server is")]
    Kubernetes(#[source] Box<kube::Error>),
    /// The backend cannot be started.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Kubelet's pod resources API cannot be used.
    #[error(transparent)]
    PodResources(#[from] PodResourcesError),
    /// The health and metrics port cannot be opened.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A part of the agent ended by itself.
    #[error("the {0} part of the agent ended unexpectedly")]
    Ended(&'static str),
    /// A part of the agent panicked.
    #[error("a part of the agent failed")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Runs the agent until shutdown, with the API server that the environment names.
pub async fn run(options: Options, shutdown: CancellationToken) -> Result<(), AgentError> {
    let client =
        Client::try_default().await.map_err(|error| AgentError::Kubernetes(Box::new(error)))?;
    run_with(options, Some(client), Metrics::default(), shutdown).await
}

/// Runs the agent until shutdown. Without a client it serves kubelet and keeps no ledger.
pub async fn run_with(
    options: Options,
    client: Option<Client>,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    tracing::info!(?options, "the node agent starts");
    // Every part ends with this token, so that one that fails takes the others along.
    let stop = shutdown.child_token();
    let _stop_on_return = stop.clone().drop_guard();
    let uptime = Uptime::start();
    let listener = match options.health_address {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let (thread, gpus) =
        backend::spawn(options.backend.clone().build(), options.damping, uptime, stop.clone())?;
    let mut parts = Parts { tasks: JoinSet::new(), stop: stop.clone() };
    let readiness = Readiness::default();
    let checks = Checks::new(&readiness);
    if let Some(listener) = listener {
        let router = admin::router(readiness, metrics.registry());
        let serving = admin::serve(listener, router, stop.clone());
        parts.spawn("health and metrics", async {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the health and metrics port failed");
            }
        });
    }
    let ledger = ledger_parts(&mut parts, &options, client, &metrics, checks.ledger, checks.report);
    let cgroups = Arc::new(Cgroups::new(&options.cgroup_root));
    let look_now = Arc::new(Notify::new());
    let sightings = watch::Sender::new(Arc::default());
    let shared = Shared {
        gpus: gpus.clone(),
        ledger: ledger.ledger.clone(),
        observed: sightings.subscribe(),
        look_now: look_now.clone(),
        cgroups: cgroups.clone(),
        hand_over: options.hand_over.clone(),
        metrics: metrics.clone(),
        uptime,
    };
    plugin_parts(&mut parts, &options, Arc::new(shared), checks.kubelet);
    let observer = Observer {
        gpus: gpus.clone(),
        ledger: ledger.followed.then_some(ledger.ledger),
        pods: ledger.pods,
        pod_resources: PodResources::new(&options.pod_resources_socket, &options.resource)?,
        cgroups,
        look_now,
        observed: sightings,
        reports: ledger.reports,
        agent_seen: clock::time_of_day(),
        metrics: metrics.clone(),
        uptime,
        looks: checks.looks,
    };
    parts.spawn("observer", observer.run(stop.clone()));
    cdi_part(&mut parts, &options, gpus, &metrics);
    let ended = parts.first_to_end(&shutdown).await;
    stop.cancel();
    parts.join().await?;
    let joined = tokio::task::spawn_blocking(move || thread.join());
    if tokio::time::timeout(STOP_TIMEOUT, joined).await.is_err() {
        tracing::warn!("the backend's thread does not end");
    }
    tracing::info!("the node agent has ended");
    ended
}

async fn listen(address: SocketAddr) -> Result<TcpListener, AgentError> {
    TcpListener::bind(address).await.map_err(|error| AgentError::Listen(address, error))
}

/// The agent's tasks, each with a name.
struct Parts {
    tasks: JoinSet<&'static str>,
    stop: CancellationToken,
}

impl Parts {
    fn spawn(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            part.await;
            name
        });
    }

    /// Waits for shutdown; a part that ends before it is an error.
    async fn first_to_end(&mut self, shutdown: &CancellationToken) -> Result<(), AgentError> {
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = self.tasks.join_next() => match ended {
                Some(Ok(name)) if !shutdown.is_cancelled() => Err(AgentError::Ended(name)),
                Some(Ok(_)) | None => Ok(()),
                Some(Err(error)) => Err(AgentError::Panicked(error)),
            },
        }
    }

    async fn join(&mut self) -> Result<(), AgentError> {
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.map_err(AgentError::Panicked)?;
            }
            Ok(())
        };
        if let Ok(ended) = tokio::time::timeout(STOP_TIMEOUT, all).await {
            return ended;
        }
        tracing::warn!("some parts of the agent do not end");
        self.tasks.abort_all();
        Ok(())
    }
}

/// What the agent must be able to do. Its pod is ready as long as it is, and by the pod's readiness
/// the controller knows that it can rely on the agent.
struct Checks {
    /// Be registered with kubelet.
    kubelet: Check,
    /// Follow the ledger.
    ledger: Check,
    /// Write to the ledger.
    report: Check,
    /// Look at who holds GPUs.
    looks: Check,
}

impl Checks {
    fn new(readiness: &Readiness) -> Self {
        let check = |name| readiness.check(name);
        Self {
            kubelet: check("kubelet"),
            ledger: check("ledger"),
            report: check("report"),
            looks: check("looks"),
        }
    }
}

/// The channels between the ledger's tasks and the rest.
struct LedgerParts {
    ledger: watch::Receiver<Ledger>,
    pods: watch::Receiver<Arc<PodIndex>>,
    reports: watch::Sender<Option<ledger::Report>>,
    followed: bool,
}

fn ledger_parts(
    parts: &mut Parts,
    options: &Options,
    client: Option<Client>,
    metrics: &Metrics,
    follows: Check,
    writes: Check,
) -> LedgerParts {
    let ledger = watch::Sender::new(Ledger::Unknown);
    let pods = watch::Sender::new(Arc::default());
    let reports = watch::Sender::new(None);
    let (ledger_rx, pods_rx) = (ledger.subscribe(), pods.subscribe());
    let followed = client.is_some();
    let (node, stop) = (options.node.clone(), parts.stop.clone());
    if let Some(client) = client {
        let followed = ledger::Followed { ledger, check: follows };
        let following =
            ledger::follow(client.clone(), node.clone(), followed, metrics.clone(), stop.clone());
        parts.spawn("ledger watch", following);
        let following =
            pods::follow(client.clone(), node.clone(), pods, metrics.clone(), stop.clone());
        parts.spawn("pod watch", following);
        let told =
            ledger::Told { reports: reports.subscribe(), ledger: ledger_rx.clone(), check: writes };
        let writing = ledger::write(client, node, told, metrics.clone(), stop);
        parts.spawn("ledger writer", writing);
    } else {
        // Nobody else holds the senders: kept here, so that receivers wait instead of failing.
        follows.set(true);
        writes.set(true);
        parts.spawn("no ledger", async move {
            stop.cancelled().await;
            drop((ledger, pods, follows, writes));
        });
    }
    LedgerParts { ledger: ledger_rx, pods: pods_rx, reports, followed }
}

fn plugin_parts(parts: &mut Parts, options: &Options, shared: Arc<Shared>, registered: Check) {
    let changed = Arc::new(Notify::new());
    let events = FolderEvents {
        folder: options.plugin_dir.clone(),
        changed: changed.clone(),
        metrics: shared.metrics.clone(),
        open: if options.poll_only { folder::poll_only } else { Inotify::init },
    };
    let stop = parts.stop.clone();
    parts.spawn("plugin folder", events.run(stop.clone()));
    let registrar = Registrar {
        folder: options.plugin_dir.clone(),
        node: options.node.clone(),
        resource: options.resource.clone(),
        metrics: shared.metrics.clone(),
        uptime: shared.uptime,
        shared,
        changed,
        registered,
    };
    parts.spawn("registrar", registrar.run(stop));
}

fn cdi_part(
    parts: &mut Parts,
    options: &Options,
    gpus: watch::Receiver<Option<GpuList>>,
    metrics: &Metrics,
) {
    let (Some(folder), allocate::HandOver::Cdi { kind }) = (&options.cdi_dir, &options.hand_over)
    else {
        return;
    };
    let dev = match &options.backend {
        BackendOptions::Nvml(backend) => backend.dev.clone(),
        BackendOptions::Simulated(_) => "/dev".into(),
    };
    let file = CdiFile { folder: folder.clone(), kind: kind.clone(), dev };
    let stop = parts.stop.clone();
    parts.spawn("CDI file", file.keep(gpus, metrics.clone(), stop));
}
