//! Pods that go round Sluice: counted, named, waited for.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Binding, Pod};
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::json;
use sluice::api::{NodePhase, ReservationKind};

use crate::support::pods::{Draft, large, small, unlabelled};
use crate::support::scenario::View;
use crate::support::world::History;
use crate::support::{GPUS, NODE, Scenario};

/// The message of a condition of the pool, if it has that status.
fn condition(view: &View<'_>, kind: &str, status: &str) -> Option<String> {
    let condition = view.pool()?.conditions.iter().find(|one| one.type_ == kind)?;
    (condition.status == status).then(|| condition.message.clone())
}

/// An Event with that reason is about the object of that name and kind, and names the pod.
fn event(view: &View<'_>, kind: &str, name: &str, pod: &str) -> Option<()> {
    view.state
        .events
        .values()
        .map(History::last)
        .find(|event| {
            let about = &event.involved_object;
            about.kind.as_deref() == Some(kind)
                && about.name.as_deref() == Some(name)
                && event.type_.as_deref() == Some("Warning")
                && event.message.as_deref().is_some_and(|message| message.contains(pod))
        })
        .map(|_| ())
}

/// Runs beside a small; a large waits for both, and the status says why.
async fn counted_and_waited_for(s: &Scenario, foreign: Draft, by_hand: bool) -> Result<()> {
    let name = foreign.name.clone();
    s.create(small("own")).await?;
    s.running(&["own"]).await?;
    s.create(foreign).await?;
    if by_hand {
        bind(s, &name).await?;
    }
    s.running(&[&name]).await?;
    s.until("the foreign pod is counted in ledger and pool", |view| {
        let ledger = view.ledger(NODE)?;
        let foreign = ledger.reservations.iter().find(|one| one.name == name)?;
        (foreign.kind == ReservationKind::Foreign
            && ledger.foreign_gpus == 1
            && ledger.free.len() == GPUS - 2
            && view.pool()?.gpus.foreign == 1)
            .then_some(())
    })
    .await?;
    let message = s.until("condition Bypassed", |view| condition(view, "Bypassed", "True")).await?;
    ensure!(message.contains(&name), "Bypassed does not name the pod: {message}");
    s.until("an Event on the pod", |view| event(view, "Pod", &name, "")).await?;
    s.until("an Event on the pool", |view| event(view, "GpuPool", "default", &name)).await?;
    // The ledger has the very GPU that the container was given.
    s.look(|view| {
        let (_, seen) = view.started(&name).context("started")?;
        let ledger = view.ledger(NODE).context("ledger")?;
        let held = ledger.reservations.iter().find(|one| one.name == name).context("held")?;
        ensure!(held.gpus == seen, "the ledger says {:?}, the container saw {seen:?}", held.gpus);
        Ok(())
    })?;

    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.finish(&["own"]).await?;
    s.until("seven GPUs idle, the gate closed, blocked by the foreign pod", |view| {
        let ledger = view.ledger(NODE)?;
        let drain = ledger.drain.as_ref()?;
        (ledger.free.len() == GPUS - 1
            && drain.blocked_by.len() == 1
            && drain.blocked_by[0].name == name)
            .then_some(())
    })
    .await?;
    // Nothing limits how long the foreign pod runs.
    let message =
        s.until("the bound does not hold", |view| condition(view, "DrainBounded", "False")).await?;
    ensure!(message.contains(&name), "DrainBounded does not name the pod: {message}");
    s.look(|view| {
        ensure!(view.started("big").is_none(), "the large started beside the foreign pod");
        Ok(())
    })?;
    s.finish(&[&name]).await?;
    s.running(&["big"]).await?;
    s.look(|view| {
        let (start, _) = view.started("big").context("started")?;
        let end = view.ended(&name).context("the foreign pod's record of its end")?;
        ensure!(start >= end, "the large ran beside the foreign pod");
        Ok(())
    })?;
    s.until("condition Bypassed is withdrawn", |view| condition(view, "Bypassed", "False")).await?;
    s.finish(&["big"]).await
}

pub(crate) async fn node_name_by_hand(s: &Scenario) -> Result<()> {
    let foreign = unlabelled("direct", 1).spec(json!({"nodeName": NODE}));
    counted_and_waited_for(s, foreign, false).await
}

pub(crate) async fn labelled_with_node_name(s: &Scenario) -> Result<()> {
    let foreign = small("direct").spec(json!({"nodeName": NODE}));
    counted_and_waited_for(s, foreign, false).await
}

pub(crate) async fn another_scheduler(s: &Scenario) -> Result<()> {
    let foreign = unlabelled("elsewhere", 1).spec(json!({"schedulerName": "another"}));
    counted_and_waited_for(s, foreign, true).await
}

/// What another scheduler does: it posts a binding.
async fn bind(s: &Scenario, name: &str) -> Result<()> {
    let uid = s.until("the pod is there", |view| view.pod(name)?.uid()).await?;
    let binding: Binding = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": s.namespace, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }))?;

    let _: serde_json::Value = s
        .api::<Pod>()
        .create_subresource("binding", name, &PostParams::default(), &binding)
        .await?;
    Ok(())
}
