//! What the scenarios rest on: the cluster's life, the facts seen, pods, faults, and the checks
//! that follow every scenario.

pub(crate) mod check;
pub(crate) mod command;
pub(crate) mod fault;
mod logs;
mod observe;
pub(crate) mod outer;
pub(crate) mod pods;
pub(crate) mod records;
mod report;
pub(crate) mod scenario;
pub(crate) mod world;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use futures::future::BoxFuture;
use kube::Client;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

pub(crate) use scenario::Scenario;

/// Set for the run inside the cluster's namespaces.
pub(crate) const INSIDE: &str = "SLUICE_E2E_INSIDE";
/// Namespace and name of the helm release.
pub(crate) const RELEASE: &str = "sluice";
/// Namespace that the chart is installed to.
pub(crate) const SYSTEM: &str = "sluice-system";
/// The real node.
pub(crate) const NODE: &str = "gpu-node-1";
/// GPUs of that node.
pub(crate) const GPUS: usize = 8;
/// How long a scenario waits for one fact. Far more than it takes: only a fault runs it out.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A scenario by name.
pub(crate) struct Case {
    /// `module::function`.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) body: fn(Arc<Scenario>) -> BoxFuture<'static, Result<()>>,
}

/// What all scenarios of a run share.
pub(crate) struct Cluster {
    /// Client of the API server, as admin.
    pub(crate) client: Client,
    /// Everything that was seen so far.
    pub(crate) world: world::World,
}

pub(crate) fn inside_cluster() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Milliseconds since 1970 by the clock that the containers write their records by.
#[allow(clippy::disallowed_methods, reason = "a test has no other clock than the real one")]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(since.as_millis()).expect("milliseconds fit")
}

/// Runs the scenarios one after another in this process, or lists them.
pub(crate) fn run_cases(mut arguments: Arguments, cases: Vec<Case>) -> ExitCode {
    arguments.test_threads = Some(1);
    let shared: Arc<OnceLock<(Runtime, Arc<Cluster>)>> = Arc::default();
    let trials = cases
        .into_iter()
        .map(|case| {
            let shared = shared.clone();
            Trial::test(case.name, move || {
                if shared.get().is_none() {
                    let _ = shared.set(connect().map_err(|error| told(&error))?);
                }
                let (runtime, cluster) = shared.get().ok_or("no cluster")?;
                let name = case.name;
                runtime.block_on(scenario::run(cluster.clone(), case)).map_err(|error| {
                    let failed = told(&error);
                    report::keep(name, failed.message().unwrap_or_default());
                    failed
                })
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The causes of an error, without a backtrace: where it was noticed tells nothing.
fn told(error: &anyhow::Error) -> Failed {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join("\ncaused by: ").into()
}

/// A runtime, and a view of the cluster that this process is in.
pub(crate) fn connect() -> Result<(Runtime, Arc<Cluster>)> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let cluster = runtime.block_on(async {
        let client = Client::try_default().await.context("reading KUBECONFIG")?;
        let world = world::World::start(&client).await?;
        anyhow::Ok(Arc::new(Cluster { client, world }))
    })?;
    Ok((runtime, cluster))
}
