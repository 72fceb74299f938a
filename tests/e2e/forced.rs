//! Pods deleted by force: neither the API server nor kubelet's `PodResources` tells that their
//! containers still live. A GPU is free when the container that held it is gone from the node.

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt;
use serde_json::json;
use sluice::api::NodePhase;

use crate::support::command;
use crate::support::fault::{Watched, processes};
use crate::support::pods::{self, Draft, large, small, smalls};
use crate::support::scenario::{names, refs};
use crate::support::{GPUS, NODE, Scenario};

fn stubborn(name: &str) -> Draft {
    small(name).ignores_sigterm().spec(json!({"terminationGracePeriodSeconds": 30}))
}

/// Deletes it by force, waits until its process has really ended, and gives that moment.
async fn delete_by_force(s: &Scenario, name: &str) -> Result<u64> {
    let word = format!("/e2e/release/{name}");
    let pids = processes(&["--until-file", &word])?;
    let [pid] = pids[..] else { anyhow::bail!("{name} has the processes {pids:?}") };
    let process = Watched::new(pid)?;
    let uid = s.look(|view| view.pod(name).and_then(ResourceExt::uid)).context("its UID")?;
    let words = ["delete", "pod", name, "-n", &s.namespace, "--force", "--grace-period=0"];
    command::run("kubectl", &words).await?;
    let gone = s
        .until(&format!("{name} is gone from the API"), |view| view.history(name)?.gone_ms)
        .await?;
    s.until("the node agent is asked to look for its containers", |view| {
        let history = view.state.ledger(NODE)?;
        history
            .first(|node| node.status.as_ref().is_some_and(|s| s.releasing.contains(&uid)))
            .map(|_| ())
    })
    .await?;
    let ended = process.ended().await?;
    ensure!(
        ended > gone,
        "the container died {} ms before its pod was gone, so this showed nothing",
        gone - ended
    );
    // Nobody was left to write this line from inside.
    let record = json!({
        "event": "end", "pod": format!("{}/{name}", s.namespace), "uid": uid, "time_ms": ended,
    });
    std::fs::write(s.folder.join("records/by-force.jsonl"), format!("{record}\n"))?;
    Ok(ended)
}

/// Nothing was let go, nor started, before that moment.
fn not_before(s: &Scenario, name: &str, ended: u64) -> Result<()> {
    s.look(|view| {
        let history = view.history(name).context("it is there")?;
        let free = history.first(|pod| !pods::gated(pod)).context("it was let go")?;
        // The process is seen to end a moment after it did; the write is seen after it was made.
        ensure!(
            free.at_ms >= ended,
            "{name} was let go {} ms before the container had ended",
            ended - free.at_ms
        );
        let (start, _) = view.started(name).context("it started")?;
        ensure!(start >= ended, "{name} started {} ms too early", ended - start);
        Ok(())
    })
}

pub(crate) async fn the_large_waits_for_the_container(s: &Scenario) -> Result<()> {
    s.create(stubborn("stubborn")).await?;
    s.running(&["stubborn"]).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    let ended = delete_by_force(s, "stubborn").await?;
    s.running(&["big"]).await?;
    not_before(s, "big", ended)?;
    s.finish(&["big"]).await
}

pub(crate) async fn the_next_small_waits_for_the_container(s: &Scenario) -> Result<()> {
    s.create(stubborn("stubborn")).await?;
    let others = names("s", GPUS - 1);
    s.create_all(smalls(&others)).await?;
    s.running(&["stubborn"]).await?;
    s.running(&refs(&others)).await?;
    s.create(small("next")).await?;
    s.waiting(&["next"]).await?;
    let ended = delete_by_force(s, "stubborn").await?;
    s.running(&["next"]).await?;
    not_before(s, "next", ended)?;
    s.finish(&["next"]).await?;
    s.finish(&refs(&others)).await
}
