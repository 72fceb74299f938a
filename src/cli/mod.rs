//! The command line: argument types and dispatch, no logic of its own.
//!
//! Commands that need no cluster stand on the pure side of the wall; the others exist only with
//! feature `cluster`. A command that runs as a server goes through [`serve`], one that asks or
//! tells the cluster something and ends through `ask`; the others never start a runtime.

#[cfg(feature = "cluster")]
pub mod agent;
#[cfg(feature = "cluster")]
pub mod crd;
pub mod explain;
mod input;
pub mod ladder;
#[cfg(feature = "cluster")]
pub mod node;
pub mod plan;
#[cfg(feature = "cluster")]
pub mod pool;
mod progress;
pub mod replay;
pub mod review;
pub mod simulate;
pub mod stream;
pub mod timeline;
pub mod work;

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::telemetry;

/// What `kubectl` looks for when it is asked for `kubectl sluice`.
const PLUGIN: &str = "kubectl-sluice";

/// One-GPU pods and whole-node pods share GPU nodes fairly.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about)]
pub struct Cli {
    /// Settings of the log.
    #[command(flatten)]
    pub log: telemetry::Args,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Decide which pods start where, and answer the kube-scheduler beside this process.
    #[cfg(feature = "cluster")]
    Controller(crate::controller::Args),
    /// Run the node agent: advertise this node's GPUs to kubelet and report them to the ledger.
    #[cfg(feature = "cluster")]
    Agent(Box<agent::Args>),
    /// Write the custom resource definitions.
    #[cfg(feature = "cluster")]
    Crd(crd::Args),
    /// Take back what Sluice wrote on nodes.
    #[cfg(feature = "cluster")]
    Node(node::Args),
    /// Bring a pool into the cluster.
    #[cfg(feature = "cluster")]
    Pool(pool::Args),
    /// Follow a cluster: say live what happens, and write it down for `sluice timeline`.
    #[cfg(feature = "cluster")]
    Record(crate::record::Args),
    /// Show which pod ran on which GPUs from when to when, and check it.
    Timeline(timeline::Args),
    /// Print the best legal schedule of a job list, with the reason of each start.
    Plan(plan::Args),
    /// Answer five questions about a day that is over: where did capacity go?
    Review(review::Args),
    /// Say of a pod why it waits, what must happen first, and when it starts at the latest.
    Explain(explain::Args),
    /// Decide again what a controller recorded, and say whether the decisions are the same.
    Replay(replay::Args),
    /// Play a job list to several schedulers and compare what comes of it.
    Simulate(simulate::Args),
}

impl Cli {
    /// Reads the arguments of this process. Ends the process with code 2 where they are wrong.
    pub fn from_env() -> Self {
        Self::from_args(std::env::args_os().collect())
            .unwrap_or_else(|error: clap::Error| error.exit())
    }

    /// Reads `args`, of which the first is the name that the binary was called by.
    pub fn from_args(args: Vec<OsString>) -> Result<Self, clap::Error> {
        let called = args.first().and_then(|arg| Path::new(arg).file_stem());
        let command = if called.is_some_and(|name| name == PLUGIN) {
            Self::command().bin_name("kubectl sluice")
        } else {
            Self::command()
        };
        Self::from_arg_matches(&command.try_get_matches_from(args)?)
    }

    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            #[cfg(feature = "cluster")]
            Command::Controller(args) => {
                serve(&self.log, async |stop| Ok(crate::controller::run(args, stop).await?))
            }
            #[cfg(feature = "cluster")]
            Command::Agent(args) => {
                serve(&self.log, async |stop| Ok(crate::agent::run((*args).into(), stop).await?))
            }
            #[cfg(feature = "cluster")]
            Command::Crd(args) => {
                telemetry::start(&self.log, "warn")?;
                crd::run(&args)
            }
            #[cfg(feature = "cluster")]
            Command::Node(args) => {
                telemetry::start(&self.log, "info")?;
                node::run(&args)
            }
            #[cfg(feature = "cluster")]
            Command::Pool(args) => {
                telemetry::start(&self.log, "info")?;
                pool::run(&args)
            }
            #[cfg(feature = "cluster")]
            Command::Record(args) => {
                serve(&self.log, async |stop| Ok(crate::record::run(&args, stop).await?))
            }
            Command::Timeline(args) => {
                telemetry::start(&self.log, "warn")?;
                timeline::run(&args)
            }
            Command::Plan(args) => {
                telemetry::start(&self.log, "warn")?;
                plan::run(&args)
            }
            Command::Review(args) => {
                telemetry::start(&self.log, "warn")?;
                review::run(&args)
            }
            Command::Explain(args) => {
                telemetry::start(&self.log, "warn")?;
                explain::run(&args)
            }
            Command::Replay(args) => {
                telemetry::start(&self.log, "warn")?;
                replay::run(&args)
            }
            Command::Simulate(args) => {
                telemetry::start(&self.log, "warn")?;
                simulate::run(&args)
            }
        }
    }
}

/// Runs a server until it ends by itself or by a signal.
///
/// `start` gets the token that the first SIGTERM or SIGINT cancels, and returns when everything
/// that it started has ended.
#[cfg(feature = "cluster")]
pub fn serve<F>(
    log: &telemetry::Args,
    start: impl FnOnce(tokio_util::sync::CancellationToken) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    use anyhow::Context as _;

    telemetry::start(log, "info")?;
    telemetry::log_build();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let token = crate::shutdown::on_signal().context("cannot listen to signals")?;
        start(token).await
    });
    // What still runs now was told to stop and did not: it does not hold up the process.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}

/// Runs a command that talks to the cluster and ends.
#[cfg(feature = "cluster")]
fn ask<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    use anyhow::Context as _;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("failed to start")?.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn kubectl_finds_the_same_commands() {
        let parse = |name: &str| Cli::from_args(vec![name.into(), "crd".into(), "--stdout".into()]);
        assert!(matches!(parse("/usr/bin/sluice").unwrap().command, Command::Crd(_)));
        assert!(matches!(parse("/usr/bin/kubectl-sluice").unwrap().command, Command::Crd(_)));

        let help = |name: &str| {
            Cli::from_args(vec![name.into(), "--help".into()]).unwrap_err().to_string()
        };
        assert!(help("kubectl-sluice").contains("kubectl sluice"));
        assert!(!help("sluice").contains("kubectl"));
    }

    #[test]
    fn bad_usage_ends_with_code_2() {
        let code = |args: &[&str]| {
            let args = args.iter().map(Into::into).collect();
            Cli::from_args(args).unwrap_err().exit_code()
        };
        assert_eq!(code(&["sluice", "no-such-command"]), 2);
        assert_eq!(code(&["sluice"]), 2);
        assert_eq!(code(&["sluice", "crd", "--log", "sluice=loud"]), 2);
    }
}
