//! What a person asks who wonders: `sluice explain` against the cluster, and the leader's records
//! through `kubectl port-forward`, replayed and explained without the cluster.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::Value;
use sluice::api::names::LEASE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::pods;
use crate::support::{SYSTEM, Scenario, command};

/// Where the controller answers `/debug/snapshot`, on loopback: the default of `--debug-address`.
const DEBUG_PORT: &str = "10263";

pub(crate) async fn why_a_large_waits(s: &Scenario) -> Result<()> {
    s.drains_for_big(&["s-1", "s-2"]).await?;

    let asked = explain(s, "big", &["-n", &s.namespace]).await?;
    says_what_must_end(s, &asked)?;

    let text = snapshot().await?;
    let file = s.folder.join("snapshot.jsonl");
    std::fs::write(&file, &text).context("keeping the snapshot")?;
    let file = file.to_str().context("the folder's name is text")?;
    let replayed = command::run(env!("CARGO_BIN_EXE_sluice"), &["replay", file]).await?;
    ensure!(replayed.contains("the same decisions"), "sluice replay says:\n{replayed}");
    let offline = explain(s, "big", &["-n", &s.namespace, "--snapshot", file]).await?;
    says_what_must_end(s, &offline)?;

    s.finish(&["s-1", "s-2"]).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await?;
    s.finish(&["late"]).await
}

/// The explanation as JSON of a pod of this scenario.
async fn explain(s: &Scenario, name: &str, from: &[&str]) -> Result<Value> {
    let arguments = [&["explain", name, "-o", "json"], from].concat();
    let text = command::run(env!("CARGO_BIN_EXE_sluice"), &arguments).await?;
    let value: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(value["pod"] == format!("{}/{name}", s.namespace), "another pod: {text}");
    Ok(value)
}

/// The first of the larges, held by the very pods that run, for the reason of its condition.
fn says_what_must_end(s: &Scenario, explained: &Value) -> Result<()> {
    let (reason, _) =
        s.look(|view| view.pod("big").and_then(pods::waits_because)).context("why it waits")?;
    ensure!(explained["reason"] == reason, "not {reason}: {explained:#}");
    let waits = &explained["waits"];
    ensure!(waits["place"] == 1 && waits["of"] == 1, "not the first of one: {explained:#}");
    let first = &waits["first"][0];
    ensure!(first["kind"] == "Ends" && first["enough"] == "All", "{explained:#}");
    for name in ["s-1", "s-2"] {
        let pod = format!("{}/{name}", s.namespace);
        let listed = first["pods"].as_array().into_iter().flatten().any(|one| one["pod"] == pod);
        ensure!(listed, "{pod} must end first: {explained:#}");
    }
    Ok(())
}

/// The leader's records, as docs/records.md says to fetch them.
async fn snapshot() -> Result<String> {
    let client = kube::Client::try_default().await?;
    let lease = Api::<Lease>::namespaced(client, SYSTEM).get(LEASE).await?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).context("nobody leads")?;
    // The pod's own address must not answer: what goes to it passes no check of rights.
    let around =
        format!("/api/v1/namespaces/{SYSTEM}/pods/{holder}:{DEBUG_PORT}/proxy/debug/snapshot");
    let around = command::output("kubectl", &["get", "--raw", &around]).await?;
    ensure!(!around.status.success(), "answered at the pod's address:\n{}", around.stdout);

    let forward = command::Forward::start(SYSTEM, &format!("pod/{holder}"), DEBUG_PORT).await?;
    let mut stream = TcpStream::connect(forward.address()).await.context("the forwarded port")?;
    let request = format!("GET /debug/snapshot HTTP/1.0\r\nHost: {}\r\n\r\n", forward.address());
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.context("reading the answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    ensure!(head.starts_with("HTTP/1.0 200"), "{answer}");
    Ok(body.to_owned())
}
