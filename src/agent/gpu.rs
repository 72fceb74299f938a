//! Cluster side, pure: the GPUs of a node as a backend sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What a GPU is; does not change while the node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Index on the node, from 0.
    pub index: u32,
    /// The GPU's UUID. Kubelet takes ids of at most 63 characters; a UUID has 40.
    pub id: String,
    /// NUMA node that the GPU is attached to, if known.
    pub numa_node: Option<u32>,
    /// Device files of this GPU alone, for a CDI specification.
    pub device_files: Vec<String>,
}

/// A GPU and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// What it is.
    pub info: GpuInfo,
    /// Why no work may be placed on it; `None` while it is healthy.
    pub fault: Option<String>,
}

impl Gpu {
    /// Whether work may be placed on it.
    pub fn healthy(&self) -> bool {
        self.fault.is_none()
    }
}

/// All GPUs of the node, in the order of their index. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuList(Arc<Vec<Gpu>>);

impl GpuList {
    /// Sorts the GPUs by index, then id.
    pub fn new(mut gpus: Vec<Gpu>) -> Self {
        gpus.sort_by(|a, b| (a.info.index, &a.info.id).cmp(&(b.info.index, &b.info.id)));
        Self(Arc::new(gpus))
    }

    /// The GPUs in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Gpu> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The GPU with this id.
    pub fn get(&self, id: &str) -> Option<&Gpu> {
        self.0.iter().find(|gpu| gpu.info.id == id)
    }

    /// Position of each id in the order of the list.
    pub fn positions(&self) -> BTreeMap<&str, usize> {
        self.0.iter().enumerate().map(|(at, gpu)| (gpu.info.id.as_str(), at)).collect()
    }
}

impl<'a> IntoIterator for &'a GpuList {
    type Item = &'a Gpu;
    type IntoIter = std::slice::Iter<'a, Gpu>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
