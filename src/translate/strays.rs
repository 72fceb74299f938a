//! Pure: what belongs to no pool: pods that name one that does not exist, ledgers of pools that
//! were deleted, and marks on nodes that left their pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limits::{UNKNOWN_GRACE, VANISHED_MARGIN};
use super::members::Members;
use super::plan::{self, Action, Memory};
use super::restore::BIND_DOUBT;
use super::time::millis;
use super::{NodeFacts, PodFacts};
use crate::api::{GpuNode, GpuPool, Reservation};
use crate::policy::Millis;

/// How long the ledger of a deleted pool outlives pods that are gone: nobody asks the node whether
/// their containers are, so as long as these may live.
const LINGER: Millis = Millis(UNKNOWN_GRACE.0 + VANISHED_MARGIN.0);

/// Everything, whichever pool it belongs to.
#[derive(Clone, Copy)]
pub struct All<'a> {
    /// When it was looked at.
    pub now: Millis,
    /// Pools by name.
    pub pools: &'a BTreeMap<String, Arc<GpuPool>>,
    /// Pools that are there and cannot be read, by name.
    pub unreadable_pools: &'a BTreeMap<String, String>,
    /// The nodes of each pool.
    pub members: &'a BTreeMap<String, Members>,
    /// Pods by UID.
    pub pods: &'a BTreeMap<String, Arc<PodFacts>>,
    /// Nodes by name.
    pub nodes: &'a BTreeMap<String, Arc<NodeFacts>>,
    /// Ledgers by name of the node.
    pub ledgers: &'a BTreeMap<String, Arc<GpuNode>>,
}

impl All<'_> {
    fn has_pool(&self, name: &str) -> bool {
        self.pools.contains_key(name) || self.unreadable_pools.contains_key(name)
    }

    /// Whether the node's ledger belongs to a pool that cannot be read: it may drain that node, and
    /// nobody can say which nodes it selects.
    fn may_be_served(&self, node: &str) -> bool {
        let ledger = self.ledgers.get(node);
        ledger.is_some_and(|ledger| self.unreadable_pools.contains_key(&ledger.spec.pool))
    }

    /// What a ledger that no pool looks after still stands for.
    fn used(&self, name: &str, ledger: &GpuNode) -> Use {
        let Some(status) = &ledger.status else { return Use::Over };
        if status.gpus.iter().any(|gpu| gpu.holder.is_some()) {
            return Use::Held;
        }
        let of = |reservation: &Reservation| {
            let Some(pod) = self.pods.get(&reservation.uid) else { return Use::Unknown };
            let held = match &pod.node {
                Some(node) => node == name && pod.ended.is_none(),
                None => pod.can_be_bound() && self.may_be_bound(reservation),
            };
            if held { Use::Held } else { Use::Over }
        };
        status.reservations.iter().map(of).max().unwrap_or(Use::Over)
    }

    /// Whether an extender would still bind by this reservation, or may just have done so.
    fn may_be_bound(&self, reservation: &Reservation) -> bool {
        let deadline = reservation.deadline.as_ref().is_none_or(|at| self.now < millis(at));
        let posted = reservation.bound_at.as_ref().map(|at| millis(at) + BIND_DOUBT);
        posted.map_or(deadline, |until| self.now < until)
    }
}

/// Whether GPUs are in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// None is.
    Over,
    /// Of a pod nothing is left but the ledger, which says nothing of its containers.
    Unknown,
    /// Some are, or may come to be.
    Held,
}

/// What is remembered of strays between two looks.
#[derive(Clone, Debug, Default)]
pub struct Strays {
    told: Memory,
    /// Since when the pods of a ledger that no pool looks after are gone.
    gone: BTreeMap<String, Millis>,
}

impl Strays {
    /// What is to be done about them.
    pub fn plan(&mut self, all: &All<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        for pod in all.pods.values() {
            if pod.is_ours() && pod.can_be_bound() && !all.has_pool(&pod.pool) {
                actions.extend(plan::no_such_pool(pod, all.now, &mut self.told));
            }
        }
        self.told.retain(|uid| all.pods.contains_key(uid));
        self.ledgers(all, &mut actions);
        let served = |name: &str| all.members.values().any(|pool| pool.nodes.contains_key(name));
        for (name, node) in all.nodes.iter().filter(|(_, node)| node.spared_by_us) {
            if !served(name) && !all.may_be_served(name) {
                actions.push(Action::Spare { node: node.name.clone(), spare: false });
            }
        }
        actions
    }

    /// A ledger outlives its pool while pods hold GPUs by it, since it keeps the node from being
    /// taken over by another pool.
    fn ledgers(&mut self, all: &All<'_>, actions: &mut Vec<Action>) {
        let mut gone = BTreeMap::new();
        for (name, ledger) in all.ledgers {
            if all.has_pool(&ledger.spec.pool) {
                continue;
            }
            let over = match all.used(name, ledger) {
                Use::Held => false,
                Use::Over => true,
                Use::Unknown => {
                    let since = self.gone.get(name).copied().unwrap_or(all.now);
                    gone.insert(name.clone(), since);
                    all.now >= since + LINGER
                }
            };
            if over {
                let uid = ledger.metadata.uid.clone().unwrap_or_default();
                actions.push(Action::DeleteLedger { name: name.clone(), uid });
            }
        }
        self.gone = gone;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, json};

    use super::*;
    use crate::translate::fixture::{Scene, at, on, pod, stamp};
    use crate::translate::node::tests::node;
    use crate::translate::time::{began, ends};

    /// What is to be done in the scene's cluster at second `seconds`, its pool being gone.
    fn strays(strays: &mut Strays, scene: &Scene, seconds: u64) -> Vec<Action> {
        with_unreadable(strays, scene, seconds, &BTreeMap::new())
    }

    /// The same with pools that cannot be read.
    fn with_unreadable(
        strays: &mut Strays,
        scene: &Scene,
        seconds: u64,
        unreadable_pools: &BTreeMap<String, String>,
    ) -> Vec<Action> {
        let (pools, members) = (BTreeMap::new(), BTreeMap::new());
        let world = &scene.world;
        strays.plan(&All {
            now: at(seconds),
            pools: &pools,
            unreadable_pools,
            members: &members,
            pods: &world.pods,
            nodes: &world.nodes,
            ledgers: &world.ledgers,
        })
    }

    fn deletes(actions: &[Action]) -> usize {
        actions.iter().filter(|action| matches!(action, Action::DeleteLedger { .. })).count()
    }

    fn small(patch: Value) -> PodFacts {
        pod("s", "small", 0, patch)
    }

    #[test]
    fn the_ledger_of_a_deleted_pool_stays_while_pods_may_hold_gpus_by_it() {
        let ended = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
        let deleting = json!({"metadata": {"deletionTimestamp": stamp(1)}});
        let cases = [
            ("reserved, in time", Some(json!({})), 1, [0, 0, 0]),
            ("reserved, too late", Some(json!({})), 1_000, [1, 1, 1]),
            ("reserved, deleted", Some(deleting), 1, [1, 1, 1]),
            ("runs", Some(on("n", Some(1))), 1_000, [0, 0, 0]),
            ("runs elsewhere", Some(on("m", Some(1))), 1, [1, 1, 1]),
            ("ended", Some(ended), 1, [1, 1, 1]),
            ("gone", None, 1_000, [0, 0, 1]),
        ];
        for (name, now, from, expected) in cases {
            let mut scene = Scene::new(&["n"]);
            scene.put(small(json!({})));
            scene.settle();
            assert_eq!(scene.ledger("n").reservations.len(), 1);
            match now {
                Some(patch) => scene.put(small(patch)),
                None => scene.remove("s"),
            }
            let mut memory = Strays::default();
            let limit = if name == "reserved, in time" { 20 } else { 40 };
            let times = [from, from + limit - 1, from + limit];
            let found = times.map(|seconds| deletes(&strays(&mut memory, &scene, seconds)));
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_binding_that_was_posted_and_a_holder_that_the_agent_sees_keep_a_ledger() {
        let mut scene = Scene::new(&["n"]);
        scene.put(small(json!({})));
        scene.settle();
        scene.change_ledger("n", |status| {
            status.reservations[0].deadline = Some(ends(at(5)));
            status.reservations[0].bound_at = Some(began(at(4)));
        });
        let mut memory = Strays::default();
        for (seconds, count) in [(0, 0), (78, 0), (79, 1)] {
            assert_eq!(deletes(&strays(&mut memory, &scene, seconds)), count, "{seconds} s");
        }
        scene.change_ledger("n", |status| {
            status.gpus[0].holder = Some(crate::api::PodRef::default());
        });
        assert_eq!(deletes(&strays(&mut memory, &scene, 1_000)), 0);
    }

    #[test]
    fn an_empty_ledger_of_a_deleted_pool_goes_at_once_and_marks_are_taken_back() {
        let mut scene = Scene::new(&["n"]);
        let annotations = json!({"sluice.dev/spared-from-scale-down": "true"});
        let spared = node("n", json!({"metadata": {"annotations": annotations}}));
        scene.world.nodes.insert("n".to_owned(), Arc::new(spared));
        scene.put(small(json!({})));
        let actions = strays(&mut Strays::default(), &scene, 1);
        assert_eq!(deletes(&actions), 1);
        assert!(actions.contains(&Action::Spare { node: "n".to_owned(), spare: false }));
        let no_pool = |action: &Action| match action {
            Action::Tell { admitted, .. } => admitted.reason == "NoSuchPool",
            _ => false,
        };
        assert!(actions.iter().any(no_pool), "{actions:?}");

        // A pool that cannot be read is there all the same.
        let unreadable = [("default".to_owned(), "what a word".to_owned())].into();
        let actions = with_unreadable(&mut Strays::default(), &scene, 1, &unreadable);
        assert_eq!(deletes(&actions), 0);
        assert!(!actions.iter().any(no_pool), "{actions:?}");
        assert!(!actions.iter().any(|a| matches!(a, Action::Spare { .. })), "{actions:?}");
    }
}
