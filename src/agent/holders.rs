//! Cluster side, pure: which pod's containers hold which GPU, and when they are gone.
//!
//! Kubelet's pod resources API says who was given what, but it forgets a pod that is deleted by
//! force while its containers go on for seconds. A GPU is therefore kept for its last holder until
//! the holder's cgroup shows that nothing of it is left. Time and what the cgroups show come in as
//! values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::cgroup::Containers;
use crate::api::{GpuStatus, PodRef};

/// How long a pod that never showed a process has to be absent before it counts as gone.
///
/// Kubelet makes a pod's cgroup some time after it has decided to start it. A pod deleted in that
/// moment is in no list and has no cgroup, and may still start a container before kubelet hears of
/// the deletion. The start path from admission to the cgroup takes tens of milliseconds; two
/// seconds leave a wide margin on a node under load.
pub const SETTLE: Duration = Duration::from_secs(2);

/// A pod's name, which is all that the pod resources API says about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What the API server says about a pod bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// UID of the pod object.
    pub uid: String,
    /// UID after which kubelet names the cgroup: that of the manifest for a static pod.
    pub cgroup_uid: String,
    /// Whether it has ended: phase `Succeeded` or `Failed`.
    pub finished: bool,
}

/// Pods bound to this node, by name.
pub type PodIndex = BTreeMap<PodName, PodFacts>;

/// A pod that kubelet lists, with its GPUs if it has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPod {
    /// Its name.
    pub pod: PodName,
    /// Ids of its GPUs.
    pub gpus: BTreeSet<String>,
}

/// One look at the node.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The pods that kubelet lists.
    pub listed: &'a [ListedPod],
    /// What the API server says about the pods of the node.
    pub pods: &'a PodIndex,
    /// UIDs that the controller asks about, gone from the API server, and their pods' names where
    /// the ledger has them.
    pub releasing: &'a BTreeMap<String, Option<PodName>>,
    /// When the look was taken, as a span since the agent started.
    pub now: Duration,
}

/// Kubelet's list with UIDs in place of names.
#[derive(Debug, Default)]
struct Resolved {
    by_gpu: BTreeMap<String, Holder>,
    uids: BTreeSet<String>,
    /// Pods whose UID is not known.
    unknown: BTreeSet<PodName>,
    /// Whether one of them has GPUs.
    unknown_with_gpus: bool,
}

impl Resolved {
    /// Whether kubelet lists the pod, or one that could be it.
    fn may_list(&self, uid: &str, name: Option<&PodName>) -> bool {
        self.uids.contains(uid)
            || name.map_or(self.unknown_with_gpus, |name| self.unknown.contains(name))
    }
}

/// What a look leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Kubelet lists pods that the API server has not shown yet.
    pub unresolved: bool,
    /// GPUs are kept for pods that kubelet does not list any more.
    pub lingering: bool,
    /// GPUs that kubelet gave to a second pod while containers of the first still lived.
    pub overlaps: Vec<Overlap>,
}

/// Two pods on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The GPU.
    pub gpu: String,
    /// Whose containers still live.
    pub before: PodRef,
    /// Whom kubelet gave it to.
    pub now: PodRef,
}

/// The pod that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The pod.
    pub pod: PodRef,
    /// UID after which its cgroup is named.
    pub cgroup_uid: String,
    /// Whether kubelet lists the pod.
    pub listed: bool,
    /// Whether a process of it was ever seen.
    ran: bool,
    absent_since: Option<Duration>,
}

/// Who holds what, and which pods are known to be gone.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    by_gpu: BTreeMap<String, Holder>,
    released: BTreeSet<String>,
    /// Of the pods asked about: since when nothing shows them.
    absent_since: BTreeMap<String, Duration>,
    /// Of the pods asked about: those of which a process was seen.
    ran: BTreeSet<String>,
    /// Since when kubelet lists a pod that the API server does not show.
    unresolved_since: BTreeMap<PodName, Duration>,
}

/// A look at a pod's cgroup, by the UID that names it.
pub type Look<'a> = dyn FnMut(&str) -> Containers + 'a;

impl Holders {
    /// The holder of each GPU.
    pub fn by_gpu(&self) -> &BTreeMap<String, Holder> {
        &self.by_gpu
    }

    /// Pods asked about of which nothing is left.
    pub fn released(&self) -> &BTreeSet<String> {
        &self.released
    }

    /// Takes in what an earlier run of the agent reported. What this run has seen counts more.
    pub fn restore(&mut self, gpus: &[GpuStatus], released: &[String]) {
        for gpu in gpus {
            let Some(pod) = &gpu.holder else { continue };
            self.by_gpu.entry(gpu.id.clone()).or_insert_with(|| Holder {
                pod: pod.clone(),
                cgroup_uid: pod.uid.clone(),
                listed: false,
                ran: false,
                absent_since: None,
            });
        }
        self.released.extend(released.iter().cloned());
    }

    /// Takes in one look at the node.
    pub fn observe(&mut self, sighting: Sighting<'_>, look: &mut Look<'_>) -> Open {
        let mut seen: BTreeMap<String, Containers> = BTreeMap::new();
        let mut look = |uid: &str| *seen.entry(uid.to_owned()).or_insert_with(|| look(uid));
        for holder in self.by_gpu.values_mut().filter(|holder| !holder.ran) {
            holder.ran = look(&holder.cgroup_uid) == Containers::Alive;
        }
        for holder in self.by_gpu.values().filter(|holder| holder.ran) {
            if sighting.releasing.contains_key(&holder.pod.uid) {
                self.ran.insert(holder.pod.uid.clone());
            }
        }
        let resolved = self.resolve(sighting);
        let overlaps = self.take_listed(&resolved.by_gpu, &mut look);
        self.drop_absent(&resolved, sighting, &mut look);
        self.answer_releasing(&resolved, sighting, &mut look);
        let lingering = self.by_gpu.values().any(|holder| !holder.listed);
        Open { unresolved: resolved.unknown_with_gpus, lingering, overlaps }
    }

    fn resolve(&mut self, sighting: Sighting<'_>) -> Resolved {
        let mut resolved = Resolved::default();
        let mut unresolved_since = BTreeMap::new();
        for ListedPod { pod, gpus } in sighting.listed {
            let facts = sighting.pods.get(pod);
            // Kubelets before 1.34 list pods that have ended; their containers are dead.
            if facts.is_some_and(|facts| facts.finished) {
                continue;
            }
            let known = facts
                .map(|facts| (facts.uid.clone(), facts.cgroup_uid.clone()))
                .or_else(|| gpus.iter().find_map(|gpu| self.remembered(gpu, pod)));
            if let Some((uid, _)) = &known {
                resolved.uids.insert(uid.clone());
            } else {
                resolved.unknown.insert(pod.clone());
                resolved.unknown_with_gpus |= !gpus.is_empty();
                let since = *self.unresolved_since.get(pod).unwrap_or(&sighting.now);
                unresolved_since.insert(pod.clone(), since);
                if sighting.now.saturating_sub(since) < SETTLE {
                    continue;
                }
            }
            // After a while a GPU must not look free, whoever the pod is.
            let (uid, cgroup_uid) = known.unwrap_or_default();
            let PodName { namespace, name } = pod.clone();
            let pod = PodRef { namespace, name, uid };
            let holder = Holder { pod, cgroup_uid, listed: true, ran: false, absent_since: None };
            resolved.by_gpu.extend(gpus.iter().map(|gpu| (gpu.clone(), holder.clone())));
        }
        self.unresolved_since = unresolved_since;
        resolved
    }

    fn remembered(&self, gpu: &str, pod: &PodName) -> Option<(String, String)> {
        let holder = self.by_gpu.get(gpu)?;
        let same = holder.pod.namespace == pod.namespace && holder.pod.name == pod.name;
        (same && !holder.pod.uid.is_empty())
            .then(|| (holder.pod.uid.clone(), holder.cgroup_uid.clone()))
    }

    /// Kubelet's word about a GPU that it lists goes before what is remembered.
    fn take_listed(
        &mut self,
        listed: &BTreeMap<String, Holder>,
        look: &mut dyn FnMut(&str) -> Containers,
    ) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for (gpu, holder) in listed {
            let mut holder = holder.clone();
            match self.by_gpu.get(gpu) {
                Some(before) if before.pod.uid == holder.pod.uid => holder.ran = before.ran,
                // The same name under another UID is more likely a read that mixed old and new,
                // which the next look puts right.
                Some(before)
                    if before.pod.name != holder.pod.name
                        && look(&before.cgroup_uid) == Containers::Alive =>
                {
                    overlaps.push(Overlap {
                        gpu: gpu.clone(),
                        before: before.pod.clone(),
                        now: holder.pod.clone(),
                    });
                }
                Some(_) | None => {}
            }
            self.by_gpu.insert(gpu.clone(), holder);
        }
        overlaps
    }

    /// Lets go of GPUs whose holder kubelet does not list and of which nothing is left.
    fn drop_absent(
        &mut self,
        resolved: &Resolved,
        sighting: Sighting<'_>,
        look: &mut dyn FnMut(&str) -> Containers,
    ) {
        self.by_gpu.retain(|gpu, holder| {
            if resolved.by_gpu.contains_key(gpu) {
                return true;
            }
            // Kubelet lists the pod without this GPU: it was never its own.
            if resolved.uids.contains(&holder.pod.uid) || holder.pod.uid.is_empty() {
                return false;
            }
            holder.listed = false;
            let finished =
                sighting.pods.values().any(|facts| facts.uid == holder.pod.uid && facts.finished);
            match look(&holder.cgroup_uid) {
                Containers::Alive => {
                    holder.ran = true;
                    holder.absent_since = None;
                    true
                }
                Containers::Unknown => true,
                Containers::Gone if holder.ran || finished => false,
                Containers::Empty if finished => false,
                Containers::Gone | Containers::Empty => {
                    let since = *holder.absent_since.get_or_insert(sighting.now);
                    sighting.now.saturating_sub(since) < SETTLE
                }
            }
        });
    }

    /// Answers the controller's question about pods that are gone from the API server.
    fn answer_releasing(
        &mut self,
        resolved: &Resolved,
        sighting: Sighting<'_>,
        look: &mut dyn FnMut(&str) -> Containers,
    ) {
        let Sighting { releasing, now, .. } = sighting;
        self.released.retain(|uid| releasing.contains_key(uid));
        self.absent_since.retain(|uid, _| releasing.contains_key(uid));
        self.ran.retain(|uid| releasing.contains_key(uid));
        for (uid, name) in releasing {
            let held = self.by_gpu.values().find(|holder| &holder.pod.uid == uid);
            let containers = look(held.map_or(uid, |holder| &holder.cgroup_uid));
            if containers == Containers::Alive {
                self.ran.insert(uid.clone());
            }
            if containers == Containers::Alive || resolved.uids.contains(uid) {
                self.released.remove(uid);
            }
            let nothing_left = matches!(containers, Containers::Gone | Containers::Empty);
            if resolved.may_list(uid, name.as_ref()) || !nothing_left {
                self.absent_since.remove(uid);
                continue;
            }
            let since = *self.absent_since.entry(uid.clone()).or_insert(now);
            // Kubelet removes a pod's cgroup when it is done with the pod, so for one that was
            // seen alive nothing is left to wait for.
            let proven = containers == Containers::Gone && self.ran.contains(uid);
            if proven || now.saturating_sub(since) >= SETTLE {
                self.released.insert(uid.clone());
                self.by_gpu.retain(|_, holder| &holder.pod.uid != uid);
            }
        }
    }
}

#[cfg(test)]
#[path = "holders_tests.rs"]
mod tests;
