//! Pods as a user writes them, and what one reads off them.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use sluice::api::names;

use super::GPUS;

/// Image of the program that runs until a file appears.
pub(crate) const WORKLOAD: &str = "localhost/workload:dev";
/// Where the scenario's folder is seen in a container.
const MOUNT: &str = "/e2e";

/// A pod to be created. Only what a user would write: the rest comes from the admission policies.
#[derive(Clone)]
pub(crate) struct Draft {
    /// Name within the scenario.
    pub(crate) name: String,
    shape: Option<&'static str>,
    gpus: usize,
    arguments: Vec<String>,
    spec: Value,
    metadata: Value,
}

/// A small.
pub(crate) fn small(name: impl Into<String>) -> Draft {
    Draft::new(name.into(), Some(names::SHAPE_SMALL), 1)
}

/// Smalls, in that order.
pub(crate) fn smalls(names: &[String]) -> Vec<Draft> {
    names.iter().map(small).collect()
}

/// A whole-node large.
pub(crate) fn large(name: impl Into<String>) -> Draft {
    Draft::new(name.into(), Some(names::SHAPE_LARGE), GPUS)
}

/// A wide small of so many GPUs.
pub(crate) fn wide(name: impl Into<String>, gpus: usize) -> Draft {
    Draft::new(name.into(), Some(names::SHAPE_WIDE), gpus)
}

/// A pod with so many GPUs and no label.
pub(crate) fn unlabelled(name: impl Into<String>, gpus: usize) -> Draft {
    Draft::new(name.into(), None, gpus)
}

impl Draft {
    fn new(name: String, shape: Option<&'static str>, gpus: usize) -> Self {
        Self { name, shape, gpus, arguments: Vec::new(), spec: json!({}), metadata: json!({}) }
    }

    /// Ends with that exit code when it is released.
    pub(crate) fn exits(mut self, code: i32) -> Self {
        self.arguments.extend(["--exit-code".to_owned(), code.to_string()]);
        self
    }

    /// Does not end at SIGTERM.
    pub(crate) fn ignores_sigterm(mut self) -> Self {
        self.arguments.push("--ignore-sigterm".to_owned());
        self
    }

    /// Sets fields of the pod's spec.
    pub(crate) fn spec(mut self, fields: Value) -> Self {
        merge(&mut self.spec, fields);
        self
    }

    /// Sets fields of the pod's metadata.
    pub(crate) fn metadata(mut self, fields: Value) -> Self {
        merge(&mut self.metadata, fields);
        self
    }

    /// The pod's metadata and spec, for a pod or for the template of an owner. `folder` is the
    /// scenario's folder on the node.
    pub(crate) fn template(&self, folder: &str) -> Value {
        let mut metadata = json!({"name": self.name, "labels": {}});
        if let Some(shape) = self.shape {
            metadata["labels"][names::LABEL_SHAPE] = json!(shape);
        }
        merge(&mut metadata, self.metadata.clone());
        let mut arguments = vec![
            "--until-file".to_owned(),
            format!("{MOUNT}/release/{}", self.name),
            "--record".to_owned(),
            format!("{MOUNT}/records"),
        ];
        arguments.extend(self.arguments.iter().cloned());
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "work",
                "image": WORKLOAD,
                "imagePullPolicy": "Never",
                "args": arguments,
                "env": [
                    field("POD_NAME", "metadata.name"),
                    field("POD_NAMESPACE", "metadata.namespace"),
                    field("POD_UID", "metadata.uid"),
                    field("NODE_NAME", "spec.nodeName"),
                ],
                "resources": {"limits": {names::DEFAULT_RESOURCE: self.gpus.to_string()}},
                "volumeMounts": [{"name": "e2e", "mountPath": MOUNT}],
            }],
            "volumes": [{"name": "e2e", "hostPath": {"path": folder, "type": "Directory"}}],
        });
        merge(&mut spec, self.spec.clone());
        json!({"metadata": metadata, "spec": spec})
    }
}

/// Puts the fields of one JSON object into another, objects within objects too.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// `status.phase`.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

/// Kubelet's word that the pod has ended.
pub(crate) fn terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The node that it is bound to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node that it is nominated to.
pub(crate) fn nominated(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether Sluice's gate still holds it.
pub(crate) fn gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| gates.iter().any(|gate| gate.name == names::GATE))
}

/// The condition that says whether GPUs are reserved for it.
pub(crate) fn condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == names::CONDITION_ADMITTED)
}

/// Whether GPUs are reserved for it.
pub(crate) fn admitted(pod: &Pod) -> bool {
    condition(pod).is_some_and(|condition| condition.status == "True")
}

/// Why it waits, in the words of the condition: reason and message.
pub(crate) fn waits_because(pod: &Pod) -> Option<(String, String)> {
    let condition = condition(pod).filter(|condition| condition.status == "False")?;
    Some((condition.reason.clone()?, condition.message.clone()?))
}

/// GPUs that its containers ask for.
pub(crate) fn gpus(pod: &Pod) -> usize {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let gpus = limits.filter_map(|limits| limits.get(names::DEFAULT_RESOURCE));
    gpus.filter_map(|gpus| gpus.0.parse::<usize>().ok()).sum()
}

/// The shape that its label names.
pub(crate) fn shape(pod: &Pod) -> Option<&str> {
    pod.labels().get(names::LABEL_SHAPE).map(String::as_str)
}
