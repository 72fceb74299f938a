//! What containers see, and what a person sees.

use anyhow::{Context as _, Result, ensure};
use sluice::api::NodePhase;

use crate::support::Scenario;
use crate::support::command;
use crate::support::pods::{self, large, small, smalls};
use crate::support::scenario::{distinct, names, refs, sees_all};
use crate::support::{GPUS, NODE};

pub(crate) async fn eight_smalls_at_once(s: &Scenario) -> Result<()> {
    let all = names("s", GPUS);
    s.create_all(smalls(&all)).await?;
    s.running(&refs(&all)).await?;
    s.look(|view| {
        let started = all.iter().filter_map(|name| view.started(name));
        let seen = distinct(started.flat_map(|(_, gpus)| gpus))?;
        ensure!(seen == GPUS, "eight containers see {seen} GPUs");
        let known: Vec<&String> =
            view.ledger(NODE).context("no ledger")?.gpus.iter().map(|gpu| &gpu.id).collect();
        for name in &all {
            let (_, gpus) = view.started(name).context("started")?;
            ensure!(known.contains(&&gpus[0]), "{name} sees {gpus:?}, which the node has not");
            ensure!(view.ended(name).is_none(), "{name} ended before the last had started");
        }
        anyhow::Ok(())
    })?;
    // The ledger says the same as the containers, pod by pod.
    s.until("the ledger's holders are what the containers saw", |view| {
        let ledger = view.ledger(NODE)?;
        all.iter()
            .all(|name| {
                let seen = view.started(name).map(|(_, gpus)| gpus);
                let held = ledger.reservations.iter().find(|one| one.name == *name);
                let holder = ledger.gpus.iter().find(|gpu| {
                    gpu.holder.as_ref().is_some_and(|holder| {
                        holder.name == *name && holder.namespace == s.namespace
                    })
                });
                seen.is_some()
                    && held.map(|one| one.gpus.as_slice()) == seen
                    && holder.map(|gpu| std::slice::from_ref(&gpu.id)) == seen
            })
            .then_some(())
    })
    .await?;
    s.finish(&refs(&all)).await
}

pub(crate) async fn larges_and_smalls_see_their_gpus(s: &Scenario) -> Result<()> {
    s.create(large("l")).await?;
    s.running(&["l"]).await?;
    s.look(|view| sees_all(view.started("l").context("started")?.1))?;
    s.phase(NodePhase::Exclusive).await?;
    s.create(small("s")).await?;
    s.waiting(&["s"]).await?;
    s.finish(&["l"]).await?;
    s.running(&["s"]).await?;
    s.look(|view| {
        let (from, gpus) = view.started("s").context("started")?;
        ensure!(gpus.len() == 1, "a small saw {gpus:?}");
        let end = view.ended("l").context("the large's record of its end")?;
        ensure!(from >= end, "the small started {} ms before the large ended", end - from);
        Ok(())
    })?;
    s.finish(&["s"]).await
}

/// `kubectl get gpool,gnode` tells by itself what goes on, and a waiting pod says why it waits.
pub(crate) async fn kubectl_get_tells(s: &Scenario) -> Result<()> {
    s.drains_for_big(&["holder"]).await?;
    s.until("the pool's status counts both queues", |view| {
        let pool = view.pool()?;
        (pool.small.queue.depth == 1 && pool.whole_node_large.queue.depth == 1).then_some(())
    })
    .await?;
    let nodes = command::run("kubectl", &["get", "gnode"]).await?;
    for word in ["PHASE", "SINCE", "FREE", "DRAINED-BY", NODE, "Draining", "7/8", "big"] {
        ensure!(nodes.contains(word), "`kubectl get gnode` does not say {word}:\n{nodes}");
    }
    let pools = command::run("kubectl", &["get", "gpool"]).await?;
    let head = format!("{}/big", s.namespace);
    for word in ["PHASE", "FREE", "SMALLS", "LARGES", "HEAD", "WAITS", "Draining 1", "7/8", &head] {
        ensure!(pools.contains(word), "`kubectl get gpool` does not say {word}:\n{pools}");
    }
    let wide =
        command::run("kubectl", &["get", "pod", "big", "-o", "wide", "-n", &s.namespace]).await?;
    ensure!(wide.contains("SchedulingGated"), "the large is not gated:\n{wide}");
    ensure!(wide.contains(NODE), "the large is not nominated to its node:\n{wide}");
    let explained = command::run("kubectl", &["explain", "gpunode.status.drain"]).await?;
    for word in ["latestEnd", "blockedBy", "When the last holder ends at the latest"] {
        ensure!(explained.contains(word), "`kubectl explain` does not say {word}:\n{explained}");
    }
    s.look(|view| {
        for name in ["big", "late"] {
            let (reason, message) = view.pod(name).and_then(pods::waits_because).context("why")?;
            let camel = reason.chars().all(|c| c.is_ascii_alphanumeric());
            ensure!(camel && message.len() > 20, "{name} waits: {reason}: {message}");
        }
        Ok(())
    })?;
    s.finish(&["holder"]).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await?;
    s.finish(&["late"]).await
}
