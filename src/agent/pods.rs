//! Cluster side: the pods bound to this node, as the API server has them.
//!
//! Kubelet's pod resources API names a pod and not its UID; a cgroup is named after the UID and
//! says no name. This watch joins the two, and tells which pods have ended.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::holders::{PodFacts, PodIndex, PodName};
use super::ledger::rewatch;
use super::metrics::Metrics;

/// How long a watch lasts before it is renewed, and so how long a dead one goes unnoticed.
const WATCH_SECS: u32 = 60;
/// Annotation of a static pod's mirror object: the UID that kubelet works with. Kubelet's own name.
const MANIFEST_UID: &str = "kubernetes.io/config.hash";

/// Follows the pods of a node until shutdown.
pub(super) async fn follow(
    client: Client,
    node: String,
    index: watch::Sender<Arc<PodIndex>>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let config =
        watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH_SECS);
    let mut events = watcher(Api::<Pod>::all(client), config).backoff(rewatch(&node)).boxed();
    let mut listed = PodIndex::new();
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.try_next() => event,
        };
        match event {
            Ok(Some(watcher::Event::Init)) => listed.clear(),
            Ok(Some(watcher::Event::InitApply(pod))) => listed.extend(facts(&pod)),
            Ok(Some(watcher::Event::InitDone)) => {
                replace(&index, std::mem::take(&mut listed));
            }
            Ok(Some(watcher::Event::Apply(pod))) => {
                let mut pods = PodIndex::clone(&index.borrow());
                pods.extend(facts(&pod));
                replace(&index, pods);
            }
            Ok(Some(watcher::Event::Delete(pod))) => {
                let mut pods = PodIndex::clone(&index.borrow());
                if let Some((name, gone)) = facts(&pod)
                    && pods.get(&name).is_some_and(|facts| facts.uid == gone.uid)
                {
                    pods.remove(&name);
                }
                replace(&index, pods);
            }
            // The watcher starts anew by itself, after a growing wait.
            Err(error) => {
                tracing::warn!(node, %error, "cannot watch the pods of this node");
                metrics.api_error("watch_pods");
            }
            Ok(None) => return,
        }
    }
}

/// Publishes only what differs: most changes of a pod's status are none to the agent.
fn replace(index: &watch::Sender<Arc<PodIndex>>, pods: PodIndex) {
    index.send_if_modified(|known| {
        let differs = **known != pods;
        if differs {
            *known = Arc::new(pods);
        }
        differs
    });
}

fn facts(pod: &Pod) -> Option<(PodName, PodFacts)> {
    let uid = pod.uid()?;
    let name = PodName { namespace: pod.namespace()?, name: pod.name_any() };
    let cgroup_uid = pod.annotations().get(MANIFEST_UID).unwrap_or(&uid).clone();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let finished = matches!(phase, Some("Succeeded" | "Failed"));
    Some((name, PodFacts { uid, cgroup_uid, finished }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_pods_cgroup_is_named_after_its_manifest() {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "u1" },
            "status": { "phase": "Running" },
        }))
        .expect("a pod");
        let (name, found) = facts(&pod).expect("facts");
        assert_eq!((name.namespace.as_str(), name.name.as_str()), ("ns", "a"));
        assert_eq!((found.cgroup_uid.as_str(), found.finished), ("u1", false));

        pod.annotations_mut().insert(MANIFEST_UID.to_owned(), "hash".to_owned());
        pod.status.as_mut().expect("status").phase = Some("Failed".to_owned());
        let (_, found) = facts(&pod).expect("facts");
        assert_eq!((found.uid.as_str(), found.cgroup_uid.as_str()), ("u1", "hash"));
        assert!(found.finished);
    }
}
