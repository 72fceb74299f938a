//! Cluster side: GPUs that do not exist, for clusters without any.
//!
//! Everything but the hardware is real: kubelet hands out their ids, pods hold them, and they fail
//! and recover. Faults come from a file that is read again several times a second, with one fault
//! a line, `index reason`:
//!
//! ```text
//! 5 xid 79: GPU has fallen off the bus
//! ```
//!
//! A line that is taken out ends the fault; the GPU is healthy again after the hold time, as a
//! real one would be. The file need not exist. In a pod it lies on a `hostPath`, so that
//! `echo "5 test" > FILE` on the node is all it takes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use super::super::gpu::GpuInfo;
use super::super::health::Probe;
use super::{Backend, BackendError, Sink};

/// How often the fault file is read.
const READ_EVERY: Duration = Duration::from_millis(200);

/// Simulated GPUs.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Name of the node, from which the UUIDs are made.
    pub node: String,
    /// How many GPUs.
    pub gpus: u32,
    /// How many NUMA nodes they are spread over, in blocks.
    pub numa_nodes: u32,
    /// The fault file.
    pub faults: Option<PathBuf>,
}

impl Simulated {
    /// The GPUs of the node.
    pub fn infos(&self) -> Vec<GpuInfo> {
        let per_numa_node = self.gpus.div_ceil(self.numa_nodes.max(1)).max(1);
        (0..self.gpus)
            .map(|index| GpuInfo {
                index,
                id: uuid(&self.node, index),
                numa_node: (self.numa_nodes > 0).then_some(index / per_numa_node),
                device_files: vec![],
            })
            .collect()
    }
}

impl Backend for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn run(&mut self, sink: &mut Sink) -> Result<(), BackendError> {
        let infos = self.infos();
        // Faults that stand in the file at the start are seen before the first list goes out.
        let mut said = None;
        let mut faults = self.read_faults(&mut said);
        sink.discovered(&infos);
        while !sink.stopped() {
            for info in &infos {
                let probe = match faults.get(&info.index) {
                    Some(reason) => Probe::Bad(reason.clone()),
                    None => Probe::Recovered,
                };
                sink.probed(&info.id, &probe);
            }
            sink.pause(READ_EVERY);
            faults = self.read_faults(&mut said);
        }
        Ok(())
    }
}

impl Simulated {
    fn read_faults(&self, said: &mut Option<String>) -> BTreeMap<u32, String> {
        let Some(path) = &self.faults else { return BTreeMap::new() };
        let (faults, problem) = read(path);
        if problem.is_some() && problem != *said {
            tracing::warn!(file = %path.display(), problem, "faults that cannot be read");
        }
        *said = problem;
        faults
    }
}

fn read(path: &Path) -> (BTreeMap<u32, String>, Option<String>) {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (BTreeMap::new(), None),
        Err(error) => (BTreeMap::new(), Some(error.to_string())),
    }
}

/// The faults of a file, and the first line that is none.
fn parse(text: &str) -> (BTreeMap<u32, String>, Option<String>) {
    let mut faults = BTreeMap::new();
    let mut problem = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (index, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match index.parse() {
            Ok(index) => {
                let reason = reason.trim();
                let reason = if reason.is_empty() { "injected fault" } else { reason };
                faults.insert(index, reason.to_owned());
            }
            Err(_) => problem = problem.or_else(|| Some(format!("not `index reason`: {line}"))),
        }
    }
    (faults, problem)
}

/// A UUID that is the same for the same node name and index, and another for any other.
fn uuid(node: &str, index: u32) -> String {
    let high = fnv1a(format!("{node}/{index}/high").as_bytes());
    let low = fnv1a(format!("{node}/{index}/low").as_bytes());
    // The version and variant bits of a UUID made from a name by a rule of one's own.
    let high = (high & !0xf000) | 0x8000;
    let low = (low & !(0b11 << 62)) | (0b10 << 62);
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff,
    )
}

/// FNV-1a with a final mix, so that names that differ in one digit differ everywhere.
fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn simulated(node: &str, gpus: u32, numa_nodes: u32) -> Vec<GpuInfo> {
        Simulated { node: node.to_owned(), gpus, numa_nodes, faults: None }.infos()
    }

    #[test]
    fn uuids_are_stable_distinct_and_well_formed() {
        let mut ids = BTreeSet::new();
        for node in ["n1", "n2", "node-with-a-long-name.example"] {
            for info in simulated(node, 16, 2) {
                assert_eq!(info.id.len(), 40, "{}", info.id);
                let groups: Vec<usize> = info.id[4..].split('-').map(str::len).collect();
                assert_eq!(groups, [8, 4, 4, 4, 12]);
                assert_eq!(&info.id[18..19], "8");
                assert!(ids.insert(info.id));
            }
        }
        assert_eq!(ids.len(), 48);
        assert_eq!(simulated("n1", 8, 2), simulated("n1", 8, 2));
    }

    #[test]
    fn numa_nodes_are_filled_in_blocks() {
        let numa = |gpus, nodes| -> Vec<Option<u32>> {
            simulated("n", gpus, nodes).iter().map(|info| info.numa_node).collect()
        };
        assert_eq!(numa(4, 2), [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(numa(3, 2), [Some(0), Some(0), Some(1)]);
        assert_eq!(numa(2, 0), [None, None]);
        assert_eq!(numa(1, 4), [Some(0)]);
    }

    #[test]
    fn fault_files_are_read_line_by_line() {
        let (faults, problem) = parse("# comment\n5 xid 79: gone\n\n 2\nx y\n");
        assert_eq!(faults.get(&5).map(String::as_str), Some("xid 79: gone"));
        assert_eq!(faults.get(&2).map(String::as_str), Some("injected fault"));
        assert_eq!(faults.len(), 2);
        assert_eq!(problem.as_deref(), Some("not `index reason`: x y"));
        assert_eq!(read(Path::new("/does/not/exist")), (BTreeMap::new(), None));
    }
}
