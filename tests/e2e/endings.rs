//! However a pod ends, its GPUs come back, and the counters say how. The counters, free GPUs and
//! queues are checked after every scenario, so most of these only bring the ending about.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, Preconditions};
use serde_json::json;
use sluice::api::{NodePhase, ReservationState};

use crate::support::NODE;
use crate::support::Scenario;
use crate::support::pods::{self, large, small};

/// It never got GPUs, was never bound and never started.
async fn never_started(s: &Scenario, name: &str) -> Result<()> {
    s.until(&format!("{name} is gone"), |view| view.history(name)?.gone_ms).await?;
    s.look(|view| {
        let pod = view.history(name).context("it was there")?;
        ensure!(pod.first(pods::admitted).is_none(), "{name} was admitted");
        ensure!(pod.first(|pod| pods::node(pod).is_some()).is_none(), "{name} was bound");
        ensure!(view.started(name).is_none(), "{name} started");
        Ok(())
    })
}

pub(crate) async fn failure(s: &Scenario) -> Result<()> {
    s.create(small("fails").exits(3)).await?;
    s.running(&["fails"]).await?;
    s.create(large("big").exits(4)).await?;
    s.phase(NodePhase::Draining).await?;
    s.create(small("next")).await?;
    s.finish(&["fails"]).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await?;
    s.running(&["next"]).await?;
    s.finish(&["next"]).await?;
    s.look(|view| {
        for name in ["fails", "big"] {
            let phase = view.pod(name).map(pods::phase);
            ensure!(phase == Some("Failed"), "{name} ended as {phase:?}");
        }
        Ok(())
    })
}

pub(crate) async fn deletion_while_queued(s: &Scenario) -> Result<()> {
    s.create(large("holder")).await?;
    s.running(&["holder"]).await?;
    s.create_all(vec![small("cancelled"), large("given-up"), small("patient")]).await?;
    s.waiting(&["cancelled", "given-up", "patient"]).await?;
    s.delete("cancelled").await?;
    s.delete("given-up").await?;
    never_started(s, "cancelled").await?;
    never_started(s, "given-up").await?;
    s.finish(&["holder"]).await?;
    s.running(&["patient"]).await?;
    s.finish(&["patient"]).await?;
    never_started(s, "cancelled").await
}

/// The gate opens in the same decision, and the idle GPUs go to whoever waits.
pub(crate) async fn deletion_while_its_node_drains(s: &Scenario) -> Result<()> {
    s.create(small("holder")).await?;
    s.running(&["holder"]).await?;
    s.create(large("given-up")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create(small("late")).await?;
    s.waiting(&["given-up", "late"]).await?;
    s.delete("given-up").await?;
    s.running(&["late"]).await?;
    s.phase(NodePhase::Open).await?;
    never_started(s, "given-up").await?;
    s.finish(&["holder", "late"]).await
}

pub(crate) async fn deletion_while_running(s: &Scenario) -> Result<()> {
    s.create_all(vec![small("one"), small("other")]).await?;
    s.running(&["one", "other"]).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.delete("one").await?;
    s.until("one of two GPUs came back", |view| (view.ledger(NODE)?.free.len() == 7).then_some(()))
        .await?;
    s.finish(&["other"]).await?;
    s.running(&["big"]).await?;
    s.create(small("next")).await?;
    s.delete("big").await?;
    s.running(&["next"]).await?;
    s.look(|view| {
        let start = view.started("next").context("started")?.0;
        let end = view.ended("big").context("the large's record of its end")?;
        ensure!(start >= end, "the next small ran beside the deleted large");
        Ok(())
    })?;
    s.finish(&["next"]).await
}

/// A running pod is deleted in the moment when it ends by itself: one release, whoever wins.
pub(crate) async fn deletion_as_it_ends(s: &Scenario) -> Result<()> {
    for round in 1..=4 {
        let name = format!("s-{round}");
        s.create(small(&name)).await?;
        s.running(&[&name]).await?;
        if round % 2 == 0 {
            s.release(&name)?;
            s.delete(&name).await?;
        } else {
            s.delete(&name).await?;
            s.release(&name)?;
        }
        s.until(&format!("{name} is gone"), |view| view.history(&name)?.gone_ms).await?;
    }
    Ok(())
}

/// A queued pod is deleted in the moment when GPUs come free for it: it runs, or it never does.
pub(crate) async fn deletion_as_its_gpus_come_free(s: &Scenario) -> Result<()> {
    for round in 1..=3 {
        let (holder, queued) = (format!("holder-{round}"), format!("queued-{round}"));
        s.create(large(&holder)).await?;
        s.running(&[&holder]).await?;
        let uid = s.create(small(&queued)).await?;
        s.waiting(&[&queued]).await?;
        s.release(&holder)?;
        match round {
            // As the holder's end is known, before or after the controller acts on it.
            1 => {
                s.until("the holder has ended", |view| {
                    pods::terminal(view.pod(&holder)?).then_some(())
                })
                .await?;
            }
            // Between the reservation and the binding.
            2 => {
                s.until("GPUs are reserved for the queued pod", |view| {
                    view.ledger(NODE)?.reservations.iter().find(|one| one.uid == uid).map(|_| ())
                })
                .await?;
            }
            // Between the binding and the start.
            _ => {
                s.until("the queued pod is bound", |view| {
                    let ledger = view.ledger(NODE)?;
                    let own = ledger.reservations.iter().find(|one| one.uid == uid)?;
                    (own.state >= ReservationState::Bound).then_some(())
                })
                .await?;
            }
        }
        // By UID, as a careful client does.
        let only = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        s.api::<Pod>().delete(&queued, &params).await?;
        s.until(&format!("{queued} is gone"), |view| view.history(&queued)?.gone_ms).await?;
        s.until("every GPU is free again", |view| {
            (view.ledger(NODE)?.free.len() == 8).then_some(())
        })
        .await?;
    }
    Ok(())
}

pub(crate) async fn deadline_exceeded(s: &Scenario) -> Result<()> {
    s.create(small("endless").spec(json!({"activeDeadlineSeconds": 4}))).await?;
    s.running(&["endless"]).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    // Nobody releases the small: only its limit ends it, as the ledger says beforehand.
    let promised = s
        .until("the ledger says when the node is drained at the latest", |view| {
            view.ledger(NODE)?.drain.as_ref()?.latest_end.clone()
        })
        .await?;
    s.running(&["big"]).await?;
    s.look(|view| {
        let pod = view.pod("endless").context("it is there")?;
        let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
        ensure!(reason == Some("DeadlineExceeded"), "it ended because of {reason:?}");
        let end = view.history("endless").and_then(|pod| pod.first(pods::terminal));
        let end = i64::try_from(end.context("it ended")?.at_ms)?;
        let promised = promised.0.as_millisecond();
        ensure!(end <= promised, "it ended {} ms later than promised", end - promised);
        Ok(())
    })?;
    s.finish(&["big"]).await
}

pub(crate) async fn eviction(s: &Scenario) -> Result<()> {
    s.create_all(vec![small("evicted"), small("stays")]).await?;
    s.running(&["evicted", "stays"]).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.api::<Pod>().evict("evicted", &EvictParams::default()).await?;
    s.until("one GPU came back", |view| (view.ledger(NODE)?.free.len() == 7).then_some(())).await?;
    s.finish(&["stays"]).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await
}
