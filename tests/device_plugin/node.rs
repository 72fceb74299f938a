//! Cluster side: a node of these tests, with folders in place of kubelet's and of the cgroup tree.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sluice::agent::allocate::HandOver;
use sluice::agent::backend::simulated::Simulated;
use sluice::agent::health::Damping;
use sluice::agent::metrics::Metrics;
use sluice::agent::options::{BackendOptions, Options};
use sluice::agent::wire::deviceplugin::device_plugin_client::DevicePluginClient;
use sluice::agent::wire::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, PreferredAllocationRequest,
};
use sluice::agent::{self, AgentError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;

use super::api::{Api, NODE};
use super::kubelet::{PodList, within};

pub(crate) const GPUS: u32 = 8;

/// A node: folders, kubelet's pod list, an API server, and the agent when it is started.
pub(crate) struct Node {
    pub(crate) root: tempfile::TempDir,
    pub(crate) options: Options,
    pub(crate) pods: PodList,
    pub(crate) api: Api,
    pub(crate) metrics: Metrics,
}

/// A running agent.
pub(crate) struct Agent {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), AgentError>>,
}

impl Agent {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        within(self.task).await.unwrap().unwrap();
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        let filter = tracing_subscriber::EnvFilter::from_env("SLUICE_LOG");
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer();
        // Another test of this process may have been first.
        let _ = log.try_init();
        let root = tempfile::tempdir().unwrap();
        for folder in ["plugins", "cgroup/kubepods"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let pods = PodList::default();
        let socket = root.path().join("pods.sock");
        pods.serve(&socket);
        let options = Options {
            node: NODE.to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            plugin_dir: root.path().join("plugins"),
            pod_resources_socket: socket,
            cgroup_root: root.path().join("cgroup"),
            backend: BackendOptions::Simulated(Simulated {
                node: NODE.to_owned(),
                gpus: GPUS,
                numa_nodes: 2,
                faults: Some(root.path().join("faults")),
            }),
            damping: Damping::with_hold(Duration::from_millis(600)),
            hand_over: HandOver::Env,
            cdi_dir: None,
            health_address: None,
            poll_only: false,
        };
        Self { root, options, pods, api: Api::new(), metrics: Metrics::default() }
    }

    pub(crate) fn plugins(&self) -> &Path {
        &self.options.plugin_dir
    }

    pub(crate) fn start(&self) -> Agent {
        self.start_with(Some(self.api.client()))
    }

    pub(crate) fn start_with(&self, client: Option<kube::Client>) -> Agent {
        let shutdown = CancellationToken::new();
        let (options, metrics) = (self.options.clone(), self.metrics.clone());
        let running = agent::run_with(options, client, metrics, shutdown.clone());
        Agent { shutdown, task: tokio::spawn(running) }
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        let BackendOptions::Simulated(simulated) = &self.options.backend else { unreachable!() };
        simulated.infos().into_iter().map(|info| info.id).collect()
    }

    pub(crate) fn set_faults(&self, text: &str) {
        // Replaced as a whole, so that the agent never reads half a file.
        let unfinished = self.root.path().join("faults.new");
        std::fs::write(&unfinished, text).unwrap();
        std::fs::rename(&unfinished, self.root.path().join("faults")).unwrap();
    }

    pub(crate) fn cgroup(&self, uid: &str) -> PathBuf {
        self.options.cgroup_root.join(format!("kubepods/burstable/pod{uid}"))
    }

    /// Kubelet has started the pod: a process lives in its cgroup.
    pub(crate) fn processes(&self, uid: &str, alive: bool) {
        std::fs::create_dir_all(self.cgroup(uid)).unwrap();
        let text = format!("populated {}\n", u8::from(alive));
        std::fs::write(self.cgroup(uid).join("cgroup.events"), text).unwrap();
    }

    pub(crate) fn own_sockets(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.plugins()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("sluice-")).collect()
    }
}

pub(crate) type Plugin = DevicePluginClient<Channel>;

pub(crate) async fn allocate(
    plugin: &mut Plugin,
    ids: &[String],
) -> Result<ContainerAllocateResponse, Status> {
    let request = AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids: ids.to_vec() }],
    };
    let mut response = within(plugin.allocate(request)).await?.into_inner();
    assert_eq!(response.container_responses.len(), 1);
    Ok(response.container_responses.remove(0))
}

pub(crate) async fn prefer(plugin: &mut Plugin, available: &[String], size: i32) -> Vec<String> {
    let request = PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: vec![],
            allocation_size: size,
        }],
    };
    let response = within(plugin.get_preferred_allocation(request)).await.unwrap().into_inner();
    response.container_responses[0].device_i_ds.clone()
}

pub(crate) fn healthy(devices: &[Device]) -> usize {
    devices.iter().filter(|device| device.health == "Healthy").count()
}

pub(crate) fn reservation(uid: &str, gpus: &[&String], state: &str, since: &str) -> Value {
    json!({
        "uid": uid, "namespace": "ns", "name": uid, "kind": "Direct", "state": state,
        "gpus": gpus, "since": since,
    })
}
