//! Everything that was seen so far, each version of each object with the moment when it came, and
//! the one way to wait: until what was seen satisfies a condition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Client, ResourceExt as _};
use sluice::api::{GpuNode, GpuPool};
use tokio::sync::watch;

use super::records::Record;
use super::{observe, report};

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct Seen<K> {
    /// When it reached this process.
    pub(crate) at_ms: u64,
    /// Its resource version: one counter for the whole store, so versions of different objects
    /// tell which write came first.
    pub(crate) version: u64,
    /// The object.
    pub(crate) object: Arc<K>,
}

/// All versions of one object, the oldest first.
#[derive(Clone, Debug)]
pub(crate) struct History<K> {
    /// Never empty.
    pub(crate) versions: Vec<Seen<K>>,
    /// Set once it was deleted: when.
    pub(crate) gone_ms: Option<u64>,
}

impl<K> History<K> {
    /// The newest version.
    pub(crate) fn last(&self) -> &K {
        &self.versions.last().expect("a history begins with a version").object
    }

    /// The first version for which that holds.
    pub(crate) fn first(&self, holds: impl Fn(&K) -> bool) -> Option<&Seen<K>> {
        self.versions.iter().find(|seen| holds(&seen.object))
    }
}

/// Objects by UID.
pub(crate) type Histories<K> = BTreeMap<String, History<K>>;

/// Everything that was seen.
#[derive(Default)]
pub(crate) struct State {
    /// Pods of every namespace.
    pub(crate) pods: Histories<Pod>,
    /// Ledgers.
    pub(crate) nodes: Histories<GpuNode>,
    /// Pools.
    pub(crate) pools: Histories<GpuPool>,
    /// Events of every namespace.
    pub(crate) events: Histories<Event>,
    /// What containers of the present scenario wrote.
    pub(crate) records: Vec<Record>,
}

impl State {
    /// The ledger of that node as it is now, if there is one.
    pub(crate) fn ledger(&self, name: &str) -> Option<&History<GpuNode>> {
        alive(&self.nodes, name)
    }

    /// The default pool as it is now.
    pub(crate) fn pool(&self) -> Option<&History<GpuPool>> {
        alive(&self.pools, "default")
    }
}

fn alive<'a, K: kube::Resource>(all: &'a Histories<K>, name: &str) -> Option<&'a History<K>> {
    all.values().find(|one| one.gone_ms.is_none() && one.last().name_any() == name)
}

/// The watches, and what they saw.
pub(crate) struct World {
    state: watch::Sender<State>,
}

impl World {
    /// Starts the watches; returns when pods have been listed.
    pub(crate) async fn start(client: &Client) -> Result<Self> {
        let (state, _) = watch::channel(State::default());
        observe::spawn(client, &state).await?;
        Ok(Self { state })
    }

    /// What was seen up to now.
    pub(crate) fn now(&self) -> watch::Ref<'_, State> {
        // A sender's borrow: later changes wait while it is held, so it must not live long.
        self.state.borrow()
    }

    /// Where the reader of the containers' records puts them.
    pub(crate) fn sink(&self) -> watch::Sender<State> {
        self.state.clone()
    }

    /// Waits until `find` finds something in what was seen; when the limit runs out, tells what
    /// the cluster looks like.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&State) -> Option<T>,
    ) -> Result<T> {
        let mut changes = self.state.subscribe();
        let found = tokio::time::timeout(limit, async {
            loop {
                if let Some(found) = find(&changes.borrow_and_update()) {
                    return found;
                }
                changes.changed().await.expect("this world holds a sender");
            }
        })
        .await;
        if let Ok(found) = found {
            return Ok(found);
        }
        let state = report::cluster(self).await;
        Err(anyhow!("not within {} s: {what}\n{state}", limit.as_secs()))
    }
}
