//! Cluster side: the device plugin service that kubelet calls.
//!
//! It holds no state of its own. The GPUs, the reservations and the holders come from channels of
//! which it reads the newest value; what was handed out comes back through kubelet's pod resources.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::allocate::{self, HandOver};
use super::cgroup::{Cgroups, Containers};
use super::choose;
use super::clock::Uptime;
use super::gpu::GpuList;
use super::ledger::Ledger;
use super::metrics::Metrics;
use super::observe::Observed;
use super::wire::deviceplugin::device_plugin_server::DevicePlugin;
use super::wire::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationRequest,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, TopologyInfo,
};
use super::wire::{HEALTHY, UNHEALTHY};

/// How long the first calls wait for the memory of an earlier run, which lies in the ledger. Pods
/// come from the API server, so where there are calls there is normally an answer within
/// milliseconds; without one, work goes on with what kubelet and the cgroups say.
const MEMORY_WAIT: Duration = Duration::from_secs(3);

/// What every instance of the service shares.
#[derive(Debug)]
pub(super) struct Shared {
    /// The GPUs; `None` until the backend has had its first say.
    pub gpus: watch::Receiver<Option<GpuList>>,
    /// The ledger of this node.
    pub ledger: watch::Receiver<Ledger>,
    /// Who holds what.
    pub observed: watch::Receiver<Arc<Observed>>,
    /// Wakes the observer: something was handed out.
    pub look_now: Arc<Notify>,
    /// Pods' cgroups.
    pub cgroups: Arc<Cgroups>,
    /// How containers are handed their GPUs.
    pub hand_over: HandOver,
    /// Counters.
    pub metrics: Metrics,
    /// The agent's clock.
    pub uptime: Uptime,
}

/// The service behind one socket.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    shared: Arc<Shared>,
    /// How many device lists kubelet watches through this socket.
    streams: watch::Sender<usize>,
    /// Ends the streams of this socket.
    closing: CancellationToken,
}

impl Plugin {
    /// A service whose streams end when `closing` is cancelled.
    pub(super) fn new(shared: Arc<Shared>, closing: CancellationToken) -> Self {
        Self { shared, streams: watch::Sender::new(0), closing }
    }

    /// Follows how many device lists are being watched.
    pub(super) fn streams(&self) -> watch::Receiver<usize> {
        self.streams.subscribe()
    }
}

/// Counts one watched device list for as long as it lives.
struct Watched(watch::Sender<usize>);

impl Watched {
    fn new(streams: &watch::Sender<usize>) -> Self {
        streams.send_modify(|count| *count += 1);
        Self(streams.clone())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

type DeviceLists = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

/// The options that kubelet is told when the plugin registers and when it asks.
pub(super) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream = DeviceLists;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        // Each stream has its own receiver, so that no stream takes a change away from another.
        let mut gpus = self.shared.gpus.clone();
        gpus.mark_changed();
        let state = (gpus, self.closing.clone(), Watched::new(&self.streams));
        let lists = futures::stream::unfold(state, |(mut gpus, closing, watched)| async move {
            loop {
                tokio::select! {
                    () = closing.cancelled() => return None,
                    // The backend's thread lives as long as the agent.
                    changed = gpus.changed() => changed.ok()?,
                }
                let list = gpus.borrow_and_update().as_ref().map(devices);
                if let Some(list) = list {
                    return Some((Ok(list), (gpus, closing, watched)));
                }
            }
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let gpus = self.shared.gpu_list();
        let promises = self.shared.ledger.borrow().promises();
        let avoid: BTreeSet<String> = self.shared.observed.borrow().lingering().collect();
        let answer = |request: ContainerPreferredAllocationRequest| {
            let size = usize::try_from(request.allocation_size).unwrap_or(0);
            let request = choose::Request {
                available: request.available_device_i_ds.into_iter().collect(),
                must_include: request.must_include_device_i_ds.into_iter().collect(),
                size,
            };
            choose::prefer(&request, &promises, &gpus, &avoid)
                .map(|device_i_ds| ContainerPreferredAllocationResponse { device_i_ds })
                .map_err(|error| Status::invalid_argument(error.to_string()))
        };
        let requests = request.into_inner().container_requests.into_iter();
        let container_responses = requests.map(answer).collect::<Result<_, _>>()?;
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        self.shared.remember().await;
        let gpus = self.shared.gpu_list();
        let requests = request.into_inner().container_requests;
        let mut container_responses = Vec::with_capacity(requests.len());
        for request in requests {
            let ids = request.devices_ids;
            if let Err(refusal) = self.shared.check(&ids, &gpus) {
                tracing::warn!(?ids, %refusal, "refused to hand out GPUs");
                self.shared.metrics.allocation(refusal.label());
                self.shared.look_now.notify_one();
                return Err(Status::failed_precondition(refusal.to_string()));
            }
            tracing::info!(?ids, "handing out GPUs");
            let response = allocate::hand_over(&ids, &gpus, &self.shared.hand_over);
            container_responses.push(response);
            self.shared.metrics.allocation("ok");
        }
        self.shared.look_now.notify_one();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

impl Shared {
    fn gpu_list(&self) -> GpuList {
        self.gpus.borrow().clone().unwrap_or_default()
    }

    fn check(&self, ids: &[String], gpus: &GpuList) -> Result<(), allocate::Refusal> {
        let observed = self.observed.borrow().clone();
        let now = self.uptime.now();
        allocate::check(ids, gpus, &observed.holders, &mut |uid| {
            let containers = self.cgroups.look(uid, now);
            if containers == Containers::Unknown {
                tracing::warn!(uid, "cannot tell whether containers of the last holder live");
            }
            containers
        })
    }

    /// Waits until holders of an earlier run are known, or cannot be known soon.
    async fn remember(&self) {
        let mut observed = self.observed.clone();
        let restored = observed.wait_for(|observed| observed.restored);
        if tokio::time::timeout(MEMORY_WAIT, restored).await.is_err() {
            tracing::warn!("handing out GPUs without the ledger's word about earlier holders");
        }
    }
}

/// The device list as kubelet takes it.
fn devices(gpus: &GpuList) -> ListAndWatchResponse {
    let device = |gpu: &super::gpu::Gpu| Device {
        id: gpu.info.id.clone(),
        health: if gpu.healthy() { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology: gpu
            .info
            .numa_node
            .map(|node| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] }),
    };
    ListAndWatchResponse { devices: gpus.iter().map(device).collect() }
}
