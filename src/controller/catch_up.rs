//! Cluster side: waits until the stores show at least what a consistent read shows.
//!
//! A watch may trail the last leader's writes. Before a ledger is built upon, every object's names
//! and versions are listed from the API server's store itself (no resource version given, which
//! asks for the most recent), and the watch must have come at least that far.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::reflector::{Lookup, Store};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Context;
use super::stores::Stores;
use super::unreadable::Faults;
use crate::translate::pod::version;

/// How long one list may take.
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// How long the watches may take to come up to a list before it is made anew: an object that was
/// deleted meanwhile never comes.
const CATCH_LIMIT: Duration = Duration::from_secs(1);
/// Lists that may be missed in a row before it is complained of.
const MISSES: u32 = 5;
/// Pause after a list that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Objects of one page of a list.
const PAGE: u32 = 500;

/// Returns once the stores have caught up.
pub(super) async fn catch_up(context: &Context) {
    let mut changed = context.stores.changed();
    let mut misses = 0;
    loop {
        match Newest::list(&context.client).await {
            Ok(newest) => {
                newest.reached(context, &mut changed).await;
                let Some((kind, object)) = newest.missing(&context.stores) else { return };
                misses += 1;
                debug!(kind, object, "the watches trail a consistent list, which is made anew");
                if misses % MISSES == 0 {
                    warn!(kind, object, misses, "cannot lead: the watch does not show an object");
                }
            }
            Err(error) => {
                warn!(%error, "cannot list what the watches should show");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Why a list failed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("failed to list {0}")]
    Api(&'static str, #[source] kube::Error),
    #[error("no complete list of {0} within {LIST_LIMIT:?}")]
    TimedOut(&'static str),
}

/// Versions by namespace, name and UID.
type Versions = BTreeMap<(String, String, String), u64>;

/// The newest version of each object.
struct Newest {
    pods: Versions,
    nodes: Versions,
    ledgers: Versions,
    pools: Versions,
}

impl Newest {
    async fn list(client: &Client) -> Result<Self, ListError> {
        let (ledgers, pods, nodes, pools) = tokio::try_join!(
            list::<crate::api::GpuNode>(client, "gpunodes"),
            list::<k8s_openapi::api::core::v1::Pod>(client, "pods"),
            list::<k8s_openapi::api::core::v1::Node>(client, "nodes"),
            list::<crate::api::GpuPool>(client, "gpupools"),
        )?;
        Ok(Self { pods, nodes, ledgers, pools })
    }

    /// Waits until the stores have come up to this, a while.
    async fn reached(&self, context: &Context, changed: &mut watch::Receiver<u64>) {
        let all = async {
            loop {
                changed.borrow_and_update();
                if self.missing(&context.stores).is_none() || changed.changed().await.is_err() {
                    return;
                }
            }
        };
        // Whether it has come so far is looked at again.
        let _ = tokio::time::timeout(CATCH_LIMIT, all).await;
    }

    /// An object that the stores do not show, or in an older version, and its kind.
    fn missing(&self, stores: &Stores) -> Option<(&'static str, String)> {
        let faults = |kind| stores.unreadable(kind);
        None.or_else(|| {
            let of = "gpunodes";
            Some((of, missing(&stores.gpu_nodes, &faults(of), &self.ledgers)?))
        })
        .or_else(|| Some(("pods", missing(&stores.pods, &faults("pods"), &self.pods)?)))
        .or_else(|| Some(("nodes", missing(&stores.nodes, &faults("nodes"), &self.nodes)?)))
        .or_else(|| {
            let of = "gpupools";
            Some((of, missing(&stores.pools, &faults(of), &self.pools)?))
        })
    }
}

/// The first object that a store does not show as new as it is. One that cannot be read was seen
/// all the same: it must not keep everything else from being looked after.
fn missing<K>(store: &Store<K>, unreadable: &Faults, newest: &Versions) -> Option<String>
where
    K: Resource + Lookup + Clone + 'static,
    <K as Lookup>::DynamicType: std::hash::Hash + Eq + Clone,
{
    let objects = store.state();
    let mut seen: Versions = objects.iter().map(|object| entry(object.meta())).collect();
    for ((namespace, name), fault) in unreadable {
        seen.insert((namespace.clone(), name.clone(), fault.uid.clone()), fault.version);
    }
    let trails = |(key, version): &(&_, &u64)| seen.get(*key).is_none_or(|seen| seen < *version);
    let ((namespace, name, _), _) = newest.iter().find(trails)?;
    Some(if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") })
}

fn entry(meta: &kube::api::ObjectMeta) -> ((String, String, String), u64) {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let key = (text(&meta.namespace), text(&meta.name), text(&meta.uid));
    (key, version(meta.resource_version.as_deref()))
}

async fn list<K>(client: &Client, kind: &'static str) -> Result<Versions, ListError>
where
    K: Resource + Clone + Debug,
    K::DynamicType: Default,
{
    let pages = async {
        let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
        let mut versions = Versions::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&params).await.map_err(|error| ListError::Api(kind, error))?;
            versions.extend(page.items.iter().map(|object| entry(&object.metadata)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(versions),
            }
        }
    };
    let timed = tokio::time::timeout(LIST_LIMIT, pages).await;
    timed.unwrap_or(Err(ListError::TimedOut(kind)))
}
