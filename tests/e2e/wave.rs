//! Phase fairness: after a large, if both queues hold work, one bounded wave of smalls.

use anyhow::{Context as _, Result, ensure};
use sluice::api::NodePhase;

use crate::support::Scenario;
use crate::support::pods::{self, large, small, smalls};
use crate::support::scenario::{View, names, refs, sees_all};
use crate::support::{GPUS, NODE};

/// The order of the first write that lets a pod go.
fn let_go(view: &View<'_>, name: &str) -> Result<u64> {
    view.order(name, |pod| !pods::gated(pod)).with_context(|| format!("{name} was never let go"))
}

fn ended(view: &View<'_>, name: &str) -> Result<u64> {
    view.order(name, pods::terminal).with_context(|| format!("{name} has not ended"))
}

pub(crate) async fn twelve_smalls_between_two_larges(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    let all = names("s", 12);
    s.create_all(smalls(&all)).await?;
    s.waiting(&refs(&all)).await?;
    s.create(large("second")).await?;
    s.waiting(&["second"]).await?;
    s.finish(&["first"]).await?;

    let (wave, rest) = all.split_at(GPUS);
    s.running(&refs(wave)).await?;
    s.until("the ledger shows a full wave", |view| {
        let ledger = view.ledger(NODE)?;
        let wave = ledger.wave.as_ref()?;
        (ledger.phase == NodePhase::Wave && wave.admitted == 8 && wave.size == 8).then_some(())
    })
    .await?;
    // Half of it ends: its GPUs stay idle for the second large.
    s.finish(&refs(&wave[..GPUS / 2])).await?;
    s.until("half of the GPUs are idle behind the closed gate", |view| {
        (view.ledger(NODE)?.free.len() == GPUS / 2).then_some(())
    })
    .await?;
    s.look(|view| {
        for name in rest.iter().map(String::as_str).chain(["second"]) {
            let pod = view.pod(name).context("it is there")?;
            ensure!(pods::gated(pod), "{name} is free to go during the wave");
        }
        Ok(())
    })?;
    s.finish(&refs(&wave[GPUS / 2..])).await?;
    s.running(&["second"]).await?;
    s.look(|view| sees_all(view.started("second").context("started")?.1))?;
    s.finish(&["second"]).await?;
    s.running(&refs(rest)).await?;
    s.finish(&refs(rest)).await?;

    s.look(|view| {
        let first_end = ended(view, "first")?;
        let second_go = let_go(view, "second")?;
        let second_end = ended(view, "second")?;
        for name in wave {
            ensure!(let_go(view, name)? > first_end, "{name} was let go beside the first large");
            ensure!(ended(view, name)? < second_go, "the second large was let go beside {name}");
        }
        for name in rest {
            ensure!(let_go(view, name)? > second_end, "{name} was let go before its turn");
        }
        Ok(())
    })
}

/// A wave is what waits when it begins: who comes later waits for the large behind it.
pub(crate) async fn a_short_wave_closes(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    s.create_all(vec![small("w-1"), small("w-2"), small("w-3")]).await?;
    s.create(large("second")).await?;
    s.waiting(&["w-1", "w-2", "w-3", "second"]).await?;
    s.finish(&["first"]).await?;
    s.running(&["w-1", "w-2", "w-3"]).await?;
    s.phase(NodePhase::Wave).await?;
    s.create(small("late")).await?;
    s.waiting(&["late"]).await?;
    s.finish(&["w-1", "w-2", "w-3"]).await?;
    s.running(&["second"]).await?;
    s.finish(&["second"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.look(|view| {
        ensure!(let_go(view, "late")? > ended(view, "second")?, "the late small joined the wave");
        Ok(())
    })
}
