//! Cluster side: arguments of `sluice agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::agent::allocate::HandOver;
use crate::agent::backend::nvml::NvmlBackend;
use crate::agent::backend::simulated::Simulated;
use crate::agent::health::Damping;
use crate::agent::options::{BackendOptions, Options};
use crate::api::names;

/// The simulated GPUs' fault file in kubelet's plugin folder. Kubelet removes sockets there, and no
/// other files.
const FAULTS: &str = "sluice-simulated-faults";

/// Arguments of `sluice agent`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,
    /// Extended resource that stands for one GPU.
    #[arg(long, value_name = "RESOURCE", default_value = names::DEFAULT_RESOURCE)]
    resource_name: String,
    /// Kubelet's plugin folder.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    plugin_dir: PathBuf,
    /// Socket of kubelet's pod resources API.
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pod_resources: PathBuf,
    /// Root of the cgroup tree. Pods are found below every `kubepods` in it.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_root: PathBuf,
    /// Where the GPUs come from.
    #[arg(long, value_enum, default_value_t = BackendKind::Nvml)]
    backend: BackendKind,
    /// NVML: the library, where the loader does not find it by itself.
    #[arg(long, value_name = "FILE")]
    nvml_library: Option<PathBuf>,
    /// Simulated: how many GPUs.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    simulated_gpus: u32,
    /// Simulated: how many NUMA nodes the GPUs are spread over.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    simulated_numa_nodes: u32,
    /// Simulated: a file of faults, one `index reason` a line, read again while the agent runs. By
    /// default `sluice-simulated-faults` in kubelet's plugin folder, which a person on the node
    /// can write to. It need not exist.
    #[arg(long, value_name = "FILE")]
    simulated_faults: Option<PathBuf>,
    /// For how many seconds a GPU has to be good before it is healthy again. Doubles when it fails
    /// again soon.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    recovery_seconds: u64,
    /// How a container is handed its GPUs: by the environment variable `NVIDIA_VISIBLE_DEVICES`, or
    /// by CDI device names.
    #[arg(long, value_enum, default_value_t = HandOverKind::Env)]
    hand_over: HandOverKind,
    /// CDI: vendor and class of the device names.
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "nvidia.com/gpu")]
    cdi_kind: String,
    /// CDI: write a specification to this folder. Leave it out where NVIDIA's container toolkit
    /// writes one.
    #[arg(long, value_name = "DIR")]
    cdi_dir: Option<PathBuf>,
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8081")]
    health_address: SocketAddr,
    /// Compare the plugin folder twice a second and use no inotify.
    #[arg(long)]
    poll_only: bool,
}

/// Where GPUs come from.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BackendKind {
    /// NVIDIA's management library.
    Nvml,
    /// GPUs that do not exist, for clusters without any.
    Simulated,
}

/// How a container is handed its GPUs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum HandOverKind {
    /// By an environment variable.
    Env,
    /// By CDI device names.
    Cdi,
}

impl From<Args> for Options {
    fn from(args: Args) -> Self {
        let backend = match args.backend {
            BackendKind::Nvml => BackendOptions::Nvml(NvmlBackend {
                library: args.nvml_library,
                pci_devices: "/sys/bus/pci/devices".into(),
                dev: "/dev".into(),
            }),
            BackendKind::Simulated => BackendOptions::Simulated(Simulated {
                node: args.node_name.clone(),
                gpus: args.simulated_gpus,
                numa_nodes: args.simulated_numa_nodes,
                faults: Some(args.simulated_faults.unwrap_or_else(|| args.plugin_dir.join(FAULTS))),
            }),
        };
        Self {
            node: args.node_name,
            resource: args.resource_name,
            plugin_dir: args.plugin_dir,
            pod_resources_socket: args.pod_resources,
            cgroup_root: args.cgroup_root,
            backend,
            damping: Damping::with_hold(Duration::from_secs(args.recovery_seconds)),
            hand_over: match args.hand_over {
                HandOverKind::Env => HandOver::Env,
                HandOverKind::Cdi => HandOver::Cdi { kind: args.cdi_kind },
            },
            cdi_dir: args.cdi_dir,
            health_address: Some(args.health_address),
            poll_only: args.poll_only,
        }
    }
}
