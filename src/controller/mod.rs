//! Cluster side: watches become inputs of the policy, and its decisions are carried out.
//!
//! [`run`] is the whole of `sluice controller`. Every replica keeps the stores and answers the
//! kube-scheduler beside it; the one that holds the lease decides as well. Each part is a task
//! with a name; one that ends before it is told to ends the process, which starts again from what
//! the API server knows.

mod calls;
mod catch_up;
pub mod debug;
mod engine;
pub mod lease;
pub mod peek;
mod pools;
mod publish;
mod records;
mod retries;
pub mod stores;
mod unreadable;
mod view;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use self::debug::Desk;
use self::lease::{Campaign, Leadership};
use self::stores::{StoreError, Stores};
use crate::admin::{self, Check, Readiness};
use crate::api::names;
use crate::clock::Clock;
use crate::extender::{self, Extender};
use crate::metrics::Metrics;

/// How long a connection to the API server may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the tasks may take to end once they are told to; below a pod's usual grace period of
/// 30 s, with room for the lease.
const END_LIMIT: Duration = Duration::from_secs(10);
/// One mebibyte, in bytes.
const MIB: usize = 1 << 20;
/// How often stores that are not complete are complained of.
const SYNC_REPORT: Duration = Duration::from_secs(15);

/// Arguments of `sluice controller`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where the kube-scheduler beside this process calls its extender. Only a loopback address:
    /// whoever reaches it speaks for kube-scheduler.
    #[arg(long, default_value = "127.0.0.1:10262", value_parser = loopback)]
    pub extender_address: SocketAddr,
    /// Where `/healthz`, `/readyz` and `/metrics` are answered.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub health_address: SocketAddr,
    /// Where `/debug/snapshot` is answered. Only a loopback address: a snapshot names every pod.
    #[arg(long, default_value = "127.0.0.1:10263", value_parser = loopback)]
    pub debug_address: SocketAddr,
    /// How many MiB of each pool's newest inputs and decisions are kept for a snapshot; 0 keeps
    /// none, and a snapshot is the state alone.
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    pub record_mib: u16,
    /// Namespace that Sluice runs in, and of the lease by which the replicas agree on a leader. By default that of the
    /// kubeconfig or of the service account.
    #[arg(long, env = "POD_NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Who this replica is for the lease. By default a name that no other process has.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
}

/// What ends the process.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the API server is configured.
    #[error("cannot find out how to reach the API server")]
    Config(#[source] kube::config::InferConfigError),
    /// The way to the API server that is configured cannot be used.
    #[error("cannot make a client for the API server")]
    Client(#[source] kube::Error),
    /// An address is taken.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A server ended.
    #[error("a server failed")]
    Serve(#[from] io::Error),
    /// A store stands still.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A task ended without being told to.
    #[error("task {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("a task panicked")]
    Panicked(#[from] JoinError),
}

/// What the leading part works with.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Namespace that Sluice itself runs in, where the node agents' pods are.
    pub namespace: String,
    /// What it says.
    pub stores: Stores,
    /// Whether this replica decides.
    pub leadership: Leadership,
    /// The time.
    pub clock: Clock,
    /// The figures.
    pub metrics: Metrics,
    /// Where snapshots are asked for.
    pub desk: Desk,
    /// How many bytes of records of each pool are kept.
    pub record_bytes: usize,
}

/// Runs until `stop` is cancelled or a task ends.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), Error> {
    let client = client().await?;
    let metrics = Metrics::default();
    let readiness = Readiness::default();
    let (synced, answering) = (readiness.check("stores"), readiness.check("extender"));
    let mut tasks = Tasks::new(stop.child_token());

    let health = listen(args.health_address).await?;
    tasks.serve_health(health, readiness, metrics.registry());

    let mut watches = JoinSet::new();
    let stores = Stores::start(&client, &metrics, &mut watches);
    let listener = listen(args.extender_address).await?;
    tasks.serve_extender(listener, extender(&client, &stores, &metrics));
    answering.set(true);
    tasks.follow_sync(stores.clone(), synced);

    let params = lease_params(&args, &client);
    let namespace = params.namespace.clone();
    let (campaign, leadership) = lease::campaign(client.clone(), params, Clock::system());
    let mut candidate = Candidate::start(campaign);
    tasks.follow_leadership(leadership.clone(), metrics.clone());
    let clock = Clock::system();
    let desk = Desk::default();
    let listener = listen(args.debug_address).await?;
    tasks.serve("debug", listener, debug::router(desk.clone(), leadership.clone()));
    let record_bytes = usize::from(args.record_mib) * MIB;
    let context =
        Context { client, namespace, stores, leadership, clock, metrics, desk, record_bytes };
    tasks.spawn("engine", |stop| decide(context, stop));

    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = tasks.first_end() => ended,
        ended = candidate.first_end() => ended,
        Some(ended) = watches.join_next() => Err(ended.map_or_else(Error::from, Error::from)),
    };
    // What decides and answers ends first, the lease is given back after that: its next holder
    // finds nobody else at work.
    answering.set(false);
    tasks.end().await;
    candidate.end().await;
    result
}

/// The leading part alone: looks, decides and writes while this replica leads, until `stop` is
/// cancelled.
pub async fn decide(context: Context, stop: CancellationToken) -> Result<(), Error> {
    engine::run(context, stop).await
}

async fn client() -> Result<Client, Error> {
    let mut config = Config::infer().await.map_err(Error::Config)?;
    config.connect_timeout = Some(CONNECT_LIMIT);
    Client::try_from(config).map_err(Error::Client)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn extender(client: &Client, stores: &Stores, metrics: &Metrics) -> Extender {
    Extender::new(
        client.clone(),
        stores.gpu_nodes.clone(),
        stores.nodes.clone(),
        stores.changed(),
        Clock::system(),
        metrics.clone(),
        extender::Limits::default(),
    )
}

fn lease_params(args: &Args, client: &Client) -> lease::Params {
    let namespace = args.lease_namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let identity = args.identity.clone().unwrap_or_else(|| {
        // Both may be unreadable; the process id and the time alone still tell replicas apart.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}_{}_{}", host.trim(), std::process::id(), Clock::system().now().0)
    });
    lease::Params::new(namespace, names::LEASE.to_owned(), identity)
}

/// Refuses an address that others than this machine can reach.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    if !address.ip().is_loopback() {
        return Err(format!("{} is not a loopback address", address.ip()));
    }
    Ok(address)
}

/// The tasks that end together.
struct Tasks {
    set: JoinSet<(&'static str, Result<(), Error>)>,
    stop: CancellationToken,
}

impl Tasks {
    fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), stop }
    }

    /// Starts a task, which must end when the token that it is given is cancelled, and not before.
    fn spawn<F>(&mut self, name: &'static str, start: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let task = start(self.stop.clone());
        self.set.spawn(async move { (name, task.await) });
    }

    fn serve_health(&mut self, listener: TcpListener, readiness: Readiness, registry: Registry) {
        self.serve("health", listener, admin::router(readiness, registry.into()));
    }

    fn serve_extender(&mut self, listener: TcpListener, extender: Extender) {
        self.serve("extender", listener, extender.router());
    }

    fn serve(&mut self, name: &'static str, listener: TcpListener, router: Router) {
        self.spawn(name, |stop| async { Ok(admin::serve(listener, router, stop).await?) });
    }

    /// Keeps the check of the stores, and says which are missing as long as some are.
    fn follow_sync(&mut self, stores: Stores, synced: Check) {
        self.spawn("sync", |stop| async move {
            while let Err(error) = stores.wait_synced(SYNC_REPORT).await {
                if stop.is_cancelled() {
                    return Ok(());
                }
                tracing::warn!(%error, "not ready yet");
            }
            tracing::info!("stores are complete");
            synced.set(true);
            stop.cancelled().await;
            Ok(())
        });
    }

    fn follow_leadership(&mut self, mut leadership: Leadership, metrics: Metrics) {
        self.spawn("leadership", |stop| async move {
            let follow = async {
                while let Ok(term) = leadership.acquired().await {
                    metrics.leader.set(1);
                    metrics.leader_changes.inc();
                    leadership.lost(term.number).await;
                    metrics.leader.set(0);
                }
            };
            // The end of the campaign is reported by the campaign.
            stop.run_until_cancelled(follow).await;
            stop.cancelled().await;
            Ok(())
        });
    }

    /// Waits for the first task that ends, which none should.
    async fn first_end(&mut self) -> Result<(), Error> {
        match self.set.join_next().await {
            Some(Ok((name, Ok(())))) if self.stop.is_cancelled() => {
                tracing::debug!(name, "task ended");
                Ok(())
            }
            Some(Ok((name, Ok(())))) => Err(Error::Ended(name)),
            Some(Ok((_, Err(error)))) => Err(error),
            Some(Err(error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Tells every task to end and waits for them, a while.
    async fn end(mut self) {
        self.stop.cancel();
        let all = async {
            while !self.set.is_empty() {
                if let Err(error) = self.first_end().await {
                    tracing::error!(error = &error as &dyn std::error::Error, "task failed");
                }
            }
        };
        if tokio::time::timeout(END_LIMIT, all).await.is_err() {
            tracing::warn!("tasks did not end within {END_LIMIT:?}");
        }
    }
}

/// The campaign for the lease, which ends last.
struct Candidate {
    set: JoinSet<()>,
    release: CancellationToken,
}

impl Candidate {
    fn start(campaign: Campaign) -> Self {
        let (mut set, release) = (JoinSet::new(), CancellationToken::new());
        set.spawn(campaign.run(release.clone()));
        Self { set, release }
    }

    async fn first_end(&mut self) -> Result<(), Error> {
        match self.set.join_next().await {
            Some(Err(error)) => Err(error.into()),
            Some(Ok(())) | None => Err(Error::Ended("lease")),
        }
    }

    async fn end(mut self) {
        self.release.cancel();
        // Its last write has a time limit of its own.
        while let Some(ended) = self.set.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the campaign for the lease panicked");
            }
        }
    }
}
