//! Cluster side: the agent's metrics. Label values come from fixed sets only.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::gpu::GpuList;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Health {
    health: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
}

/// Counters and gauges of the agent. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    gpus: Family<Health, Gauge>,
    registered: Gauge,
    registrations: Family<Outcome, Counter>,
    allocations: Family<Outcome, Counter>,
    api_errors: Family<Call, Counter>,
    reports: Counter,
    overlaps: Counter,
    inotify_fallback: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice_agent");
        let (gpus, registered, registrations, allocations, api_errors) = (
            Family::<Health, Gauge>::default(),
            Gauge::default(),
            Family::<Outcome, Counter>::default(),
            Family::<Outcome, Counter>::default(),
            Family::<Call, Counter>::default(),
        );
        let (reports, overlaps) = (Counter::default(), Counter::default());
        let inotify_fallback = Gauge::default();
        registry.register("gpus", "GPUs of this node by health", gpus.clone());
        registry.register(
            "registered",
            "1 while kubelet follows the device list",
            registered.clone(),
        );
        registry.register(
            "registrations",
            "Registrations with kubelet by outcome",
            registrations.clone(),
        );
        registry.register(
            "allocations",
            "Containers handed GPUs, and refusals by reason",
            allocations.clone(),
        );
        registry.register(
            "api_errors",
            "Failed calls to the API server and to kubelet",
            api_errors.clone(),
        );
        registry.register("reports", "Writes to the ledger", reports.clone());
        registry.register(
            "overlaps",
            "GPUs given to a pod while containers of another lived on it",
            overlaps.clone(),
        );
        registry.register(
            "inotify_fallback",
            "1 while the plugin folder is compared by the clock for want of inotify",
            inotify_fallback.clone(),
        );
        Self {
            registry: Arc::new(registry),
            gpus,
            registered,
            registrations,
            allocations,
            api_errors,
            reports,
            overlaps,
            inotify_fallback,
        }
    }
}

impl Metrics {
    /// Everything in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "metrics cannot be written");
        }
        text
    }

    /// Where the figures are read from.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    /// The GPUs of the node.
    pub fn gpus(&self, gpus: &GpuList) {
        let healthy = gpus.iter().filter(|gpu| gpu.healthy()).count();
        let set = |health, count: usize| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.gpus.get_or_create_owned(&Health { health }).set(count);
        };
        set("healthy", healthy);
        set("unhealthy", gpus.len() - healthy);
    }

    /// Whether kubelet follows the device list.
    pub fn registered(&self, registered: bool) {
        self.registered.set(registered.into());
    }

    /// An attempt to register.
    pub fn registration(&self, outcome: &'static str) {
        self.registrations.get_or_create_owned(&Outcome { outcome }).inc();
    }

    /// GPUs were handed to a container, or refused.
    pub fn allocation(&self, outcome: &'static str) {
        self.allocations.get_or_create_owned(&Outcome { outcome }).inc();
    }

    /// A call failed.
    pub fn api_error(&self, call: &'static str) {
        self.api_errors.get_or_create_owned(&Call { call }).inc();
    }

    /// The ledger was written.
    pub fn reported(&self) {
        self.reports.inc();
    }

    /// Two pods were seen on one GPU.
    pub fn overlap(&self) {
        self.overlaps.inc();
    }

    /// Whether the plugin folder is compared by the clock.
    pub fn inotify_fallback(&self, fallback: bool) {
        self.inotify_fallback.set(fallback.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_names_that_dashboards_use() {
        let metrics = Metrics::default();
        metrics.gpus(&GpuList::default());
        metrics.registered(true);
        metrics.registration("ok");
        metrics.allocation("gpu_in_use");
        metrics.api_error("write_ledger");
        metrics.reported();
        metrics.overlap();
        metrics.inotify_fallback(true);
        let text = metrics.text();
        for line in [
            "sluice_agent_gpus{health=\"healthy\"} 0",
            "sluice_agent_registered 1",
            "sluice_agent_registrations_total{outcome=\"ok\"} 1",
            "sluice_agent_allocations_total{outcome=\"gpu_in_use\"} 1",
            "sluice_agent_api_errors_total{call=\"write_ledger\"} 1",
            "sluice_agent_reports_total 1",
            "sluice_agent_overlaps_total 1",
            "sluice_agent_inotify_fallback 1",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
