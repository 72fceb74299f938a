//! The credit of a large's end is never stale: service that nothing held back consumes it.

use anyhow::{Context as _, Result, ensure};
use sluice::api::NodePhase;

use crate::support::Scenario;
use crate::support::pods::{self, large, small, smalls};
use crate::support::scenario::{View, names, refs};
use crate::support::{GPUS, NODE};

/// From a write on, the node never was in phase `Wave`.
fn no_wave_since(view: &View<'_>, version: u64) -> Result<()> {
    let history = view.state.ledger(NODE).context("ledger")?;
    let later = history.versions.iter().filter(|seen| seen.version > version);
    let mut phases = later.filter_map(|seen| seen.object.status.as_ref().map(|s| s.phase));
    ensure!(phases.all(|phase| phase != NodePhase::Wave), "a wave that nobody owed");
    Ok(())
}

/// `before` has ended when `after` is let go.
fn after(view: &View<'_>, before: &str, after: &str) -> Result<()> {
    let end = view.order(before, pods::terminal).with_context(|| format!("{before} ended"))?;
    let go = view.order(after, |pod| !pods::gated(pod)).with_context(|| format!("{after} went"))?;
    ensure!(go > end, "{after} was let go before {before} had ended");
    Ok(())
}

pub(crate) async fn unrestricted_service_consumes_it(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    s.create_all(smalls(&names("early", 3))).await?;
    s.waiting(&["early-1", "early-2", "early-3"]).await?;
    // No large waits: the smalls are served freely, those that come later too.
    s.finish(&["first"]).await?;
    s.running(&["early-1", "early-2", "early-3"]).await?;
    s.phase(NodePhase::Open).await?;
    let more = names("more", GPUS - 3);
    s.create_all(smalls(&more)).await?;
    s.running(&refs(&more)).await?;

    s.create(large("second")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create_all(vec![small("late-1"), small("late-2")]).await?;
    s.waiting(&["second", "late-1", "late-2"]).await?;
    s.finish(&["early-1", "early-2", "early-3"]).await?;
    s.finish(&refs(&more)).await?;
    s.running(&["second"]).await?;
    s.finish(&["second"]).await?;
    s.running(&["late-1", "late-2"]).await?;
    s.finish(&["late-1", "late-2"]).await?;
    s.look(|view| {
        no_wave_since(view, view.history("first").context("first")?.versions[0].version)?;
        after(view, "second", "late-1")?;
        after(view, "second", "late-2")
    })
}

pub(crate) async fn it_does_not_outlive_empty_queues(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    s.finish(&["first"]).await?;
    s.phase(NodePhase::Open).await?;
    s.create(small("s")).await?;
    s.running(&["s"]).await?;
    s.create(large("second")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create(small("late")).await?;
    s.waiting(&["second", "late"]).await?;
    s.finish(&["s"]).await?;
    s.running(&["second"]).await?;
    s.finish(&["second"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.look(|view| {
        no_wave_since(view, view.history("first").context("first")?.versions[0].version)?;
        after(view, "second", "late")
    })
}
