//! Plays a workload on the simulated nodes, and measures it by what the API server told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use sluice::api::names;
use tokio::time::Instant;

use crate::support::world::{History, State};
use crate::support::{Cluster, GPUS, now_ms, pods};
use crate::workload::{Arrival, Workload};

/// After the stream has ended, everything must have run within this.
const DRAIN_LIMIT: Duration = Duration::from_secs(900);

/// What became of one pod.
#[derive(Clone, Debug)]
pub(crate) struct Fate {
    /// Whole-node large, or small.
    pub(crate) large: bool,
    /// When it was created.
    pub(crate) created_ms: u64,
    /// When it had a node.
    pub(crate) bound_ms: Option<u64>,
    /// When it had ended.
    pub(crate) ended_ms: Option<u64>,
    /// Deleted by somebody, or failed.
    pub(crate) killed: bool,
}

impl Fate {
    /// From its creation to its binding.
    pub(crate) fn wait_ms(&self) -> Option<u64> {
        Some(self.bound_ms?.saturating_sub(self.created_ms))
    }
}

/// Plays it; gives the fate of every pod, by creation, and the moment of the beginning.
pub(crate) async fn play(
    cluster: &Arc<Cluster>,
    workload: &Workload,
    namespace: &str,
) -> Result<(Vec<Fate>, u64)> {
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.create(&PostParams::default(), &object).await?;
    let began_ms = now_ms();
    let began = Instant::now();
    let refill =
        tokio::spawn(refill(cluster.clone(), workload_refill(workload), namespace.to_owned()));
    for (number, arrival) in workload.arrivals.iter().enumerate() {
        // The workload goes by the clock; this is not a wait for something to happen.
        tokio::time::sleep_until(began + Duration::from_millis(arrival.at_ms)).await;
        create(cluster, workload, namespace, &format!("p-{number}"), arrival).await?;
    }
    let made = workload.arrivals.len() + refill.await.context("the refill panicked")??;
    cluster
        .world
        .until("every pod of the workload has ended", DRAIN_LIMIT, |state| {
            let ended = of(state, namespace).filter(|pod| ended(pod).is_some()).count();
            (ended >= made).then_some(())
        })
        .await?;
    let mut fates: Vec<Fate> = of(&cluster.world.now(), namespace).map(fate).collect();
    fates.sort_by_key(|fate| fate.created_ms);
    namespaces.delete(namespace, &DeleteParams::default()).await?;
    cluster
        .world
        .until("the workload's pods are gone", DRAIN_LIMIT, |state| {
            of(state, namespace).all(|pod| pod.gone_ms.is_some()).then_some(())
        })
        .await?;
    Ok((fates, began_ms))
}

/// What the refill has to know: until when, and how long each large runs.
struct Refill {
    until_ms: u64,
    began: Instant,
    run_ms: u64,
    longest_small_ms: u64,
}

fn workload_refill(workload: &Workload) -> Option<Refill> {
    Some(Refill {
        until_ms: workload.refill_until_ms?,
        began: Instant::now(),
        run_ms: workload.large_ms,
        longest_small_ms: workload.longest_small_ms,
    })
}

/// Creates a large for each that ends; gives their number.
async fn refill(cluster: Arc<Cluster>, plan: Option<Refill>, namespace: String) -> Result<usize> {
    let Some(plan) = plan else { return Ok(0) };
    let end = plan.began + Duration::from_millis(plan.until_ms);
    let mut made = 0;
    loop {
        let next = cluster.world.until("another large has ended", DRAIN_LIMIT, |state| {
            let larges = of(state, &namespace).filter(|pod| is_large(pod));
            (larges.filter(|pod| ended(pod).is_some()).count() > made).then_some(())
        });
        match tokio::time::timeout_at(end, next).await {
            Err(_) => return Ok(made),
            Ok(next) => next?,
        }
        let arrival = Arrival { at_ms: 0, large: true, run_ms: plan.run_ms };
        let pod = manifest(&format!("r-{made}"), &arrival, plan.longest_small_ms, plan.run_ms);
        submit(&cluster, &namespace, pod).await?;
        made += 1;
    }
}

async fn create(
    cluster: &Cluster,
    workload: &Workload,
    namespace: &str,
    name: &str,
    arrival: &Arrival,
) -> Result<()> {
    let pod = manifest(name, arrival, workload.longest_small_ms, workload.large_ms);
    submit(cluster, namespace, pod).await
}

async fn submit(cluster: &Cluster, namespace: &str, pod: serde_json::Value) -> Result<()> {
    let pod: Pod = serde_json::from_value(pod)?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    api.create(&PostParams::default(), &pod).await?;
    Ok(())
}

fn manifest(name: &str, arrival: &Arrival, small_ms: u64, large_ms: u64) -> serde_json::Value {
    let (shape, gpus, limit_ms) = if arrival.large {
        (names::SHAPE_LARGE, GPUS, large_ms)
    } else {
        (names::SHAPE_SMALL, 1, small_ms)
    };
    json!({
        "metadata": {
            "name": name,
            "labels": {names::LABEL_SHAPE: shape},
            "annotations": {"kwok.test/run-ms": arrival.run_ms.to_string()},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": limit_ms.div_ceil(1000),
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"type": "kwok"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{
                "name": "work",
                "image": "none",
                "resources": {"limits": {names::DEFAULT_RESOURCE: gpus.to_string()}},
            }],
        },
    })
}

fn of<'a>(state: &'a State, namespace: &'a str) -> impl Iterator<Item = &'a History<Pod>> {
    let pods = state.pods.values();
    pods.filter(move |pod| pod.last().metadata.namespace.as_deref() == Some(namespace))
}

fn is_large(pod: &History<Pod>) -> bool {
    pod.last().labels().get(names::LABEL_SHAPE).is_some_and(|shape| shape == names::SHAPE_LARGE)
}

fn ended(pod: &History<Pod>) -> Option<u64> {
    pod.first(pods::terminal).map(|seen| seen.at_ms).or(pod.gone_ms)
}

fn fate(pod: &History<Pod>) -> Fate {
    Fate {
        large: is_large(pod),
        created_ms: pod.versions[0].at_ms,
        bound_ms: pod.first(|pod| pods::node(pod).is_some()).map(|seen| seen.at_ms),
        ended_ms: ended(pod),
        killed: pod.first(|pod| pods::phase(pod) == "Succeeded").is_none(),
    }
}

/// What a workload came to.
pub(crate) struct Measured {
    /// Waits of the larges, in the order of their creation.
    pub(crate) larges_ms: Vec<u64>,
    /// By how much the large furthest over its bound waited longer; negative if none did.
    pub(crate) over_bound_ms: i64,
    /// Waits of the smalls, sorted.
    pub(crate) smalls_ms: Vec<u64>,
    /// Of the GPU time of the stream, the part in which some pod ran.
    pub(crate) utilisation: f64,
    /// Pods that did not end by themselves.
    pub(crate) killed: usize,
}

/// Puts the fates together.
pub(crate) fn measure(workload: &Workload, fates: &[Fate], began_ms: u64) -> Measured {
    let of = |large: bool| fates.iter().filter(move |fate| fate.large == large);
    let mut smalls_ms: Vec<u64> = of(false).filter_map(Fate::wait_ms).collect();
    smalls_ms.sort_unstable();
    Measured {
        larges_ms: of(true).filter_map(Fate::wait_ms).collect(),
        over_bound_ms: over_bound(workload, fates).unwrap_or(i64::MIN),
        smalls_ms,
        utilisation: utilisation(workload, fates, began_ms),
        killed: fates.iter().filter(|fate| fate.killed).count(),
    }
}

/// The k-th waiting large starts within k (L + S), and within S + (k-1) (L + S) if none runs when
/// it arrives. S and L are the limits that the pods carry.
fn over_bound(workload: &Workload, fates: &[Fate]) -> Option<i64> {
    let larges: Vec<&Fate> = fates.iter().filter(|fate| fate.large).collect();
    let (small, both) = (workload.longest_small_ms, workload.longest_small_ms + workload.large_ms);
    let over = |(number, large): (usize, &&Fate)| {
        let at = large.created_ms;
        let waits = |other: &&&Fate| other.bound_ms.is_none_or(|bound| bound > at);
        let runs = |other: &&&Fate| !waits(other) && other.ended_ms.is_none_or(|ended| ended > at);
        let position = larges[..number].iter().filter(waits).count() as u64 + 1;
        let running = larges[..number].iter().any(|other| runs(&other));
        let bound = if running { position * both } else { small + (position - 1) * both };
        Some(large.wait_ms()?.cast_signed() - bound.cast_signed())
    };
    larges.iter().enumerate().filter_map(over).max()
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of some minutes")]
fn utilisation(workload: &Workload, fates: &[Fate], began_ms: u64) -> f64 {
    let end = began_ms + workload.stream_ms;
    let busy: u64 = fates
        .iter()
        .filter_map(|fate| {
            let gpus = if fate.large { GPUS as u64 } else { 1 };
            let to = fate.ended_ms.unwrap_or(end).min(end);
            Some(gpus * to.saturating_sub(fate.bound_ms?))
        })
        .sum();
    busy as f64 / (workload.nodes * GPUS) as f64 / workload.stream_ms as f64
}

/// The value below which that part of the sorted values lies.
pub(crate) fn quantile(sorted: &[u64], part: f64) -> u64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a position in a list of some hundred"
    )]
    let position = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(position - 1).copied().unwrap_or(0)
}

/// Results by workload and scheduler.
pub(crate) type Results = BTreeMap<(&'static str, &'static str), Measured>;
