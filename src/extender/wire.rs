//! Cluster side: what kube-scheduler and an extender say to each other (`extender/v1`).
//!
//! The keys of these envelopes are written in Pascal case, the objects inside in camel case, as
//! everywhere in Kubernetes. Go reads keys in any case, so other spellings are understood too;
//! what is written is Pascal case. Of a pod only what a filter reads is kept: it arrives whole, and
//! a field unknown to this build must not make its pod unschedulable.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::names::CONDITION_ADMITTED;

/// Which of these nodes can take the pod?
#[derive(Deserialize, Debug, Default)]
pub struct FilterArgs {
    /// The pod.
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Option<Pod>,
    /// Whole nodes, from a scheduler that does not expect us to know them.
    #[serde(rename = "Nodes", alias = "nodes")]
    pub nodes: Option<NodeList>,
    /// Names of nodes, from a scheduler with `nodeCacheCapable`.
    #[serde(rename = "NodeNames", alias = "nodeNames", alias = "nodenames")]
    pub node_names: Option<Vec<String>>,
}

/// These can.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult {
    /// Those of the whole nodes, where such were offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeList>,
    /// Those of the names. Present, if empty, wherever no whole nodes were offered: the
    /// scheduler reads the absence of both as "no node", and so do we, but say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_names: Option<Vec<String>>,
    /// Why not, where evicting somebody would help. It never does: room is not what is missing.
    pub failed_nodes: BTreeMap<String, String>,
    /// Why not, where evicting somebody would not help.
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Set if there is no answer.
    pub error: String,
}

/// Bind this pod to that node.
#[derive(Deserialize, Debug, Default, Clone)]
pub struct BindArgs {
    /// Name of the pod.
    #[serde(rename = "PodName", alias = "podName", alias = "podname", default)]
    pub pod_name: String,
    /// Namespace of the pod.
    #[serde(rename = "PodNamespace", alias = "podNamespace", alias = "podnamespace", default)]
    pub pod_namespace: String,
    /// UID of the pod.
    #[serde(rename = "PodUID", alias = "podUID", alias = "podUid", alias = "poduid", default)]
    pub pod_uid: String,
    /// Name of the node.
    #[serde(rename = "Node", alias = "node", default)]
    pub node: String,
}

/// Done, if there is no error.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "PascalCase")]
pub struct BindResult {
    /// Why it is not done.
    pub error: String,
}

/// Who may be evicted for the pod: nobody, ever.
#[derive(Serialize, Debug, Default)]
#[serde(rename_all = "PascalCase")]
pub struct PreemptResult {
    /// Nodes with the pods to evict there.
    pub node_name_to_meta_victims: BTreeMap<String, Value>,
}

/// Whole nodes, handed back as they came.
#[derive(Serialize, Deserialize, Debug, Default, Clone, PartialEq)]
pub struct NodeList {
    /// The nodes.
    #[serde(default)]
    pub items: Option<Vec<Value>>,
}

impl NodeList {
    /// The nodes.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.items.iter().flatten()
    }
}

/// The name of a node that came whole.
pub fn name_of(node: &Value) -> Option<&str> {
    node.get("metadata")?.get("name")?.as_str()
}

/// What a filter reads of a pod.
#[derive(Deserialize, Debug, Default)]
pub struct Pod {
    /// Who it is.
    #[serde(default)]
    pub metadata: PodMeta,
    /// How it stands.
    pub status: Option<PodStatus>,
}

/// Who a pod is.
#[derive(Deserialize, Debug, Default)]
pub struct PodMeta {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// Its UID.
    #[serde(default)]
    pub uid: String,
}

/// How a pod stands.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// The node that it is nominated to.
    pub nominated_node_name: Option<String>,
    /// Its conditions.
    pub conditions: Option<Vec<PodCondition>>,
}

/// One condition of a pod.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct PodCondition {
    /// Which condition.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// For people.
    pub message: Option<String>,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

impl Pod {
    /// What the controller says of the pod's admission, as far as the scheduler has heard.
    pub fn admitted(&self) -> Option<&PodCondition> {
        let conditions = self.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.kind == CONDITION_ADMITTED)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json, to_value};

    use super::*;

    #[test]
    fn keys_are_read_in_either_case() {
        for text in [
            r#"{"Pod":{"metadata":{"name":"a","uid":"u"}},"NodeNames":["n1"]}"#,
            r#"{"pod":{"metadata":{"name":"a","uid":"u"}},"nodenames":["n1"]}"#,
            r#"{"pod":{"metadata":{"name":"a","uid":"u"}},"nodeNames":["n1"],"Nodes":null}"#,
        ] {
            let args: FilterArgs = from_str(text).unwrap();
            assert_eq!(args.pod.unwrap().metadata.uid, "u");
            assert_eq!(args.node_names.unwrap(), ["n1"]);
            assert!(args.nodes.is_none());
        }
        for text in [
            r#"{"PodName":"a","PodNamespace":"ns","PodUID":"u","Node":"n"}"#,
            r#"{"podName":"a","podNamespace":"ns","podUID":"u","node":"n"}"#,
        ] {
            let args: BindArgs = from_str(text).unwrap();
            assert_eq!((args.pod_name.as_str(), args.pod_namespace.as_str()), ("a", "ns"));
            assert_eq!((args.pod_uid.as_str(), args.node.as_str()), ("u", "n"));
        }
    }

    #[test]
    fn what_go_leaves_empty_is_read() {
        for text in [
            "{}",
            r#"{"Pod":null,"Nodes":null,"NodeNames":null}"#,
            r#"{"Pod":{"metadata":{},"status":{"conditions":null}},"Nodes":{"items":null}}"#,
            r#"{"Pod":{"metadata":{"creationTimestamp":null},"spec":{"novel":1}},"NodeNames":[]}"#,
        ] {
            from_str::<FilterArgs>(text).unwrap();
        }
    }

    #[test]
    fn answers_are_written_in_pascal_case() {
        let mut result = FilterResult { node_names: Some(vec!["n1".into()]), ..Default::default() };
        result.failed_and_unresolvable_nodes.insert("n2".into(), "why".into());
        let expected = json!({
            "NodeNames": ["n1"], "FailedNodes": {}, "Error": "",
            "FailedAndUnresolvableNodes": {"n2": "why"},
        });
        assert_eq!(to_value(result).unwrap(), expected);
        assert_eq!(to_value(BindResult::default()).unwrap(), json!({"Error": ""}));
        let none = json!({"NodeNameToMetaVictims": {}});
        assert_eq!(to_value(PreemptResult::default()).unwrap(), none);
    }
}
