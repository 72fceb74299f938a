//! Cluster side: every figure that Sluice exports, with typed labels.
//!
//! Labels take few values: names of pools are an operator's choice, everything else is an enum or
//! a fixed word. Names of pods, nodes and texts of errors are never labels; they stand in the log.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::policy::Shape;

/// A gauge that holds a fraction.
pub type FloatGauge = Gauge<f64, AtomicU64>;
/// A counter that counts fractions.
pub type FloatCounter = Counter<f64, AtomicU64>;
/// Histograms by label.
pub type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// A pool.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
}

/// A pool and a shape.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShapeLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// The shape.
    pub shape: ShapeValue,
}

/// A pool, a shape and one more word: by which rule a pod was admitted, or how it ended.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransitionLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// The shape.
    pub shape: ShapeValue,
    /// A fixed word.
    pub how: &'static str,
}

/// A pool and the state of GPUs: `free`, `reserved`, `held`, `foreign`, `unhealthy`.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct GpuLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// A fixed word.
    pub state: &'static str,
}

/// A pool and a phase of nodes.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PhaseLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// A fixed word.
    pub phase: &'static str,
}

/// A pool and a reason code.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReasonLabel {
    /// Name of the `GpuPool`.
    pub pool: String,
    /// A fixed word.
    pub reason: &'static str,
}

/// A call to the API server.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallLabel {
    /// `get`, `list`, `create`, `update`, `patch`, `bind`, `evict`.
    pub verb: &'static str,
    /// The kind called upon.
    pub kind: &'static str,
}

/// A call to the API server that failed.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallErrorLabel {
    /// `get`, `list`, `create`, `update`, `patch`, `bind`, `evict`.
    pub verb: &'static str,
    /// The kind called upon.
    pub kind: &'static str,
    /// `conflict`, `not_found`, `refused`, `timeout`, `server`, `transport`.
    pub reason: &'static str,
}

/// A request of kube-scheduler.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestLabel {
    /// `filter`, `bind` or `preempt`.
    pub verb: &'static str,
    /// How it was answered; a fixed word.
    pub result: &'static str,
}

/// A bounded queue inside the process.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueLabel {
    /// Its name in the code.
    pub queue: &'static str,
}

/// A kind of objects.
#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
pub struct KindLabel {
    /// Its name in lower case.
    pub kind: &'static str,
}

/// A shape as a label writes it: as the pod label does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeValue(pub Shape);

impl EncodeLabelValue for ShapeValue {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self.0 {
            Shape::Small => crate::api::names::SHAPE_SMALL,
            Shape::Wide(_) => crate::api::names::SHAPE_WIDE,
            Shape::Large => crate::api::names::SHAPE_LARGE,
        })
    }
}

/// Every figure. Clones share the same figures.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each figure's help text in `register` is its description")]
pub struct Metrics {
    pub queue_depth: Family<ShapeLabel, Gauge>,
    pub queue_oldest_wait: Family<ShapeLabel, FloatGauge>,
    pub queue_wait: Histograms<ShapeLabel>,
    pub gpus: Family<GpuLabel, Gauge>,
    pub nodes: Family<PhaseLabel, Gauge>,
    pub agents_not_ready: Family<PoolLabel, Gauge>,
    pub releases_unanswered: Family<PoolLabel, Gauge>,
    pub admissions: Family<TransitionLabel, Counter>,
    pub ended: Family<TransitionLabel, Counter>,
    pub unreserved: Family<ReasonLabel, Counter>,
    pub drain_duration: Histograms<PoolLabel>,
    pub drain_idle_gpu: Family<PoolLabel, FloatCounter>,
    pub refused_commits: Family<PoolLabel, Counter>,
    pub bypasses: Family<PoolLabel, Counter>,
    pub step_duration: Histogram,
    pub ledger_conflicts: Counter,
    pub rebuilds: Counter,
    pub api_duration: Histograms<CallLabel>,
    pub api_errors: Family<CallErrorLabel, Counter>,
    pub outbox_depth: Family<QueueLabel, Gauge>,
    pub outbox_dropped: Family<QueueLabel, Counter>,
    pub objects_skipped: Family<KindLabel, Counter>,
    pub objects_unreadable: Family<KindLabel, Gauge>,
    pub leader: Gauge,
    pub leader_changes: Counter,
    pub extender_duration: Histograms<RequestLabel>,
    pub extender_waits: Family<RequestLabel, Counter>,
    pub extender_panics: Counter,
}

/// 1 ms to 16 s: calls and requests.
fn call_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// 10 µs to 0.3 s: one step of the policy.
fn step_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_01, 2.0, 16))
}

/// 0.1 s to 29 h: waits and drains.
fn wait_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 2.0, 21))
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            queue_depth: Family::default(),
            queue_oldest_wait: Family::default(),
            queue_wait: Family::new_with_constructor(wait_histogram),
            gpus: Family::default(),
            nodes: Family::default(),
            agents_not_ready: Family::default(),
            releases_unanswered: Family::default(),
            admissions: Family::default(),
            ended: Family::default(),
            unreserved: Family::default(),
            drain_duration: Family::new_with_constructor(wait_histogram),
            drain_idle_gpu: Family::default(),
            refused_commits: Family::default(),
            bypasses: Family::default(),
            step_duration: step_histogram(),
            ledger_conflicts: Counter::default(),
            rebuilds: Counter::default(),
            api_duration: Family::new_with_constructor(call_histogram),
            api_errors: Family::default(),
            outbox_depth: Family::default(),
            outbox_dropped: Family::default(),
            objects_skipped: Family::default(),
            objects_unreadable: Family::default(),
            leader: Gauge::default(),
            leader_changes: Counter::default(),
            extender_duration: Family::new_with_constructor(call_histogram),
            extender_waits: Family::default(),
            extender_panics: Counter::default(),
        }
    }
}

impl Metrics {
    /// A registry that writes these figures under the prefix `sluice`.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("sluice");
        self.register_queues(&mut registry);
        self.register_decisions(&mut registry);
        self.register_process(&mut registry);
        self.register_extender(&mut registry);
        registry
    }

    /// Forgets how pools stand, which only the leader knows: a figure that nobody keeps up to date
    /// would go on as if it were so.
    pub fn forget_pools(&self) {
        self.queue_depth.clear();
        self.queue_oldest_wait.clear();
        self.gpus.clear();
        self.nodes.clear();
        self.agents_not_ready.clear();
        self.releases_unanswered.clear();
    }

    fn register_queues(&self, to: &mut Registry) {
        put(to, "queue_depth", "Pods that wait", &self.queue_depth);
        let help = "How long the pod that waits longest has waited";
        seconds(to, "queue_oldest_wait", help, &self.queue_oldest_wait);
        let help = "From a pod's creation to the reservation of its GPUs";
        seconds(to, "queue_wait", help, &self.queue_wait);
        let help = "GPUs: free, reserved, held, foreign, unhealthy";
        put(to, "gpus", help, &self.gpus);
        put(to, "nodes", "Nodes by phase", &self.nodes);
        let help =
            "Nodes whose agent is away, not ready, or owes an answer about a pod that is gone";
        put(to, "agents_not_ready", help, &self.agents_not_ready);
        let help =
            "Pods that are gone whose GPUs are held because the node's agent does not answer";
        put(to, "releases_unanswered", help, &self.releases_unanswered);
    }

    fn register_decisions(&self, to: &mut Registry) {
        put(to, "admissions", "Pods given GPUs, by the rule they came in by", &self.admissions);
        put(to, "ended", "Pods that gave their GPUs back, by how they ended", &self.ended);
        put(to, "unreserved", "Reservations taken back, by reason", &self.unreserved);
        let help = "From the closing of a gate to the admission of the large behind it";
        seconds(to, "drain_duration", help, &self.drain_duration);
        let help = "GPU time that was kept idle behind closed gates";
        seconds(to, "drain_idle_gpu", help, &self.drain_idle_gpu);
        let help = "Commits refused because they would have broken an invariant: a fault of Sluice";
        put(to, "refused_commits", help, &self.refused_commits);
        put(to, "bypasses", "Pods found with GPUs that went round Sluice", &self.bypasses);
        let help = "One step of the policy";
        seconds(to, "step_duration", help, &self.step_duration);
    }

    fn register_process(&self, to: &mut Registry) {
        let help = "Ledger writes that met another writer's";
        put(to, "ledger_conflicts", help, &self.ledger_conflicts);
        put(to, "rebuilds", "Times the state was rebuilt from the ledgers", &self.rebuilds);
        seconds(to, "api_duration", "Calls to the API server", &self.api_duration);
        put(to, "api_errors", "Calls to the API server that failed", &self.api_errors);
        put(to, "outbox_depth", "Writes that wait to be made", &self.outbox_depth);
        let help = "Writes given up because a queue was full; the next comparison makes them again";
        put(to, "outbox_dropped", help, &self.outbox_dropped);
        let help = "Versions of objects that could not be read";
        put(to, "objects_skipped", help, &self.objects_skipped);
        let help = "Objects that cannot be read now: their last readable state is gone by";
        put(to, "objects_unreadable", help, &self.objects_unreadable);
        put(to, "leader", "1 while this replica leads", &self.leader);
        put(to, "leader_changes", "Times this replica began to lead", &self.leader_changes);
    }

    fn register_extender(&self, to: &mut Registry) {
        let help = "Requests of kube-scheduler, by verb and answer";
        seconds(to, "extender_duration", help, &self.extender_duration);
        let help = "Filter requests that waited for the ledger to show a reservation";
        put(to, "extender_waits", help, &self.extender_waits);
        put(to, "extender_panics", "Requests that failed by a panic", &self.extender_panics);
    }
}

fn put(registry: &mut Registry, name: &str, help: &str, metric: &(impl Metric + Clone)) {
    registry.register(name, help, metric.clone());
}

fn seconds(registry: &mut Registry, name: &str, help: &str, metric: &(impl Metric + Clone)) {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_with_their_labels() {
        let metrics = Metrics::default();
        let registry = metrics.registry();
        let shape = ShapeValue(Shape::Large);
        metrics.queue_depth.get_or_create(&ShapeLabel { pool: "default".into(), shape }).set(3);
        let label = CallErrorLabel { verb: "update", kind: "gpunode", reason: "conflict" };
        metrics.api_errors.get_or_create(&label).inc();
        let label = RequestLabel { verb: "filter", result: "passed" };
        metrics.extender_duration.get_or_create(&label).observe(0.003);

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "sluice_queue_depth{pool=\"default\",shape=\"whole-node-large\"} 3\n",
            "sluice_api_errors_total{verb=\"update\",kind=\"gpunode\",reason=\"conflict\"} 1\n",
            "sluice_extender_duration_seconds_count{verb=\"filter\",result=\"passed\"} 1\n",
            "sluice_leader 0\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }

        metrics.forget_pools();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(!text.contains("sluice_queue_depth{"), "{text}");
        assert!(text.contains("sluice_api_errors_total{"), "{text}");
    }
}
