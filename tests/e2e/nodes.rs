//! Two nodes, the second a simulated one without a node agent: only the chosen node's gate closes.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use sluice::api::NodePhase;

use crate::support::pods::{self, Draft, large, small};
use crate::support::scenario::{View, sees_all};
use crate::support::{GPUS, NODE, Scenario, command};

/// Name of the simulated node.
const SECOND: &str = "kwok-0";

/// May go to either node.
fn anywhere(draft: Draft) -> Draft {
    draft.spec(json!({"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}))
}

/// May go to that node only.
fn only_on(draft: Draft, node: &str) -> Draft {
    anywhere(draft).spec(json!({"nodeSelector": {"kubernetes.io/hostname": node}}))
}

async fn with_second_node<F>(s: &Scenario, body: F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let outcome = async {
        command::harness(&["kwok-nodes", "1"]).await?;
        s.until("the second node has its ledger, all free", |view| {
            (view.ledger(SECOND)?.free.len() == GPUS).then_some(())
        })
        .await?;
        body.await
    }
    .await;
    let gone = async {
        s.until("nothing holds a GPU of the second node", |view| {
            let held = view.ledger(SECOND).is_some_and(|ledger| !ledger.reservations.is_empty());
            (!held).then_some(())
        })
        .await?;
        command::harness(&["kwok-nodes", "0"]).await?;
        s.until("the second node's ledger is gone", |view| {
            view.ledger(SECOND).is_none().then_some(())
        })
        .await
    }
    .await;
    outcome.and(gone)
}

/// Phase `Running` on that node: what the simulated node says, which runs no container.
async fn runs_on(s: &Scenario, name: &str, node: &str) -> Result<()> {
    s.until(&format!("{name} runs on {node}"), |view| {
        let pod = view.pod(name)?;
        (pods::phase(pod) == "Running" && pods::node(pod) == Some(node)).then_some(())
    })
    .await
}

/// In all that was seen of a node, it was in one phase only.
fn always(view: &View<'_>, node: &str, phase: NodePhase, since: u64) -> Result<()> {
    let history = view.state.ledger(node).context("its ledger")?;
    let later = history.versions.iter().filter(|seen| seen.version > since);
    for status in later.filter_map(|seen| seen.object.status.as_ref()) {
        ensure!(status.phase == phase, "{node} was in phase {:?}", status.phase);
    }
    Ok(())
}

pub(crate) async fn only_the_chosen_gate_closes(s: &Scenario) -> Result<()> {
    with_second_node(s, async {
        let short = json!({"activeDeadlineSeconds": 600});
        let long = json!({"activeDeadlineSeconds": 800});
        for name in ["here-1", "here-2"] {
            s.create(only_on(small(name), NODE).spec(short.clone())).await?;
        }
        for name in ["there-1", "there-2"] {
            s.create(only_on(small(name), SECOND).spec(long.clone())).await?;
        }
        s.running(&["here-1", "here-2"]).await?;
        runs_on(s, "there-1", SECOND).await?;
        runs_on(s, "there-2", SECOND).await?;

        // Both nodes could be drained; the real one is empty earlier at the latest.
        s.create(anywhere(large("big"))).await?;
        s.phase(NodePhase::Draining).await?;
        s.create(anywhere(small("late"))).await?;
        runs_on(s, "late", SECOND).await?;
        s.create(only_on(small("bound-here"), NODE)).await?;
        s.waiting(&["big", "bound-here"]).await?;
        s.finish(&["here-1"]).await?;
        s.look(|view| {
            ensure!(view.pod("bound-here").is_some_and(pods::gated), "it slipped through the gate");
            Ok(())
        })?;
        s.finish(&["here-2"]).await?;
        s.running(&["big"]).await?;
        s.look(|view| {
            sees_all(view.started("big").context("started")?.1)?;
            let from = view.history("big").context("big")?.versions[0].version;
            always(view, SECOND, NodePhase::Open, from)
        })?;
        s.finish(&["big"]).await?;
        s.running(&["bound-here"]).await?;
        s.finish(&["bound-here"]).await?;
        for name in ["there-1", "there-2", "late"] {
            s.delete(name).await?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn an_empty_node_takes_the_large(s: &Scenario) -> Result<()> {
    with_second_node(s, async {
        s.create(only_on(small("here"), NODE)).await?;
        s.running(&["here"]).await?;
        s.create(anywhere(large("big"))).await?;
        runs_on(s, "big", SECOND).await?;
        s.look(|view| {
            let from = view.history("big").context("big")?.versions[0].version;
            always(view, NODE, NodePhase::Open, from)
        })?;
        // The gate of the first node is open all the while.
        s.create(small("beside")).await?;
        s.running(&["beside"]).await?;
        s.delete("big").await?;
        s.finish(&["here", "beside"]).await
    })
    .await
}
