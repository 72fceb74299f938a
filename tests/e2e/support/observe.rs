//! The watches that feed the world.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use sluice::api::{GpuNode, GpuPool};
use tokio::sync::{oneshot, watch};

use super::now_ms;
use super::world::{Histories, History, Seen, State};

/// Between two attempts to list or watch: short, as tests wait for it.
struct Quickly;

impl Iterator for Quickly {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(200))
    }
}

impl Backoff for Quickly {
    fn reset(&mut self) {}
}

/// Starts all watches; returns when pods have been listed.
pub(super) async fn spawn(client: &Client, state: &watch::Sender<State>) -> Result<()> {
    let (listed, pods_listed) = oneshot::channel();
    tokio::spawn(follow::<Pod>(
        client.clone(),
        state.clone(),
        |state| &mut state.pods,
        Some(listed),
    ));
    tokio::spawn(follow::<Event>(client.clone(), state.clone(), |state| &mut state.events, None));
    tokio::spawn(follow::<GpuNode>(client.clone(), state.clone(), |state| &mut state.nodes, None));
    tokio::spawn(follow::<GpuPool>(client.clone(), state.clone(), |state| &mut state.pools, None));
    tokio::time::timeout(Duration::from_secs(30), pods_listed)
        .await
        .context("pods could not be listed in 30 s")?
        .context("the watch of pods ended")
}

async fn follow<K>(
    client: Client,
    state: watch::Sender<State>,
    select: fn(&mut State) -> &mut Histories<K>,
    mut listed: Option<oneshot::Sender<()>>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().timeout(60);
    let mut events = watcher(Api::<K>::all(client), config).backoff(Quickly).boxed();
    let mut present = Vec::new();
    while let Some(event) = events.next().await {
        // An error is retried; if it stays, the scenarios that miss its objects fail.
        let Ok(event) = event else { continue };
        state.send_modify(|state| {
            let histories = select(state);
            match event {
                watcher::Event::Init => present.clear(),
                watcher::Event::InitApply(object) => {
                    present.extend(object.uid());
                    add(histories, object, false);
                }
                watcher::Event::InitDone => {
                    for (uid, history) in histories.iter_mut() {
                        if !present.contains(uid) {
                            history.gone_ms.get_or_insert_with(now_ms);
                        }
                    }
                    if let Some(listed) = listed.take() {
                        let _ = listed.send(());
                    }
                }
                watcher::Event::Apply(object) => add(histories, object, false),
                watcher::Event::Delete(object) => add(histories, object, true),
            }
        });
    }
}

fn add<K: Resource>(histories: &mut Histories<K>, object: K, gone: bool) {
    let (Some(uid), Some(version)) = (object.uid(), version(&object)) else { return };
    let at_ms = now_ms();
    let history =
        histories.entry(uid).or_insert_with(|| History { versions: Vec::new(), gone_ms: None });
    if history.versions.last().is_none_or(|last| last.version < version) {
        history.versions.push(Seen { at_ms, version, object: Arc::new(object) });
    }
    if gone {
        history.gone_ms.get_or_insert(at_ms);
    }
}

fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}
