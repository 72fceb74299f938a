//! Programs that a person would type: kubectl, helm, cluster.sh.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// What a program said.
pub(crate) struct Output {
    /// How it ended: by an exit status or by a signal.
    pub(crate) status: ExitStatus,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// The checkout.
pub(crate) fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A call of the harness. Inside a cluster, it is about that one.
pub(crate) fn cluster_sh() -> Command {
    Command::new(repository().join("tests/cluster/cluster.sh"))
}

/// Runs a program and gives what it said, success or not.
pub(crate) async fn output(program: &str, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments);
    collect(command, "").await
}

/// Runs a program that must succeed, and gives its standard output.
pub(crate) async fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    succeed(command, "").await
}

/// kubectl, which reads that text.
pub(crate) async fn kubectl_with(arguments: &[&str], input: &str) -> Result<Output> {
    let mut command = Command::new("kubectl");
    command.args(arguments);
    collect(command, input).await
}

/// `kubectl apply -f -`.
pub(crate) async fn apply(manifest: &str) -> Result<Output> {
    kubectl_with(&["apply", "-f", "-"], manifest).await
}

/// A call of the harness that must succeed.
pub(crate) async fn harness(arguments: &[&str]) -> Result<String> {
    let mut command = cluster_sh();
    command.args(arguments);
    succeed(command, "").await
}

async fn succeed(command: Command, input: &str) -> Result<String> {
    let what = format!("{:?}", command.as_std());
    let output = collect(command, input).await?;
    if !output.status.success() {
        bail!("{what} failed, {}:\n{}{}", output.status, output.stdout, output.stderr);
    }
    Ok(output.stdout)
}

async fn collect(mut command: Command, input: &str) -> Result<Output> {
    let what = format!("{:?}", command.as_std());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("starting {what}"))?;
    let mut stdin = child.stdin.take().context("standard input is piped")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = tokio::time::timeout(Duration::from_secs(300), child.wait_with_output())
        .await
        .with_context(|| format!("{what} takes more than five minutes"))??;
    Ok(Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
