//! Pods that Jobs and Deployments make.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use sluice::api::NodePhase;

use crate::support::pods::{self, Draft, large, small};
use crate::support::records::Record;
use crate::support::scenario::{View, sees_all};
use crate::support::world::History;
use crate::support::{NODE, Scenario, command};

/// Which owner made a pod.
const OWNER: &str = "sluice-e2e/owner";

fn template(s: &Scenario, draft: Draft, owner: &str) -> Result<Value> {
    let folder = s.folder.to_str().context("the folder's name is text")?;
    let mut template = draft.metadata(json!({"labels": {OWNER: owner}})).template(folder);
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    Ok(template)
}

async fn job(s: &Scenario, draft: Draft, parallelism: usize) -> Result<()> {
    let name = draft.name.clone();
    let manifest = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": s.namespace},
        "spec": {
            "parallelism": parallelism,
            "completions": parallelism,
            "backoffLimit": 0,
            "template": template(s, draft, &name)?,
        },
    });
    apply(&manifest).await
}

async fn apply(manifest: &Value) -> Result<()> {
    let output = command::apply(&manifest.to_string()).await?;
    ensure!(output.status.success(), "kubectl apply: {}", output.stderr);
    Ok(())
}

/// The pods of an owner.
fn made_by<'a>(view: &View<'a>, owner: &str) -> Vec<&'a History<Pod>> {
    let of = |pod: &&History<Pod>| pod.last().labels().get(OWNER).is_some_and(|o| o == owner);
    view.histories().filter(of).collect()
}

/// Containers of that owner that started and have not ended, and the GPUs that they saw.
fn running<'a>(view: &View<'a>, owner: &str) -> Vec<&'a [String]> {
    let uids: Vec<String> =
        made_by(view, owner).iter().filter_map(|pod| pod.last().uid()).collect();
    let records = &view.state.records;
    records
        .iter()
        .filter_map(|record| match record {
            Record::Start { uid, gpus, .. } if uids.contains(uid) => Some((uid, gpus.as_slice())),
            _ => None,
        })
        .filter(|(started, _)| {
            !records
                .iter()
                .any(|record| matches!(record, Record::End { uid, .. } if uid == *started))
        })
        .map(|(_, gpus)| gpus)
        .collect()
}

async fn run(s: &Scenario, owner: &str, count: usize) -> Result<()> {
    s.until(&format!("{count} containers of {owner} run"), |view| {
        (running(view, owner).len() == count).then_some(())
    })
    .await
}

async fn complete(s: &Scenario, job: &str) -> Result<()> {
    let job = format!("job/{job}");
    let words = ["wait", "--for=condition=complete", &job, "-n", &s.namespace, "--timeout=60s"];
    command::run("kubectl", &words).await.map(drop)
}

pub(crate) async fn jobs(s: &Scenario) -> Result<()> {
    job(s, small("smalls"), 3).await?;
    run(s, "smalls", 3).await?;
    job(s, large("large"), 1).await?;
    s.phase(NodePhase::Draining).await?;
    job(s, small("more"), 2).await?;
    s.until("the pods of the last job wait, with a reason", |view| {
        let pods = made_by(view, "more");
        let waits = pods.iter().all(|pod| pods::waits_because(pod.last()).is_some());
        (pods.len() == 2 && waits).then_some(())
    })
    .await?;
    s.release("smalls")?;
    complete(s, "smalls").await?;
    run(s, "large", 1).await?;
    s.look(|view| sees_all(running(view, "large").first().context("it runs")?))?;
    s.look(|view| {
        ensure!(running(view, "more").is_empty(), "smalls run beside the large");
        Ok(())
    })?;
    s.release("large")?;
    complete(s, "large").await?;
    run(s, "more", 2).await?;
    s.release("more")?;
    complete(s, "more").await
}

pub(crate) async fn a_deployment(s: &Scenario) -> Result<()> {
    let draft = small("serve").spec(json!({"restartPolicy": "Always"}));
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": s.namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {OWNER: "serve"}},
            "template": template(s, draft, "serve")?,
        },
    });
    apply(&manifest).await?;
    run(s, "serve", 2).await?;
    s.create(large("big")).await?;
    s.phase(NodePhase::Draining).await?;
    scale(s, 0).await?;
    s.running(&["big"]).await?;
    s.look(|view| {
        ensure!(running(view, "serve").is_empty(), "the large runs beside the deployment");
        Ok(())
    })?;
    // What replaces them waits its turn.
    scale(s, 1).await?;
    s.until("the new replica waits, with a reason", |view| {
        made_by(view, "serve")
            .iter()
            .find(|pod| pod.gone_ms.is_none() && pods::waits_because(pod.last()).is_some())
            .map(|_| ())
    })
    .await?;
    s.finish(&["big"]).await?;
    run(s, "serve", 1).await?;
    s.until("seven GPUs are free", |view| (view.ledger(NODE)?.free.len() == 7).then_some(())).await
}

async fn scale(s: &Scenario, replicas: usize) -> Result<()> {
    let replicas = format!("--replicas={replicas}");
    let words = ["scale", "deployment/serve", "-n", &s.namespace, &replicas];
    command::run("kubectl", &words).await.map(drop)
}
