//! Cluster side: every name that Sluice shares with Kubernetes objects, in one place.
//!
//! A name here is part of the product's contract: manifests, charts and dashboards of users hold
//! it, so it changes only with the API version.

/// API group of the custom resources.
pub const GROUP: &str = "sluice.dev";
/// Version of the custom resources.
pub const VERSION: &str = "v1alpha1";

/// Pod label that names the shape: [`SHAPE_SMALL`], [`SHAPE_WIDE`] or [`SHAPE_LARGE`].
pub const LABEL_SHAPE: &str = "sluice.dev/shape";
/// Value of [`LABEL_SHAPE`] for a pod that needs exactly one GPU.
pub const SHAPE_SMALL: &str = "small";
/// Value of [`LABEL_SHAPE`] for a pod that needs several GPUs of one node and not all: as many as
/// it requests.
pub const SHAPE_WIDE: &str = "wide-small";
/// Value of [`LABEL_SHAPE`] for a pod that needs every GPU of a node.
pub const SHAPE_LARGE: &str = "whole-node-large";
/// Pod label that names the `GpuPool` whose queue the pod joins; absent means [`DEFAULT_POOL`].
pub const LABEL_POOL: &str = "sluice.dev/pool";
/// The pool of pods without [`LABEL_POOL`].
pub const DEFAULT_POOL: &str = "default";

/// Scheduling gate that holds a pod until its GPUs are reserved in the ledger.
pub const GATE: &str = "sluice.dev/admission";
/// `spec.schedulerName` of the kube-scheduler profile that Sluice's extender guards.
pub const SCHEDULER: &str = "sluice";
/// Pod condition that says whether GPUs are reserved for the pod, and if not, why not.
pub const CONDITION_ADMITTED: &str = "sluice.dev/Admitted";
/// Pod annotation with the recorded arrival sequence number, which breaks ties of creation time.
pub const ANNOTATION_SEQUENCE: &str = "sluice.dev/sequence";
/// Node annotation `"true"` while a closed gate makes a node look idle, so that a cluster
/// autoscaler does not remove it. The name is the autoscaler's own.
pub const ANNOTATION_NO_SCALE_DOWN: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Node annotation `"true"` where it was Sluice that set [`ANNOTATION_NO_SCALE_DOWN`], so that one
/// that somebody else set is left in place.
pub const ANNOTATION_SPARED: &str = "sluice.dev/spared-from-scale-down";

/// Label of every pod of Sluice's own, with the value [`APP`]; the name is Kubernetes'.
pub const LABEL_APP: &str = "app.kubernetes.io/name";
/// Value of [`LABEL_APP`].
pub const APP: &str = "sluice";
/// Label that says which part of Sluice a pod is; the name is Kubernetes'.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Value of [`LABEL_COMPONENT`] of a node agent's pod.
pub const COMPONENT_AGENT: &str = "agent";

/// GPU resource name of a pool that does not name another.
pub const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

/// Field manager of what the controller and the extender write.
pub const MANAGER_CONTROLLER: &str = "sluice-controller";
/// Field manager of the one condition that the controller sets on a pool that it cannot read.
pub const MANAGER_UNREADABLE: &str = "sluice-controller-unreadable";
/// Field manager of what a node agent writes (each `GpuNode` has exactly one agent).
pub const MANAGER_AGENT: &str = "sluice-agent";
/// Name of the lease that the leading controller holds.
pub const LEASE: &str = "sluice-controller";
/// Field manager of the pool that the chart brings, applied by `sluice pool apply`.
pub const MANAGER_CHART: &str = "sluice-chart";
