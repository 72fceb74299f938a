//! Pure: what matters of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};

use super::fits::Placement;
use super::time::{heard, millis, span};
use crate::api::PodRef;
use crate::api::names;
use crate::explain::wait;
use crate::policy::{Millis, Outcome, Shape};

/// Grace period of a pod that states none, as the API server defaults it.
const DEFAULT_GRACE_SECS: i64 = 30;
/// Sequence numbers from here on are refused: somebody else wrote them, and JSON readers would
/// round them.
pub const SEQUENCE_END: u64 = 1 << 53;

/// What matters of one pod.
#[expect(clippy::struct_excessive_bools, reason = "independent facts of the object")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// Its names and UID.
    pub who: PodRef,
    /// `metadata.resourceVersion` as a number, zero if it is none.
    pub version: u64,
    /// When it was created.
    pub created: Millis,
    /// `spec.priority`.
    pub priority: i32,
    /// The shape that the label names, if it is one.
    pub shape: Option<ShapeLabel>,
    /// The label's value as it stands, if there is one.
    pub shape_label: Option<String>,
    /// The pool that its labels name.
    pub pool: String,
    /// Whether it is left to our profile of kube-scheduler.
    pub our_scheduler: bool,
    /// Extended resources that it needs at its peak, by name, zeros left out.
    pub resources: BTreeMap<String, u32>,
    /// Whether our gate is on it.
    pub gated: bool,
    /// The recorded arrival sequence number.
    pub sequence: Option<u64>,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<String>,
    /// Whether kubelet says that it runs.
    pub running: bool,
    /// When kubelet took it up.
    pub started: Option<Millis>,
    /// How it ended, once its phase is terminal.
    pub ended: Option<Outcome>,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// `spec.activeDeadlineSeconds`.
    pub deadline: Option<Millis>,
    /// Its termination grace period.
    pub grace: Millis,
    /// What it asks of a node.
    pub placement: Arc<Placement>,
    /// Our condition, as it stands.
    pub admitted: Option<Admitted>,
}

/// What the shape label names. How many GPUs a wide small needs, its request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShapeLabel {
    /// One GPU.
    Small,
    /// Several of one node, not all.
    Wide,
    /// Every one of a node.
    Large,
}

impl ShapeLabel {
    /// The shape of a pod with this label and a request for so many GPUs.
    pub const fn shape(self, requested: u32) -> Shape {
        match self {
            Self::Small => Shape::Small,
            Self::Wide => Shape::Wide(requested),
            Self::Large => Shape::Large,
        }
    }
}

/// Our condition on a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// Whether GPUs are reserved.
    pub yes: bool,
    /// CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl Admitted {
    /// When the pod starts at the latest, if it is told a time.
    pub fn latest_start(&self) -> Option<Millis> {
        heard(wait::told(&self.message)?)
    }
}

impl PodFacts {
    /// What the pod was told last, while it waits.
    pub fn told_to_wait(&self) -> Option<&Admitted> {
        self.admitted.as_ref().filter(|told| !told.yes)
    }

    /// Reads a pod. A pod without name or UID, which no API server has, reads as nameless.
    pub fn read(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let labels = meta.labels.as_ref();
        let label = |name| labels.and_then(|labels| labels.get(name)).cloned();
        let annotation = |name| meta.annotations.as_ref().and_then(|all| all.get(name));
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let shape_label = label(names::LABEL_SHAPE);
        let sequence = annotation(names::ANNOTATION_SEQUENCE).and_then(|text| text.parse().ok());
        let gates = spec.and_then(|spec| spec.scheduling_gates.as_deref()).unwrap_or_default();
        let started = status.and_then(|status| status.start_time.as_ref()).map(millis);
        let phase = status.and_then(|status| status.phase.as_deref());
        Self {
            who: PodRef {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            },
            version: version(meta.resource_version.as_deref()),
            created: meta.creation_timestamp.as_ref().map(millis).unwrap_or_default(),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            shape: shape_label.as_deref().and_then(shape_named),
            shape_label,
            pool: label(names::LABEL_POOL).unwrap_or_else(|| names::DEFAULT_POOL.to_owned()),
            our_scheduler: spec.and_then(|spec| spec.scheduler_name.as_deref())
                == Some(names::SCHEDULER),
            resources: resources(pod),
            gated: gates.iter().any(|gate| gate.name == names::GATE),
            sequence: sequence.filter(|&number: &u64| number < SEQUENCE_END),
            node: spec.and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty()),
            nominated: status
                .and_then(|status| status.nominated_node_name.clone())
                .filter(|name| !name.is_empty()),
            running: phase == Some("Running"),
            started,
            ended: outcome(pod),
            deleting: meta.deletion_timestamp.is_some(),
            deadline: spec.and_then(|spec| spec.active_deadline_seconds).map(span),
            grace: span(
                spec.and_then(|spec| spec.termination_grace_period_seconds)
                    .unwrap_or(DEFAULT_GRACE_SECS),
            ),
            placement: Arc::new(spec.map(Placement::read).unwrap_or_default()),
            admitted: status.and_then(admitted),
        }
    }

    /// GPUs that it needs, if `resource` stands for one GPU.
    pub fn gpus(&self, resource: &str) -> u32 {
        self.resources.get(resource).copied().unwrap_or_default()
    }

    /// Whether it asks Sluice for GPUs: a valid shape, left to our scheduler.
    pub fn is_ours(&self) -> bool {
        self.shape.is_some() && self.our_scheduler
    }

    /// Whether it can still be bound to a node.
    pub fn can_be_bound(&self) -> bool {
        self.node.is_none() && self.ended.is_none() && !self.deleting
    }
}

/// A resource version as a number. The API promises an opaque string and every API server gives
/// the number of a revision; one that is none counts as older than everything.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The shape with this label value.
pub fn shape_named(value: &str) -> Option<ShapeLabel> {
    match value {
        names::SHAPE_SMALL => Some(ShapeLabel::Small),
        names::SHAPE_WIDE => Some(ShapeLabel::Wide),
        names::SHAPE_LARGE => Some(ShapeLabel::Large),
        _ => None,
    }
}

/// The label value of a shape.
pub const fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Small => names::SHAPE_SMALL,
        Shape::Wide(_) => names::SHAPE_WIDE,
        Shape::Large => names::SHAPE_LARGE,
    }
}

fn admitted(status: &PodStatus) -> Option<Admitted> {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let found = conditions.iter().find(|c| c.type_ == names::CONDITION_ADMITTED)?;
    Some(Admitted {
        yes: found.status == "True",
        reason: found.reason.clone().unwrap_or_default(),
        message: found.message.clone().unwrap_or_default(),
    })
}

/// How a pod in a terminal phase ended. A container that ended by itself before the deletion was
/// asked for is not the deletion's doing.
fn outcome(pod: &Pod) -> Option<Outcome> {
    let status = pod.status.as_ref()?;
    let by_phase = match status.phase.as_deref()? {
        "Succeeded" => Outcome::Completed,
        "Failed" => Outcome::Failed,
        _ => return None,
    };
    let Some(deletion) = &pod.metadata.deletion_timestamp else { return Some(by_phase) };
    // The API server writes the time by which the pod is to be gone: the request plus the grace.
    let grace = span(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    let asked = millis(deletion).since(grace);
    let finished = status
        .container_statuses
        .iter()
        .flatten()
        .map(|container| {
            let state = container.state.as_ref()?;
            state.terminated.as_ref()?.finished_at.as_ref().map(millis)
        })
        .collect::<Option<Vec<_>>>()
        .and_then(|all| all.into_iter().max());
    if finished.is_some_and(|at| at < asked) { Some(by_phase) } else { Some(Outcome::Cancelled) }
}

/// What a pod needs of each extended resource at its peak: the greater of what its containers and
/// sidecars need together, and what each plain init container needs beside the sidecars that were
/// started before it. Kubelet keeps devices of init containers for the pod until it ends, so the
/// peak is also what the pod holds.
fn resources(pod: &Pod) -> BTreeMap<String, u32> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let mut sidecars: BTreeMap<String, u32> = BTreeMap::new();
    let mut peak: BTreeMap<String, u32> = BTreeMap::new();
    for container in spec.init_containers.iter().flatten() {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        for (name, count) in requests(container) {
            let before = sidecars.get(&name).copied().unwrap_or_default();
            raise(&mut peak, &name, before.saturating_add(count));
            if sidecar {
                sidecars.insert(name, before.saturating_add(count));
            }
        }
    }
    let mut together = sidecars;
    for container in &spec.containers {
        for (name, count) in requests(container) {
            let sum = together.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    for (name, count) in together {
        raise(&mut peak, &name, count);
    }
    peak.retain(|_, count| *count > 0);
    peak
}

fn raise(peak: &mut BTreeMap<String, u32>, name: &str, count: u32) {
    let known = peak.entry(name.to_owned()).or_default();
    *known = (*known).max(count);
}

/// Extended resources of one container. For these the API server demands that request and limit
/// agree, and sets the request from the limit.
fn requests(container: &Container) -> BTreeMap<String, u32> {
    let Some(resources) = &container.resources else { return BTreeMap::new() };
    let limits = resources.limits.iter().flatten();
    let all = limits.chain(resources.requests.iter().flatten());
    all.filter(|(name, _)| is_extended(name))
        .map(|(name, quantity)| (name.clone(), count(&quantity.0)))
        .collect()
}

fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io"))
}

/// A whole number as the API server writes it for an extended resource.
pub fn count(quantity: &str) -> u32 {
    let (digits, factor) = match quantity.strip_suffix('k') {
        Some(digits) => (digits, 1_000),
        None => (quantity, 1),
    };
    digits.parse::<u32>().map_or(0, |number| number.saturating_mul(factor))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{Value, from_value, json};

    use super::*;
    use crate::translate::fixture::{pod, stamp};

    const GPU: &str = "nvidia.com/gpu";

    fn container(gpus: u32) -> Value {
        let limits = if gpus == 0 { json!({}) } else { json!({GPU: gpus.to_string()}) };
        json!({"name": "c", "resources": {"limits": limits}})
    }

    fn sidecar(gpus: u32) -> Value {
        let mut container = container(gpus);
        container["restartPolicy"] = json!("Always");
        container
    }

    #[test]
    fn gpus_of_a_pod_are_its_peak() {
        let cases: [(&str, Vec<Value>, Vec<Value>, u32); 10] = [
            ("one container", vec![], vec![container(1)], 1),
            ("none", vec![], vec![container(0)], 0),
            ("two halves", vec![], vec![container(4), container(4)], 8),
            ("init more than main", vec![container(8)], vec![container(1)], 8),
            ("init less than main", vec![container(1)], vec![container(8)], 8),
            ("init without", vec![container(0)], vec![container(8)], 8),
            ("inits are not summed", vec![container(2), container(3)], vec![container(1)], 3),
            ("sidecar counts with main", vec![sidecar(1)], vec![container(1)], 2),
            ("sidecar before init", vec![sidecar(1), container(3)], vec![container(1)], 4),
            ("sidecar after init", vec![container(3), sidecar(1)], vec![container(1)], 3),
        ];
        for (name, init, main, gpus) in cases {
            let spec = json!({"containers": main, "initContainers": init});
            let facts = PodFacts::read(&from_value(json!({"spec": spec})).unwrap());
            assert_eq!(facts.gpus(GPU), gpus, "{name}");
        }
    }

    #[test]
    fn cpu_and_memory_are_no_extended_resources() {
        let limits = json!({"cpu": "4", "memory": "1Gi", "hugepages-2Mi": "4Mi", "a.b/gpu": "2k",
                            "requests.kubernetes.io/x": "1"});
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        let facts = PodFacts::read(&from_value(json!({"spec": spec})).unwrap());
        assert_eq!(facts.resources, [("a.b/gpu".to_owned(), 2_000)].into());
    }

    #[test]
    fn what_a_pod_says_of_itself_is_read() {
        let facts = pod(
            "a",
            "small",
            3,
            json!({
                "metadata": {"annotations": {"sluice.dev/sequence": "12"},
                             "labels": {"sluice.dev/pool": "red"}},
                "spec": {"schedulingGates": [{"name": "other"}, {"name": "sluice.dev/admission"}]},
                "status": {"nominatedNodeName": "", "conditions": [
                    {"type": "sluice.dev/Admitted", "status": "False", "reason": "Busy"}]},
            }),
        );
        assert_eq!((facts.pool.as_str(), facts.sequence, facts.gated), ("red", Some(12), true));
        assert_eq!((facts.nominated.as_ref(), facts.node.as_ref()), (None, None));
        assert!(facts.is_ours() && facts.can_be_bound());
        assert_eq!(facts.admitted.map(|c| (c.yes, c.reason)), Some((false, "Busy".to_owned())));
    }

    #[test]
    fn a_label_or_a_number_that_is_none_is_ignored() {
        let huge = SEQUENCE_END.to_string();
        let patch = json!({"metadata": {
            "annotations": {"sluice.dev/sequence": huge},
            "labels": {"sluice.dev/shape": "medium"}}});
        let facts = pod("a", "small", 0, patch);
        assert_eq!((facts.sequence, facts.shape), (None, None));
        assert!(!facts.is_ours());
        let other = pod("a", "small", 0, json!({"spec": {"schedulerName": "default-scheduler"}}));
        assert!(!other.is_ours());
    }

    #[test]
    fn a_pod_that_ended_before_its_deletion_was_not_cancelled() {
        let ended = |phase: &str, finished: u64, deletion: Option<(u64, i64)>| {
            let mut patch = json!({"status": {"phase": phase, "containerStatuses": [
                {"name": "main", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                 "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(finished)}}}]}});
            if let Some((asked, grace)) = deletion {
                let due = asked + u64::try_from(grace).unwrap();
                patch["metadata"] = json!({
                    "deletionTimestamp": stamp(due), "deletionGracePeriodSeconds": grace});
            }
            pod("a", "small", 0, patch).ended
        };
        assert_eq!(ended("Succeeded", 10, None), Some(Outcome::Completed));
        assert_eq!(ended("Failed", 10, None), Some(Outcome::Failed));
        assert_eq!(ended("Succeeded", 10, Some((20, 30))), Some(Outcome::Completed));
        assert_eq!(ended("Failed", 25, Some((20, 30))), Some(Outcome::Cancelled));
        assert_eq!(ended("Succeeded", 20, Some((20, 0))), Some(Outcome::Cancelled));
        assert_eq!(ended("Running", 10, None), None);
    }
}
