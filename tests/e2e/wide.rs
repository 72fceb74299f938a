//! Pods of two and of four GPUs beside smalls and larges.

use anyhow::{Context as _, Result, ensure};
use sluice::api::{NodePhase, names};

use crate::support::NODE;
use crate::support::Scenario;
use crate::support::pods::{self, Draft, large, small, smalls, unlabelled, wide};
use crate::support::scenario::{View, distinct, names as numbered, refs, sees_all};

/// These run at once, and each container saw as many GPUs as its pod asks for, no two the same.
fn see(view: &View<'_>, running: &[(&str, usize)]) -> Result<()> {
    let mut seen = Vec::new();
    for (name, asked) in running {
        let (_, gpus) = view.started(name).with_context(|| format!("{name} has not started"))?;
        ensure!(gpus.len() == *asked, "{name} asks for {asked} and saw {gpus:?}");
        ensure!(view.ended(name).is_none(), "{name} has ended");
        let ledger = view.ledger(NODE).context("no ledger")?;
        let held = ledger.reservations.iter().find(|one| one.name == *name);
        let held = held.with_context(|| format!("{name} is not in the ledger"))?;
        let (mut held, mut saw) = (held.gpus.clone(), gpus.to_vec());
        held.sort();
        saw.sort();
        ensure!(held == saw, "{name} saw {saw:?} and the ledger says {held:?}");
        seen.extend(gpus);
    }
    distinct(seen).map(drop)
}

async fn waits(s: &Scenario, name: &str, reason: &str, words: &str) -> Result<()> {
    s.until(&format!("{name} waits: {reason}, {words}"), |view| {
        let (told, message) = view.pod(name).and_then(pods::waits_because)?;
        (told == reason && message.contains(words)).then_some(())
    })
    .await
}

pub(crate) async fn two_and_four_beside_smalls_and_larges(s: &Scenario) -> Result<()> {
    // Six GPUs are held; the pod of two has no label and is given one.
    let all = numbered("s", 4);
    s.create_all(smalls(&all)).await?;
    s.create(unlabelled("two", 2)).await?;
    s.running(&refs(&all)).await?;
    s.running(&["two"]).await?;
    s.look(|view| {
        let label = view.pod("two").and_then(pods::shape);
        ensure!(label == Some(names::SHAPE_WIDE), "two is labelled {label:?}");
        see(view, &[("two", 2), ("s-1", 1), ("s-2", 1), ("s-3", 1), ("s-4", 1)])
    })?;

    // Two are free, which the pod of four gathers: the small behind it gets neither.
    s.create(wide("four", 4)).await?;
    waits(s, "four", "Gathering", "needs 4 of one node: 2 are free there now").await?;
    s.create(small("behind")).await?;
    waits(s, "behind", "Kept", "2 free GPUs").await?;
    s.finish(&["s-1", "s-2"]).await?;
    s.running(&["four"]).await?;
    s.look(|view| see(view, &[("four", 4), ("two", 2), ("s-3", 1), ("s-4", 1)]))?;
    waits(s, "behind", "Busy", "held").await?;

    // The gate closes for a large as behind any small.
    s.create(large("first")).await?;
    s.phase(NodePhase::Draining).await?;
    s.finish(&["two", "s-3", "s-4", "four"]).await?;
    s.running(&["first"]).await?;
    s.look(|view| sees_all(view.started("first").context("started")?.1))?;

    // And a wave admits wide and narrow ones together.
    let wave: Vec<Draft> = vec![wide("w-four", 4), wide("w-two", 2)];
    s.create_all(wave).await?;
    s.waiting(&["w-four", "w-two"]).await?;
    s.create(large("second")).await?;
    s.waiting(&["second"]).await?;
    s.finish(&["first"]).await?;
    s.running(&["behind", "w-four", "w-two"]).await?;
    s.until("the ledger shows a wave of three pods", |view| {
        let ledger = view.ledger(NODE)?;
        let wave = ledger.wave.as_ref()?;
        (ledger.phase == NodePhase::Wave && wave.admitted == 3).then_some(())
    })
    .await?;
    s.look(|view| see(view, &[("behind", 1), ("w-four", 4), ("w-two", 2)]))?;
    s.finish(&["behind", "w-four", "w-two"]).await?;
    s.running(&["second"]).await?;
    s.look(|view| sees_all(view.started("second").context("started")?.1))?;
    s.finish(&["second"]).await
}
