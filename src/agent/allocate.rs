//! Cluster side, pure: what a container is handed so that it sees its GPUs, and when it is refused.

use std::collections::BTreeMap;

use super::cgroup::Containers;
use super::gpu::GpuList;
use super::holders::Holder;
use super::wire::deviceplugin::{CdiDevice, ContainerAllocateResponse};

/// Environment variable by which NVIDIA's container runtime knows the GPUs of a container. The
/// name is NVIDIA's own.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// How a container is handed its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandOver {
    /// By device names that the container runtime looks up in its CDI specifications, which have
    /// this kind, for example `nvidia.com/gpu`.
    Cdi {
        /// `vendor/class`.
        kind: String,
    },
    /// By the environment variable [`VISIBLE_DEVICES`].
    Env,
}

/// Why a container is not handed the GPUs that kubelet chose. The message ends up in the pod's
/// status, so it speaks to a person.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// The id is not one of this node's GPUs.
    #[error("GPU {gpu} is not known on this node")]
    Unknown {
        /// The id.
        gpu: String,
    },
    /// The GPU is faulty.
    #[error("GPU {gpu} is unhealthy: {reason}")]
    Unhealthy {
        /// The id.
        gpu: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Containers of the last holder still live.
    #[error(
        "GPU {gpu} is still in use: containers of pod {namespace}/{name} (UID {uid}) live on this \
         node though the pod was deleted; create the pod again when they are gone"
    )]
    InUse {
        /// The id.
        gpu: String,
        /// Namespace of the holder.
        namespace: String,
        /// Name of the holder.
        name: String,
        /// UID of the holder.
        uid: String,
    },
}

impl Refusal {
    /// A short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "unknown_gpu",
            Self::Unhealthy { .. } => "unhealthy_gpu",
            Self::InUse { .. } => "gpu_in_use",
        }
    }
}

/// Says why these GPUs must not be handed out, if there is a reason.
///
/// `look` tells what is left of a pod by the UID of its cgroup. Kubelet gives a GPU away the moment
/// its pod is deleted by force, while the containers go on for seconds: a refused pod is a failed
/// pod, which is better than two pods on one GPU.
pub fn check(
    ids: &[String],
    gpus: &GpuList,
    holders: &BTreeMap<String, Holder>,
    look: &mut dyn FnMut(&str) -> Containers,
) -> Result<(), Refusal> {
    for id in ids {
        let gpu = gpus.get(id).ok_or_else(|| Refusal::Unknown { gpu: id.clone() })?;
        if let Some(reason) = &gpu.fault {
            return Err(Refusal::Unhealthy { gpu: id.clone(), reason: reason.clone() });
        }
        let Some(holder) = holders.get(id) else { continue };
        if look(&holder.cgroup_uid) == Containers::Alive {
            return Err(Refusal::InUse {
                gpu: id.clone(),
                namespace: holder.pod.namespace.clone(),
                name: holder.pod.name.clone(),
                uid: holder.pod.uid.clone(),
            });
        }
    }
    Ok(())
}

/// What the container is handed. The ids come in the order of the node's list, so that index 0
/// inside a container is the same GPU whenever the same GPUs are given.
pub fn hand_over(ids: &[String], gpus: &GpuList, how: &HandOver) -> ContainerAllocateResponse {
    let positions = gpus.positions();
    let mut ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    ids.sort_by_key(|id| (positions.get(id).copied().unwrap_or(usize::MAX), *id));
    let mut response = ContainerAllocateResponse::default();
    match how {
        HandOver::Env => {
            response.envs.insert(VISIBLE_DEVICES.to_owned(), ids.join(","));
        }
        HandOver::Cdi { kind } => {
            let device = |id: &&str| CdiDevice { name: format!("{kind}={id}") };
            response.cdi_devices = ids.iter().map(device).collect();
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::super::gpu::{Gpu, GpuInfo};
    use super::super::holders::{Holders, ListedPod, PodFacts, PodIndex, PodName, Sighting};
    use super::*;
    use std::time::Duration;

    fn node() -> GpuList {
        let gpu = |index: u32, fault: Option<&str>| Gpu {
            info: GpuInfo { index, id: format!("g{index}"), numa_node: None, device_files: vec![] },
            fault: fault.map(str::to_owned),
        };
        GpuList::new(vec![gpu(0, None), gpu(1, Some("xid 79")), gpu(2, None), gpu(10, None)])
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    fn held_by_u1(gpu: &str) -> Holders {
        let pod = PodName { namespace: "ns".to_owned(), name: "a".to_owned() };
        let facts = PodFacts { uid: "u1".to_owned(), cgroup_uid: "c1".to_owned(), finished: false };
        let pods = PodIndex::from([(pod.clone(), facts)]);
        let listed = [ListedPod { pod, gpus: [gpu.to_owned()].into() }];
        let mut holders = Holders::default();
        let sighting = Sighting {
            listed: &listed,
            pods: &pods,
            releasing: &BTreeMap::new(),
            now: Duration::ZERO,
        };
        holders.observe(sighting, &mut |_| Containers::Alive);
        holders
    }

    #[test]
    fn unknown_and_unhealthy_gpus_are_refused_by_name() {
        let check =
            |gpus: &[&str]| check(&ids(gpus), &node(), &BTreeMap::new(), &mut |_| Containers::Gone);
        assert_eq!(check(&["g0", "g2"]), Ok(()));
        let error = check(&["g0", "g7"]).expect_err("unknown");
        assert_eq!(error.to_string(), "GPU g7 is not known on this node");
        let error = check(&["g1"]).expect_err("unhealthy");
        assert_eq!(error.to_string(), "GPU g1 is unhealthy: xid 79");
    }

    #[test]
    fn a_gpu_is_refused_exactly_while_its_last_holder_lives() {
        let holders = held_by_u1("g0");
        for (left, refused) in [
            (Containers::Alive, true),
            (Containers::Empty, false),
            (Containers::Gone, false),
            (Containers::Unknown, false),
        ] {
            let result = check(&ids(&["g0"]), &node(), holders.by_gpu(), &mut |uid| {
                assert_eq!(uid, "c1", "the cgroup's UID is asked for");
                left
            });
            assert_eq!(result.is_err(), refused, "{left:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("pod ns/a (UID u1)"), "{error}");
            }
            let other = check(&ids(&["g2"]), &node(), holders.by_gpu(), &mut |_| left);
            assert_eq!(other, Ok(()), "another GPU is not concerned");
        }
    }

    #[test]
    fn of_several_gpus_one_that_is_in_use_refuses_them_all() {
        let holders = held_by_u1("g2");
        let mut alive = |_: &str| Containers::Alive;
        let error = check(&ids(&["g0", "g2"]), &node(), holders.by_gpu(), &mut alive);
        assert!(error.is_err_and(|error| error.to_string().contains("GPU g2 is still in use")));
        assert_eq!(check(&ids(&["g0", "g10"]), &node(), holders.by_gpu(), &mut alive), Ok(()));
    }

    #[test]
    fn gpus_are_handed_over_in_the_order_of_the_node() {
        let given = ids(&["g10", "g2", "g0"]);
        let env = hand_over(&given, &node(), &HandOver::Env);
        assert_eq!(env.envs.get(VISIBLE_DEVICES).map(String::as_str), Some("g0,g2,g10"));
        assert!(env.cdi_devices.is_empty());
        let how = HandOver::Cdi { kind: "nvidia.com/gpu".to_owned() };
        let cdi = hand_over(&given, &node(), &how);
        let names: Vec<&str> = cdi.cdi_devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["nvidia.com/gpu=g0", "nvidia.com/gpu=g2", "nvidia.com/gpu=g10"]);
        assert!(cdi.envs.is_empty());
    }
}
