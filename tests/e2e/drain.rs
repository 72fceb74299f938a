//! The drain gate: what runs finishes, its GPUs stay idle, and the large starts on all of them.

use anyhow::{Context as _, Result, ensure};
use sluice::api::NodePhase;

use crate::support::Scenario;
use crate::support::pods::{self, large, small, smalls};
use crate::support::scenario::{names, refs, sees_all};
use crate::support::{GPUS, NODE};

pub(crate) async fn gpus_stay_idle_for_the_large(s: &Scenario) -> Result<()> {
    let all = names("s", GPUS);
    s.create_all(smalls(&all)).await?;
    s.running(&refs(&all)).await?;
    s.create(large("l")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create(small("late")).await?;
    s.waiting(&["l", "late"]).await?;

    for (number, name) in all.iter().enumerate() {
        s.look(|view| {
            for name in ["l", "late"] {
                let pod = view.pod(name).context("it is there")?;
                ensure!(pods::gated(pod), "{name} is free to go with {number} GPUs idle");
            }
            Ok(())
        })?;
        s.finish(&[name]).await?;
        if number + 1 < GPUS {
            s.until(&format!("{} GPUs idle, the gate closed", number + 1), |view| {
                let ledger = view.ledger(NODE)?;
                (ledger.phase == NodePhase::Draining && ledger.free.len() == number + 1)
                    .then_some(())
            })
            .await?;
        }
    }
    s.running(&["l"]).await?;
    s.look(|view| sees_all(view.started("l").context("started")?.1))?;
    s.look(|view| {
        let late = view.pod("late").context("late")?;
        ensure!(pods::gated(late), "the late small is free to go while the large runs");
        Ok(())
    })?;
    s.finish(&["l"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;

    s.look(|view| {
        let last_end = view.order(&all[GPUS - 1], pods::terminal).context("the eighth ended")?;
        let large_free = view.order("l", |pod| !pods::gated(pod)).context("large ungated")?;
        ensure!(large_free > last_end, "the large was let go before the eighth small had ended");
        let nominated = view.order("l", |pod| pods::nominated(pod) == Some(NODE));
        ensure!(
            nominated.is_some_and(|at| at < large_free),
            "the large was not nominated to its node while that drained"
        );
        let large_end = view.order("l", pods::terminal).context("the large ended")?;
        let late_free = view.order("late", |pod| !pods::gated(pod)).context("late ungated")?;
        ensure!(late_free > large_end, "the late small was let go before the large had ended");
        let (start, _) = view.started("late").context("late started")?;
        let end = view.ended("l").context("the large's record of its end")?;
        ensure!(start >= end, "the late small ran while the large did");
        Ok(())
    })
}

pub(crate) async fn a_large_on_an_idle_node_starts_at_once(s: &Scenario) -> Result<()> {
    s.create(large("l")).await?;
    s.running(&["l"]).await?;
    s.look(|view| sees_all(view.started("l").context("started")?.1))?;
    s.look(|view| {
        let history = view.state.ledger(NODE).context("ledger")?;
        let since = view.history("l").context("l")?.versions[0].version;
        let drained = history
            .versions
            .iter()
            .filter(|seen| seen.version > since)
            .filter_map(|seen| seen.object.status.as_ref())
            .any(|status| status.phase == NodePhase::Draining);
        ensure!(!drained, "an idle node was drained");
        Ok(())
    })?;
    s.finish(&["l"]).await
}
