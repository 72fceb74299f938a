//! The run outside: cluster up, images, chart, the scenarios inside, cluster down.

use std::process::{ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::command::{cluster_sh, repository};

/// What a run needs.
pub(crate) struct Plan {
    /// The cluster's name; another one in `SLUICE_E2E_CLUSTER` keeps two runs on one machine apart.
    pub(crate) name: &'static str,
    /// How cargo builds what goes into the images, unless `SLUICE_PROFILE` says otherwise.
    pub(crate) profile: &'static str,
    /// Whether the chart is installed before this program runs inside.
    pub(crate) install: bool,
}

/// Runs everything and gives the exit code of the run inside.
pub(crate) fn run(plan: &Plan) -> ExitCode {
    let name = std::env::var("SLUICE_E2E_CLUSTER").unwrap_or_else(|_| plan.name.to_owned());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("e2e: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        match with_cluster(&name, plan).await {
            Ok(code) => code,
            Err(error) => {
                eprintln!("e2e: {error:?}");
                ExitCode::FAILURE
            }
        }
    })
}

/// SIGINT and SIGTERM: the cluster goes down before this process does.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn with_cluster(name: &str, plan: &Plan) -> Result<ExitCode> {
    let mut interrupts = Interrupts::listen()?;
    let outcome = inside_of_it(&mut interrupts, name, plan).await;
    if std::env::var_os("SLUICE_E2E_KEEP").is_some_and(|value| value != "0") {
        eprintln!("e2e: cluster {name} stays up: tests/cluster/cluster.sh shell {name}");
    } else {
        // Not interruptible: a cluster half down is worse than a second of patience.
        let status = cluster_sh().args(["down", name]).status().await?;
        if !status.success() && outcome.is_ok() {
            bail!("the cluster did not go down cleanly");
        }
    }
    outcome
}

async fn inside_of_it(interrupts: &mut Interrupts, name: &str, plan: &Plan) -> Result<ExitCode> {
    step(interrupts, cluster_sh().args(["up", name])).await?;
    let profile = std::env::var("SLUICE_PROFILE").unwrap_or_else(|_| plan.profile.to_owned());
    step(interrupts, cluster_sh().args(["--name", name, "images"]).env("SLUICE_PROFILE", profile))
        .await?;
    if plan.install {
        let script = repository().join("tests/e2e/install.sh");
        step(interrupts, in_cluster(name).arg(script)).await?;
    }
    let this = std::env::current_exe().context("finding this program")?;
    let mut scenarios = in_cluster(name);
    scenarios.arg(this).args(std::env::args_os().skip(1)).env(super::INSIDE, "1");
    // `exec` hands the signal on to what it runs in the cluster.
    let status = finish(interrupts, scenarios.spawn()?, kill_process).await?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(101).into())
}

fn in_cluster(name: &str) -> Command {
    let mut command = cluster_sh();
    command.args(["exec", name, "--"]);
    command
}

async fn step(interrupts: &mut Interrupts, command: &mut Command) -> Result<()> {
    let what = format!("{:?}", command.as_std());
    // The scenarios' results are the only thing on standard output.
    command.stdout(std::io::stderr()).stdin(Stdio::null()).process_group(0);
    let child = command.spawn().with_context(|| what.clone())?;
    // A build goes on for minutes if only the script that started it is told to end.
    let status = finish(interrupts, child, kill_process_group).await?;
    if !status.success() {
        bail!("{what}: {status}");
    }
    Ok(())
}

async fn finish(
    interrupts: &mut Interrupts,
    mut child: Child,
    tell: fn(Pid, rustix::process::Signal) -> rustix::io::Result<()>,
) -> Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => Ok(status?),
        () = interrupts.next() => {
            if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                tell(pid, rustix::process::Signal::TERM)?;
            }
            child.wait().await?;
            bail!("interrupted")
        }
    }
}
