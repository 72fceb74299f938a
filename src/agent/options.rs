//! Cluster side: what the agent can be told.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::allocate::HandOver;
use super::backend::Backend;
use super::backend::nvml::NvmlBackend;
use super::backend::simulated::Simulated;
use super::health::Damping;

/// Where GPUs come from.
#[derive(Clone, Debug)]
pub enum BackendOptions {
    /// NVIDIA's management library.
    Nvml(NvmlBackend),
    /// GPUs that do not exist.
    Simulated(Simulated),
}

impl BackendOptions {
    pub(super) fn build(self) -> Box<dyn Backend> {
        match self {
            Self::Nvml(backend) => Box::new(backend),
            Self::Simulated(backend) => Box::new(backend),
        }
    }
}

/// What the agent can be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the node, which is also the name of its ledger.
    pub node: String,
    /// The extended resource that stands for one GPU.
    pub resource: String,
    /// Kubelet's plugin folder.
    pub plugin_dir: PathBuf,
    /// Socket of kubelet's pod resources API.
    pub pod_resources_socket: PathBuf,
    /// Root of the cgroup tree.
    pub cgroup_root: PathBuf,
    /// Where GPUs come from.
    pub backend: BackendOptions,
    /// How long a GPU has to be good before it is healthy again, and how flapping is damped.
    pub damping: Damping,
    /// How containers are handed their GPUs.
    pub hand_over: HandOver,
    /// Folder for a CDI specification, if one is to be written.
    pub cdi_dir: Option<PathBuf>,
    /// Address of `/healthz`, `/readyz` and `/metrics`; none is opened without one.
    pub health_address: Option<SocketAddr>,
    /// Compare the plugin folder by the clock only.
    pub poll_only: bool,
}
