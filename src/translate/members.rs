//! Pure: which node belongs to which pool.
//!
//! A node belongs to one pool at a time: the first by name whose selector matches. Its ledger says
//! so and outlasts a change of labels: while pods hold GPUs of the node it stays with its pool,
//! which places nothing new there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::NodeFacts;
use crate::api::{GpuNode, GpuPool};

/// The nodes of one pool.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Nodes, by name.
    pub nodes: BTreeMap<String, Arc<NodeFacts>>,
    /// Those of them that no longer match and are not empty yet.
    pub leaving: BTreeSet<String>,
    /// Nodes that match and belong to another pool.
    pub claimed_elsewhere: Vec<String>,
}

/// Gives each pool its nodes.
pub fn assign(
    pools: &BTreeMap<String, Arc<GpuPool>>,
    nodes: &BTreeMap<String, Arc<NodeFacts>>,
    ledgers: &BTreeMap<String, Arc<GpuNode>>,
) -> BTreeMap<String, Members> {
    let mut members: BTreeMap<String, Members> =
        pools.keys().map(|name| (name.clone(), Members::default())).collect();
    for (name, node) in nodes {
        let ledger = ledgers.get(name).filter(|ledger| ledger.spec.node_uid == node.uid);
        let mut matching = pools.iter().filter(|(pool, object)| {
            let known = ledger.is_some_and(|ledger| ledger.spec.pool == **pool);
            let has_gpus = node.gpu_capacity(&object.spec.resource_name) > 0;
            node.matches(&object.spec.node_selector) && (has_gpus || known)
        });
        let first = matching.next().map(|(pool, _)| pool);
        for (other, _) in matching {
            members.entry(other.clone()).or_default().claimed_elsewhere.push(name.clone());
        }
        let recorded = ledger.map(|ledger| &ledger.spec.pool);
        let empty = ledger
            .and_then(|ledger| ledger.status.as_ref())
            .is_none_or(|status| status.reservations.is_empty());
        let (pool, leaving) = match (first, recorded) {
            (Some(first), None) => (first, false),
            (Some(first), Some(recorded)) if first == recorded => (first, false),
            (_, Some(recorded)) if !empty => (recorded, true),
            // The ledger goes first, and then the node may join another pool.
            (None | Some(_), Some(_)) | (None, None) => continue,
        };
        if let Some(members) = members.get_mut(pool) {
            members.nodes.insert(name.clone(), Arc::clone(node));
            if leaving {
                members.leaving.insert(name.clone());
            }
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, from_value, json};

    use super::*;
    use crate::translate::node::tests::node;

    fn pools(specs: &[(&str, Value)]) -> BTreeMap<String, Arc<GpuPool>> {
        let pool = |(name, selector): &(&str, Value)| {
            let spec = from_value(json!({"nodeSelector": selector})).unwrap();
            ((*name).to_owned(), Arc::new(GpuPool::new(name, spec)))
        };
        specs.iter().map(pool).collect()
    }

    fn ledger(pool: &str, uid: &str, reservations: usize) -> BTreeMap<String, Arc<GpuNode>> {
        let all: Vec<Value> = (0..reservations)
            .map(|n| {
                json!({"uid": n.to_string(), "namespace": "x", "name": "y", "kind": "Direct",
                       "state": "Running", "gpus": [], "since": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let object: GpuNode = from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"},
            "spec": {"pool": pool, "nodeUid": uid}, "status": {"reservations": all}}))
        .unwrap();
        [("n1".to_owned(), Arc::new(object))].into()
    }

    #[test]
    fn a_node_has_one_pool_and_keeps_it_until_it_is_empty() {
        let both = pools(&[("a", json!({"zone": "a"})), ("b", json!({}))]);
        let only_b = pools(&[("a", json!({"zone": "z"})), ("b", json!({}))]);
        let none = BTreeMap::new();
        let cpu = json!({"status": {"capacity": null, "allocatable": null}});
        let cases = [
            ("first by name", &both, json!({}), none.clone(), Some(("a", false))),
            ("only match", &only_b, json!({}), none.clone(), Some(("b", false))),
            ("no GPU", &both, cpu.clone(), none.clone(), None),
            ("no GPU now", &both, cpu, ledger("a", "uid-n1", 0), Some(("a", false))),
            ("leaves, busy", &only_b, json!({}), ledger("a", "uid-n1", 1), Some(("a", true))),
            ("leaves, empty", &only_b, json!({}), ledger("a", "uid-n1", 0), None),
            ("another node's", &only_b, json!({}), ledger("a", "old", 1), Some(("b", false))),
            ("pool is gone", &only_b, json!({}), ledger("c", "uid-n1", 1), None),
        ];
        for (name, pools, patch, ledgers, expected) in cases {
            let nodes = [("n1".to_owned(), Arc::new(node("n1", patch)))].into();
            let members = assign(pools, &nodes, &ledgers);
            let found = members.iter().find(|(_, m)| m.nodes.contains_key("n1"));
            let found = found.map(|(pool, m)| (pool.as_str(), m.leaving.contains("n1")));
            assert_eq!(found, expected, "{name}");
        }
        let nodes = [("n1".to_owned(), Arc::new(node("n1", json!({}))))].into();
        let members = assign(&both, &nodes, &BTreeMap::new());
        assert_eq!(members["b"].claimed_elsewhere, ["n1"]);
    }
}
