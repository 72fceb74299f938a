//! Cluster side: looks at the node again and again, and says who holds which GPU.
//!
//! A look joins kubelet's list, the API server's pods, the cgroups and the ledger's questions; what
//! follows from them is decided in [`holders`](super::holders). While pods come or go, looks follow
//! one another quickly; events of every source bring the next one forward.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::cgroup::Cgroups;
use super::clock::Uptime;
use super::gpu::GpuList;
use super::holders::{Holder, Holders, ListedPod, Open, PodIndex, Sighting};
use super::ledger::{Ledger, Report};
use super::metrics::Metrics;
use super::podresources::PodResources;
use crate::admin::Check;
use crate::api::{GpuHealth, GpuStatus};

/// Between looks while a pod is on its way to its GPUs or off them.
const LOOK_SOON: Duration = Duration::from_millis(100);
/// Between looks at other times.
const LOOK_LATER: Duration = Duration::from_secs(1);
/// How long looks follow quickly after GPUs were handed out: kubelet lists the pod within tens of
/// milliseconds.
const AFTER_HAND_OUT: Duration = Duration::from_secs(2);

/// Who holds what, as of the last look.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The holder of each GPU.
    pub holders: BTreeMap<String, Holder>,
    /// Whether what an earlier run reported is taken in, or known not to exist.
    pub restored: bool,
}

impl Observed {
    /// GPUs kept for pods that kubelet does not list any more.
    pub(super) fn lingering(&self) -> impl Iterator<Item = String> {
        self.holders.iter().filter(|(_, holder)| !holder.listed).map(|(gpu, _)| gpu.clone())
    }
}

/// What the observer reads and writes.
#[derive(Debug)]
pub(super) struct Observer {
    /// The GPUs.
    pub gpus: watch::Receiver<Option<GpuList>>,
    /// The ledger; `None` where no API server is configured.
    pub ledger: Option<watch::Receiver<Ledger>>,
    /// The pods of this node.
    pub pods: watch::Receiver<Arc<PodIndex>>,
    /// Kubelet's list.
    pub pod_resources: PodResources,
    /// Pods' cgroups.
    pub cgroups: Arc<Cgroups>,
    /// GPUs were handed out: look now.
    pub look_now: Arc<Notify>,
    /// Takes who holds what.
    pub observed: watch::Sender<Arc<Observed>>,
    /// Takes what the ledger should say.
    pub reports: watch::Sender<Option<Report>>,
    /// When the agent started.
    pub agent_seen: Time,
    /// Counters.
    pub metrics: Metrics,
    /// The agent's clock.
    pub uptime: Uptime,
    /// Whether kubelet says who holds what.
    pub looks: Check,
}

#[derive(Debug, Default)]
struct Memory {
    holders: Holders,
    restored: bool,
    /// What kubelet last failed with, so that it is said once.
    said: Option<String>,
    quick_until: Duration,
}

impl Observer {
    /// Looks until shutdown.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let mut memory = Memory::default();
        let mut wait = Duration::ZERO;
        loop {
            let handed_out = tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => false,
                () = self.look_now.notified() => true,
                changed = self.gpus.changed() => match changed { Ok(()) => false, Err(_) => return },
                changed = self.pods.changed() => match changed { Ok(()) => false, Err(_) => return },
                changed = changed(&mut self.ledger) => match changed { Ok(()) => false, Err(_) => return },
            };
            if handed_out {
                memory.quick_until = self.uptime.now() + AFTER_HAND_OUT;
            }
            let soon = self.look(&mut memory).await || self.uptime.now() < memory.quick_until;
            wait = if soon { LOOK_SOON } else { LOOK_LATER };
        }
    }

    /// Takes one look; answers whether the next should follow soon.
    async fn look(&mut self, memory: &mut Memory) -> bool {
        let ledger = match &mut self.ledger {
            Some(ledger) => ledger.borrow_and_update().clone(),
            None => Ledger::Absent,
        };
        memory.restore(&ledger);
        let before = self.pods.borrow_and_update().clone();
        let listed = self.pod_resources.list().await;
        self.looks.set(listed.is_ok());
        let pods = settled(&before, &self.pods.borrow().clone());
        let open = match listed {
            Ok(listed) => {
                if memory.said.take().is_some() {
                    tracing::info!("kubelet lists the pods' resources again");
                }
                Some(self.observe(memory, &listed, &pods, &ledger))
            }
            // Kubelet is down: what is known stays, and nothing is said to be gone.
            Err(error) => {
                let text = error.to_string();
                if memory.said.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "cannot ask kubelet who holds GPUs");
                    memory.said = Some(text);
                }
                self.metrics.api_error("pod_resources");
                None
            }
        };
        self.publish(memory, &ledger);
        open.is_some_and(|open| open.unresolved || open.lingering || ledger.in_motion())
    }

    fn observe(
        &self,
        memory: &mut Memory,
        listed: &[ListedPod],
        pods: &PodIndex,
        ledger: &Ledger,
    ) -> Open {
        let now = self.uptime.now();
        let releasing = ledger.releasing();
        let sighting = Sighting { listed, pods, releasing: &releasing, now };
        let open = memory.holders.observe(sighting, &mut |uid| self.cgroups.look(uid, now));
        for overlap in &open.overlaps {
            tracing::error!(
                gpu = overlap.gpu,
                before = ?overlap.before,
                now = ?overlap.now,
                "kubelet gave a GPU to a pod while containers of its last holder live",
            );
            self.metrics.overlap();
        }
        open
    }

    fn publish(&self, memory: &Memory, ledger: &Ledger) {
        let holders = memory.holders.by_gpu();
        self.observed.send_if_modified(|observed| {
            if observed.holders == *holders && observed.restored == memory.restored {
                return false;
            }
            *observed = Arc::new(Observed { holders: holders.clone(), restored: memory.restored });
            true
        });
        // Before the first look at the ledger a report would wipe out what an earlier run said.
        if matches!(ledger, Ledger::Unknown) {
            return;
        }
        let Some(gpus) = self.gpus.borrow().clone() else { return };
        let report = Report {
            gpus: gpus.iter().map(|gpu| status(gpu, holders)).collect(),
            agent_seen: self.agent_seen.clone(),
            released: memory.holders.released().iter().cloned().collect(),
        };
        self.metrics.gpus(&gpus);
        self.reports.send_if_modified(|known| {
            let differs = known.as_ref() != Some(&report);
            if differs {
                *known = Some(report);
            }
            differs
        });
    }
}

impl Memory {
    fn restore(&mut self, ledger: &Ledger) {
        if self.restored {
            return;
        }
        match ledger {
            Ledger::Unknown => {}
            Ledger::Absent => self.restored = true,
            Ledger::Present(node) => {
                if let Some(status) = &node.status {
                    self.holders.restore(&status.gpus, &status.released);
                }
                self.restored = true;
            }
        }
    }
}

/// The pods that were the same before and after kubelet was asked. Of the others it is not known
/// which of two pods of one name kubelet meant; the next look tells.
fn settled(before: &PodIndex, after: &PodIndex) -> PodIndex {
    let same = |name| before.get(name).map(|facts| &facts.uid);
    let pods = after.iter().filter(|(name, facts)| same(name) == Some(&facts.uid));
    pods.map(|(name, facts)| (name.clone(), facts.clone())).collect()
}

fn status(gpu: &super::gpu::Gpu, holders: &BTreeMap<String, Holder>) -> GpuStatus {
    GpuStatus {
        index: i32::try_from(gpu.info.index).unwrap_or(i32::MAX),
        id: gpu.info.id.clone(),
        numa_node: gpu.info.numa_node.and_then(|node| i32::try_from(node).ok()),
        health: if gpu.healthy() { GpuHealth::Healthy } else { GpuHealth::Unhealthy },
        reason: gpu.fault.clone(),
        holder: holders.get(&gpu.info.id).map(|holder| holder.pod.clone()),
    }
}

/// Waits for a change of the ledger; for ever where there is none.
async fn changed(
    ledger: &mut Option<watch::Receiver<Ledger>>,
) -> Result<(), watch::error::RecvError> {
    match ledger {
        Some(ledger) => ledger.changed().await,
        None => std::future::pending().await,
    }
}
