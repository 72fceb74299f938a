//! Cluster side: what the API server says, kept up to date in memory by one watch per kind.
//!
//! Every replica keeps the stores, the leader as well as the one that only answers the extender.
//! Consumers read whole states and compare; nobody relies on seeing each event, because a watch
//! that was interrupted skips some.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Lookup, Store};
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

use super::unreadable::{Faults, Sieve, Unreadable};
use crate::api::{GpuNode, GpuPool};
use crate::metrics::Metrics;

/// A watch call ends and begins anew after this long, so that a connection that died without a
/// word is noticed: a scheduler must not rest on a view that has stopped moving.
const WATCH_SECS: u32 = 60;
/// Terminal pods whose objects are gone that are remembered, the latest ones.
const LAST_WORDS_MAX: usize = 4_096;

/// The watches ended, or never became complete.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A watch task ended.
    #[error("the watch of {0} ended")]
    Ended(&'static str),
    /// Not every first list came in time.
    #[error("no complete list of {0} within {1:?}: check the API server and the role's rules")]
    NotSynced(String, Duration),
}

/// What the API server says of everything that Sluice looks at.
#[derive(Clone)]
pub struct Stores {
    /// Every pod, stripped of what nobody here reads.
    pub pods: Store<Pod>,
    /// Every node.
    pub nodes: Store<Node>,
    /// Every ledger.
    pub gpu_nodes: Store<GpuNode>,
    /// Every pool.
    pub pools: Store<GpuPool>,
    signal: Signal,
    synced: BTreeMap<&'static str, watch::Receiver<bool>>,
    last_words: LastWords,
    unreadable: Unreadable,
}

impl Stores {
    /// Starts the watches as tasks of `tasks`. None of them ends by itself; one that does must end
    /// the process, since its store would stand still.
    pub fn start(client: &Client, metrics: &Metrics, tasks: &mut JoinSet<StoreError>) -> Self {
        let signal = Signal::new(0);
        let last_words = LastWords::default();
        let mut synced = BTreeMap::new();
        let unreadable = Unreadable::default();
        let mut start = Starter {
            client,
            metrics,
            signal: &signal,
            synced: &mut synced,
            unreadable: &unreadable,
            tasks,
        };
        let words = last_words.clone();
        let pods = start.kind::<Pod>("pods", strip_pod, move |pod| words.remember(pod));
        let nodes = start.kind::<Node>("nodes", strip_node, |_| {});
        let gpu_nodes = start.kind::<GpuNode>("gpunodes", |_| {}, |_| {});
        let pools = start.kind::<GpuPool>("gpupools", |_| {}, |_| {});
        Self { pods, nodes, gpu_nodes, pools, signal, synced, last_words, unreadable }
    }

    /// Objects of a kind, named by its plural, that are there and cannot be read.
    pub(super) fn unreadable(&self, kind: &str) -> Faults {
        self.unreadable.of(kind)
    }

    /// A receiver that is marked changed after every change of any store.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.signal.subscribe()
    }

    /// The kinds whose first list has not come yet.
    pub fn missing(&self) -> Vec<&'static str> {
        let missing = self.synced.iter().filter(|(_, synced)| !*synced.borrow());
        missing.map(|(&kind, _)| kind).collect()
    }

    /// Whether every first list has come.
    pub fn synced(&self) -> bool {
        self.missing().is_empty()
    }

    /// Waits until every first list has come.
    pub async fn wait_synced(&self, limit: Duration) -> Result<(), StoreError> {
        let all = async {
            for (&kind, synced) in &self.synced {
                let mut synced = synced.clone();
                synced.wait_for(|&done| done).await.map_err(|_| StoreError::Ended(kind))?;
            }
            Ok(())
        };
        let timed = tokio::time::timeout(limit, all).await;
        timed.unwrap_or_else(|_| Err(StoreError::NotSynced(self.missing().join(", "), limit)))
    }

    /// The last state of a pod whose object is gone, if it was a terminal phase and is still
    /// remembered. A convenience: whoever does not find a pod here must find out otherwise.
    pub fn last_words(&self, uid: &str) -> Option<Arc<Pod>> {
        self.last_words.lock().by_uid.get(uid).cloned()
    }
}

/// "Something changed", for any number of waiters.
type Signal = watch::Sender<u64>;

/// Pods that were seen deleted in a terminal phase. The phase is kubelet's word that the
/// containers are gone, which the object's absence is not.
#[derive(Clone, Default)]
struct LastWords {
    inner: Arc<Mutex<LastWordsInner>>,
}

#[derive(Default)]
struct LastWordsInner {
    by_uid: BTreeMap<String, Arc<Pod>>,
    order: VecDeque<String>,
}

impl LastWords {
    fn lock(&self) -> MutexGuard<'_, LastWordsInner> {
        // Each change leaves the map whole, so a panic elsewhere does not spoil it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, pod: &Pod) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let (Some("Succeeded" | "Failed"), Some(uid)) = (phase, pod.metadata.uid.clone()) else {
            return;
        };
        let mut inner = self.lock();
        if inner.by_uid.insert(uid.clone(), Arc::new(pod.clone())).is_none() {
            inner.order.push_back(uid);
        }
        while inner.order.len() > LAST_WORDS_MAX {
            if let Some(oldest) = inner.order.pop_front() {
                inner.by_uid.remove(&oldest);
            }
        }
    }
}

struct Starter<'a> {
    client: &'a Client,
    metrics: &'a Metrics,
    signal: &'a Signal,
    synced: &'a mut BTreeMap<&'static str, watch::Receiver<bool>>,
    unreadable: &'a Unreadable,
    tasks: &'a mut JoinSet<StoreError>,
}

impl Starter<'_> {
    fn kind<K>(
        &mut self,
        kind: &'static str,
        strip: impl Fn(&mut K) + Send + 'static,
        deleted: impl Fn(&K) + Send + 'static,
    ) -> Store<K>
    where
        K: Resource + Lookup<DynamicType = <K as Resource>::DynamicType>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        <K as Resource>::DynamicType: Default + Eq + Hash + Clone + Send + Sync,
    {
        let (reader, mut writer) = reflector::store::<K>();
        let (synced_tx, synced_rx) = watch::channel(false);
        self.synced.insert(kind, synced_rx);
        let api: Api<DeserializeGuard<K>> = Api::all(self.client.clone());
        let signal = self.signal.clone();
        let mut sieve = Sieve {
            kind,
            store: reader.clone(),
            unreadable: self.unreadable.clone(),
            metrics: self.metrics.clone(),
            listed: Faults::new(),
        };
        self.tasks.spawn(async move {
            let config = Config::default().timeout(WATCH_SECS);
            let stream = watcher::watcher(api, config).default_backoff();
            pin_mut!(stream);
            while let Some(event) = stream.next().await {
                let event = match event {
                    Ok(event) => sieve.pass(event),
                    Err(err) => {
                        warn!(kind, error = %err, "watch interrupted, it is taken up again");
                        continue;
                    }
                };
                let Some(event) = event else {
                    // That an object cannot be read any more is news as well.
                    signal.send_modify(|count| *count += 1);
                    continue;
                };
                let event = modify(event, |object| {
                    object.meta_mut().managed_fields = None;
                    strip(object);
                });
                if let Event::Delete(object) = &event {
                    deleted(object);
                }
                writer.apply_watcher_event(&event);
                match event {
                    Event::Init | Event::InitApply(_) => continue,
                    Event::InitDone => synced_tx.send_replace(true),
                    Event::Apply(_) | Event::Delete(_) => true,
                };
                signal.send_modify(|count| *count += 1);
            }
            StoreError::Ended(kind)
        });
        reader
    }
}

fn modify<K>(mut event: Event<K>, change: impl Fn(&mut K)) -> Event<K> {
    match &mut event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => change(object),
        Event::Init | Event::InitDone => {}
    }
    event
}

/// Drops what takes most of a pod's room and no decision rests on.
fn strip_pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    spec.volumes = None;
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        container.env = None;
        container.env_from = None;
        container.command = None;
        container.args = None;
        container.volume_mounts = None;
        container.liveness_probe = None;
        container.readiness_probe = None;
        container.startup_probe = None;
    }
}

fn strip_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
    }
}
