//! Programs that a person would type: kubectl, helm, cluster.sh.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use super::LIMIT;

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

/// `kubectl port-forward`, to a free port of this machine, for as long as it lives.
pub(crate) struct Forward {
    address: String,
    _child: Child,
}

impl Forward {
    /// Forwards to a port of that object; returns when connections are taken.
    pub(crate) async fn start(namespace: &str, object: &str, port: &str) -> Result<Self> {
        let ports = format!(":{port}");
        let mut child = Command::new("kubectl")
            .args(["port-forward", "--address=127.0.0.1", "-n", namespace, object, &ports])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting kubectl port-forward")?;
        let stdout = child.stdout.take().context("standard output is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(LIMIT, lines.next_line()).await;
        let line = line.context("kubectl port-forward says nothing")??.unwrap_or_default();
        let address = line
            .strip_prefix("Forwarding from ")
            .and_then(|rest| rest.split_once(" -> "))
            .map(|(address, _)| address.to_owned());
        let address = address.with_context(|| format!("kubectl port-forward says {line:?}"))?;
        // It goes on to say which connections it handles, and must not wait for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { address, _child: child })
    }

    /// Address and port here.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
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
