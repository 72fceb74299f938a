//! Parts die, and nothing that runs notices: order and phase survive, the timeline goes on.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use sluice::api::NodePhase;
use sluice::api::names::LEASE;

use crate::support::pods::{self, large, small, smalls};
use crate::support::scenario::{View, names, refs, sees_all};
use crate::support::world::State;
use crate::support::{GPUS, NODE, SYSTEM, Scenario, command, fault};

/// How often the containers of that name, of all of Sluice's own pods, were started anew, if each
/// of them is ready.
fn restarts(state: &State, container: &str) -> Option<i32> {
    let own = state
        .pods
        .values()
        .filter(|pod| pod.gone_ms.is_none() && pod.last().namespace().as_deref() == Some(SYSTEM));
    let mut sum = None;
    for pod in own {
        let status = pod.last().status.as_ref()?;
        let statuses = status.container_statuses.as_deref().unwrap_or_default();
        if let Some(status) = statuses.iter().find(|status| status.name == container) {
            if !status.ready {
                return None;
            }
            *sum.get_or_insert(0) += status.restart_count;
        }
    }
    sum
}

/// SIGKILL to every process of that kind.
struct Killed {
    container: &'static str,
    wanted: i32,
}

impl Killed {
    async fn now(s: &Scenario, container: &'static str) -> Result<Self> {
        let before = s
            .until(&format!("every container {container} is ready"), |view| {
                restarts(view.state, container)
            })
            .await?;
        let killed = fault::kill(container).await?;
        Ok(Self { container, wanted: before + i32::try_from(killed)? })
    }

    async fn back(self, s: &Scenario) -> Result<()> {
        s.until(&format!("every container {} is back", self.container), |view| {
            restarts(view.state, self.container).filter(|now| *now >= self.wanted).map(|_| ())
        })
        .await
    }
}

/// These run undisturbed: started once, never ended.
fn undisturbed(s: &Scenario, names: &[&str]) -> Result<()> {
    s.look(|view| {
        for name in names {
            let pod = view.pod(name).with_context(|| format!("{name} is gone"))?;
            ensure!(pods::phase(pod) == "Running", "{name} is {}", pods::phase(pod));
            ensure!(view.ended(name).is_none(), "{name} has ended");
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
            let restarts = statuses.into_iter().flatten().map(|s| s.restart_count).sum::<i32>();
            ensure!(restarts == 0, "{name} was started again");
        }
        Ok(())
    })
}

fn in_order(view: &View<'_>, first: &str, then: &str, holds: fn(&Pod) -> bool) -> Result<()> {
    let end = view.order(first, pods::terminal).with_context(|| format!("{first} ended"))?;
    let go = view.order(then, holds).with_context(|| format!("{then} was let go"))?;
    ensure!(go > end, "{then} was let go before {first} had ended");
    Ok(())
}

fn let_go(pod: &Pod) -> bool {
    !pods::gated(pod)
}

pub(crate) async fn controller_in_phase_open(s: &Scenario) -> Result<()> {
    let all = names("s", GPUS);
    s.create_all(smalls(&all)).await?;
    s.running(&refs(&all)).await?;
    s.create_all(vec![small("next-1"), small("next-2")]).await?;
    s.waiting(&["next-1", "next-2"]).await?;
    let killed = Killed::now(s, "controller").await?;
    // One ends while nobody looks.
    s.finish(&["s-1"]).await?;
    killed.back(s).await?;
    s.running(&["next-1"]).await?;
    undisturbed(s, &refs(&all[1..]))?;
    s.look(|view| {
        ensure!(view.pod("next-2").is_some_and(pods::gated), "the second of the queue was let go");
        Ok(())
    })?;
    s.finish(&["s-2"]).await?;
    s.running(&["next-2"]).await?;
    s.finish(&refs(&all[2..])).await?;
    s.finish(&["next-1", "next-2"]).await
}

pub(crate) async fn controller_in_phase_draining(s: &Scenario) -> Result<()> {
    s.create_all(vec![small("s-1"), small("s-2")]).await?;
    s.running(&["s-1", "s-2"]).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create_all(vec![small("late"), large("bigger")]).await?;
    s.waiting(&["big", "late", "bigger"]).await?;
    let since = s
        .look(|view| view.ledger(NODE).and_then(|ledger| ledger.phase_since.clone()))
        .context("since when")?;
    let killed = Killed::now(s, "controller").await?;
    s.finish(&["s-1"]).await?;
    killed.back(s).await?;
    s.until("seven GPUs are idle, the gate still closed since then", |view| {
        let ledger = view.ledger(NODE)?;
        (ledger.free.len() == 7
            && ledger.phase == NodePhase::Draining
            && ledger.phase_since.as_ref() == Some(&since))
        .then_some(())
    })
    .await?;
    undisturbed(s, &["s-2"])?;
    s.finish(&["s-2"]).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.running(&["bigger"]).await?;
    s.finish(&["bigger"]).await?;
    s.look(|view| {
        in_order(view, "s-2", "big", let_go)?;
        in_order(view, "big", "late", let_go)?;
        in_order(view, "late", "bigger", let_go)
    })
}

pub(crate) async fn controller_in_phase_exclusive(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    s.create_all(vec![small("w-1"), small("w-2"), large("second")]).await?;
    s.waiting(&["w-1", "w-2", "second"]).await?;
    let killed = Killed::now(s, "controller").await?;
    killed.back(s).await?;
    undisturbed(s, &["first"])?;
    s.phase(NodePhase::Exclusive).await?;
    // Again, and the large ends while nobody looks: the wave is owed all the same.
    let killed = Killed::now(s, "controller").await?;
    s.finish(&["first"]).await?;
    killed.back(s).await?;
    s.running(&["w-1", "w-2"]).await?;
    s.finish(&["w-1", "w-2"]).await?;
    s.running(&["second"]).await?;
    s.look(|view| sees_all(view.started("second").context("started")?.1))?;
    s.finish(&["second"]).await?;
    s.look(|view| {
        in_order(view, "first", "w-1", let_go)?;
        in_order(view, "w-1", "second", let_go)?;
        in_order(view, "w-2", "second", let_go)
    })
}

pub(crate) async fn controller_in_phase_wave(s: &Scenario) -> Result<()> {
    s.create(large("first")).await?;
    s.running(&["first"]).await?;
    let all = names("s", GPUS + 2);
    s.create_all(smalls(&all)).await?;
    s.create(large("second")).await?;
    s.waiting(&refs(&all)).await?;
    s.waiting(&["second"]).await?;
    s.finish(&["first"]).await?;
    let (wave, rest) = all.split_at(GPUS);
    s.running(&refs(wave)).await?;
    let killed = Killed::now(s, "controller").await?;
    s.finish(&refs(&wave[..2])).await?;
    killed.back(s).await?;
    s.until("two GPUs are idle behind the wave, which is still full", |view| {
        let ledger = view.ledger(NODE)?;
        let wave = ledger.wave.as_ref()?;
        (ledger.phase == NodePhase::Wave && ledger.free.len() == 2 && wave.admitted == 8)
            .then_some(())
    })
    .await?;
    undisturbed(s, &refs(&wave[2..]))?;
    s.finish(&refs(&wave[2..])).await?;
    s.running(&["second"]).await?;
    s.finish(&["second"]).await?;
    s.running(&refs(rest)).await?;
    s.finish(&refs(rest)).await?;
    s.look(|view| {
        for name in rest {
            in_order(view, "second", name, let_go)?;
        }
        Ok(())
    })
}

/// Between the write to the ledger and what follows from it.
pub(crate) async fn controller_between_ledger_and_gate(s: &Scenario) -> Result<()> {
    s.create(small("holder")).await?;
    s.running(&["holder"]).await?;
    let uid = s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create(small("late")).await?;
    s.waiting(&["big", "late"]).await?;
    s.release("holder")?;
    s.until("the ledger holds the large's reservation", |view| {
        view.ledger(NODE)?.reservations.iter().find(|one| one.uid == uid).map(|_| ())
    })
    .await?;
    let killed = Killed::now(s, "controller").await?;
    killed.back(s).await?;
    s.running(&["big"]).await?;
    s.finish(&["big"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.look(|view| {
        in_order(view, "holder", "big", let_go)?;
        in_order(view, "big", "late", let_go)
    })
}

async fn leader(s: &Scenario) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(s.client(), SYSTEM);
    let lease = leases.get(LEASE).await?;
    lease.spec.and_then(|spec| spec.holder_identity).context("nobody leads")
}

/// The leader stands still, the other one takes over and decides, then the old one goes on with
/// what it believes: it must not undo or double anything.
pub(crate) async fn frozen_leader(s: &Scenario) -> Result<()> {
    s.create(small("holder")).await?;
    s.running(&["holder"]).await?;
    let uid = s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    s.create_all(vec![small("late-1"), small("late-2")]).await?;
    s.waiting(&["big", "late-1", "late-2"]).await?;
    let old = leader(s).await?;
    let pids = fault::processes(&["controller", &format!("--identity={old}")])?;
    let [pid] = pids[..] else { anyhow::bail!("{old} has the processes {pids:?}") };
    let frozen = fault::Frozen::new(pid)?;
    s.finish(&["holder"]).await?;
    s.until("the other one has reserved the node for the large", |view| {
        view.ledger(NODE)?.reservations.iter().find(|one| one.uid == uid).map(|_| ())
    })
    .await?;
    ensure!(leader(s).await? != old, "the frozen one still leads");
    drop(frozen);
    s.running(&["big"]).await?;
    s.look(|view| sees_all(view.started("big").context("started")?.1))?;
    s.finish(&["big"]).await?;
    s.running(&["late-1", "late-2"]).await?;
    s.finish(&["late-1", "late-2"]).await?;
    s.until("both controllers are ready", |view| restarts(view.state, "controller")).await?;
    s.look(|view| {
        in_order(view, "holder", "big", let_go)?;
        in_order(view, "big", "late-1", let_go)?;
        in_order(view, "big", "late-2", let_go)
    })
}

pub(crate) async fn kubelet_restarted(s: &Scenario) -> Result<()> {
    s.drains_for_big(&["s-1", "s-2"]).await?;
    command::harness(&["restart", "kubelet"]).await?;
    undisturbed(s, &["s-1", "s-2"])?;
    s.finish(&["s-1"]).await?;
    s.until("seven GPUs idle, the gate closed", |view| {
        let ledger = view.ledger(NODE)?;
        (ledger.free.len() == 7 && ledger.phase == NodePhase::Draining).then_some(())
    })
    .await?;
    undisturbed(s, &["s-2"])?;
    s.finish(&["s-2"]).await?;
    s.running(&["big"]).await?;
    s.look(|view| sees_all(view.started("big").context("started")?.1))?;
    s.finish(&["big"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.look(|view| in_order(view, "big", "late", let_go))
}

pub(crate) async fn agent_killed(s: &Scenario) -> Result<()> {
    s.drains_for_big(&["s-1", "s-2"]).await?;
    let killed = Killed::now(s, "agent").await?;
    s.finish(&["s-1"]).await?;
    killed.back(s).await?;
    undisturbed(s, &["s-2"])?;
    s.phase(NodePhase::Draining).await?;
    s.finish(&["s-2"]).await?;
    s.running(&["big"]).await?;
    s.look(|view| sees_all(view.started("big").context("started")?.1))?;
    let killed = Killed::now(s, "agent").await?;
    killed.back(s).await?;
    undisturbed(s, &["big"])?;
    s.phase(NodePhase::Exclusive).await?;
    s.finish(&["big"]).await?;
    s.running(&["late"]).await?;
    s.finish(&["late"]).await?;
    s.look(|view| in_order(view, "big", "late", let_go))
}
