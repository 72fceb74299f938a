//! Two latencies of the control plane, on the real node with its node agent.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::support::pods::{self, Draft};
use crate::support::world::{History, State};
use crate::support::{Cluster, LIMIT, check};

const NAMESPACE: &str = "latency";

/// Sorted samples in milliseconds.
pub(crate) struct Latency {
    /// From a small's creation on an idle node to its binding.
    pub(crate) small_ms: Vec<u64>,
    /// From the last small's terminal status to the large's binding.
    pub(crate) large_ms: Vec<u64>,
}

/// Takes so many samples of each.
pub(crate) async fn measure(cluster: &Arc<Cluster>, samples: usize) -> Result<Latency> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &object).await?;
    let mut latency = Latency { small_ms: Vec::new(), large_ms: Vec::new() };
    for number in 0..samples {
        let (small, large) = sample(cluster, number).await?;
        latency.small_ms.push(small);
        latency.large_ms.push(large);
        if (number + 1) % 10 == 0 {
            eprintln!("latency: {} of {samples} samples", number + 1);
        }
    }
    latency.small_ms.sort_unstable();
    latency.large_ms.sort_unstable();
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    Ok(latency)
}

/// On an idle node a small is bound at once; a large waits for its end, and is bound.
async fn sample(cluster: &Arc<Cluster>, number: usize) -> Result<(u64, u64)> {
    check::idle(cluster, "before a sample").await?;
    let (small, large) = (format!("small-{number}"), format!("large-{number}"));
    create(cluster, pods::small(&small), 2).await?;
    let begin = at(cluster, &small, "is created", |_| true).await?;
    let bound = at(cluster, &small, "is bound", |pod| pods::node(pod).is_some()).await?;
    create(cluster, pods::large(&large), 0).await?;
    at(cluster, &large, "has its node drained", |pod| pods::nominated(pod).is_some()).await?;
    let ended = at(cluster, &small, "has ended", pods::terminal).await?;
    let started = at(cluster, &large, "is bound", |pod| pods::node(pod).is_some()).await?;
    at(cluster, &large, "has ended", pods::terminal).await?;
    Ok((bound - begin, started.saturating_sub(ended)))
}

async fn create(cluster: &Cluster, draft: Draft, seconds: u32) -> Result<()> {
    let mut pod = draft.template("/run");
    pod["spec"]["containers"][0]["args"] = json!(["--seconds", seconds.to_string()]);
    let pod: Pod = serde_json::from_value(pod)?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &pod).await.context("creating a pod")?;
    Ok(())
}

/// When that pod first was so, as the watch told.
async fn at(cluster: &Cluster, name: &str, what: &str, holds: fn(&Pod) -> bool) -> Result<u64> {
    cluster
        .world
        .until(&format!("{name} {what}"), LIMIT, |state| {
            pod(state, name)?.first(holds).map(|seen| seen.at_ms)
        })
        .await
}

fn pod<'a>(state: &'a State, name: &str) -> Option<&'a History<Pod>> {
    state.pods.values().find(|pod| {
        let metadata = &pod.last().metadata;
        metadata.namespace.as_deref() == Some(NAMESPACE) && metadata.name.as_deref() == Some(name)
    })
}
