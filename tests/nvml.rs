//! Cluster side: the NVML backend on a library of these tests, `tests/nvml/stub.c`, through the
//! real wrapper: eight GPUs that report XIDs, fall off the bus and come back.

#![cfg(feature = "cluster")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use sluice::agent::backend::nvml::NvmlBackend;
use sluice::agent::backend::{self, Backend as _};
use sluice::agent::clock::Uptime;
use sluice::agent::gpu::GpuList;
use sluice::agent::health::Damping;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The longest time that anything may take in these tests; opening NVML anew takes 5 to 15 s.
const LIMIT: Duration = Duration::from_secs(40);

/// The library, compiled once for this process.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvidia-ml.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/stub.c");
        let compiler = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&path, &source])
            .output()
            .expect("this test needs a C compiler");
        let text = String::from_utf8_lossy(&compiler.stderr);
        assert!(compiler.status.success(), "{text}");
        (folder, path)
    });
    path
}

/// A node with the library, the backend running on it.
struct Node {
    folder: tempfile::TempDir,
    list: watch::Receiver<Option<GpuList>>,
    shutdown: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Node {
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // A copy is another library to the loader, with GPUs of its own.
        let library_path = root.join("libnvidia-ml.so.1");
        std::fs::copy(library(), &library_path).unwrap();
        let fifo = Command::new("mkfifo").arg(root.join("events")).status().unwrap();
        assert!(fifo.success());
        for bus in 0xa0..0xa8 {
            let slot = root.join(format!("pci/0000:{bus:02x}:00.0"));
            std::fs::create_dir_all(&slot).unwrap();
            // The last slot has no NUMA node, as the kernel writes it.
            let node = if bus == 0xa7 { -1 } else { i32::from(bus >= 0xa4) };
            std::fs::write(slot.join("numa_node"), format!("{node}\n")).unwrap();
        }
        prepare(root);
        let backend = NvmlBackend {
            library: Some(library_path),
            pci_devices: root.join("pci"),
            dev: "/dev".into(),
        };
        assert_eq!(backend.name(), "nvml");
        let shutdown = CancellationToken::new();
        let damping = Damping::with_hold(Duration::from_millis(1500));
        let (thread, list) =
            backend::spawn(Box::new(backend), damping, Uptime::start(), shutdown.clone()).unwrap();
        Self { folder, list, shutdown, thread: Some(thread) }
    }

    async fn until(&mut self, wanted: impl Fn(&GpuList) -> bool) -> GpuList {
        let found = self.list.wait_for(|list| list.as_ref().is_some_and(&wanted));
        let found = tokio::time::timeout(LIMIT, found).await.expect("in time").unwrap();
        found.clone().unwrap()
    }

    async fn until_faulty(&mut self, index: usize) -> String {
        let list = self.until(|list| !healthy(list, index)).await;
        list.iter().nth(index).unwrap().fault.clone().unwrap()
    }

    fn event(&self, line: &str) {
        std::fs::write(self.folder.path().join("events"), format!("{line}\n")).unwrap();
    }

    fn set(&self, file: &str, text: &str) {
        set(self.folder.path(), file, text);
    }

    /// Waits until the library was opened so many times, or tried to.
    async fn until_opened(&self, times: usize) {
        let opened = || {
            let text = std::fs::read_to_string(self.folder.path().join("opened"));
            text.map_or(0, |text| text.lines().count())
        };
        let wait = async {
            while opened() < times {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LIMIT, wait).await.expect("opened in time");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.cancel();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// Replaces a file as a whole, so that the library never reads half of it.
fn set(folder: &Path, file: &str, text: &str) {
    let unfinished = folder.join(format!("{file}.new"));
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, folder.join(file)).unwrap();
}

fn healthy(list: &GpuList, index: usize) -> bool {
    list.iter().nth(index).is_some_and(sluice::agent::gpu::Gpu::healthy)
}

fn all_healthy(list: &GpuList) -> bool {
    list.len() == 8 && list.iter().all(sluice::agent::gpu::Gpu::healthy)
}

#[tokio::test]
async fn gpus_are_found_with_their_uuids_numa_nodes_and_files() {
    let mut node = Node::start(|_| {});
    let list = node.until(all_healthy).await;
    for (index, gpu) in list.iter().enumerate() {
        assert_eq!(usize::try_from(gpu.info.index).unwrap(), index);
        assert_eq!(gpu.info.id, format!("GPU-5a5a5a5a-0000-4000-8000-{index:012}"));
        assert_eq!(gpu.info.device_files, [format!("/dev/nvidia{index}")]);
        let numa = (index < 7).then_some(u32::from(index >= 4));
        assert_eq!(gpu.info.numa_node, numa);
    }
}

#[tokio::test]
async fn xids_of_applications_are_ignored_and_others_are_faults_that_pass() {
    let mut node = Node::start(|_| {});
    node.until(all_healthy).await;
    // In the order of the FIFO: when the last shows, the others have been taken in.
    for xid in [13, 31, 43, 45, 68, 109] {
        node.event(&format!("2 {xid}"));
    }
    node.event("3 62");
    assert_eq!(node.until_faulty(3).await, "xid 62");
    let list = node.list.borrow().clone().unwrap();
    assert!(healthy(&list, 2), "an application's error is no fault of the GPU");
    node.until(all_healthy).await;
}

#[tokio::test]
async fn a_fatal_xid_lasts_until_the_driver_wants_no_recovery_any_more() {
    let mut node = Node::start(|folder| set(folder, "recovery", "4 0\n5 0\n"));
    node.until(all_healthy).await;
    // The driver asks for a reset of 4, and says nothing about 6.
    node.set("recovery", "4 1\n5 0\n");
    assert_eq!(node.until_faulty(4).await, "the driver asks for a GPU reset");
    node.event("4 79");
    node.event("5 0");
    node.event("6 48");
    assert_eq!(node.until_faulty(5).await, "double-bit memory error");
    assert_eq!(node.until_faulty(6).await, "xid 48");
    node.until(|list| healthy(list, 5) && !healthy(list, 6)).await;
    assert!(!healthy(&node.list.borrow().clone().unwrap(), 4));
    node.set("recovery", "4 0\n5 0\n");
    node.until(|list| healthy(list, 4)).await;
    let list = node.list.borrow().clone().unwrap();
    assert!(!healthy(&list, 6), "without a word of the driver good probes alone are no proof");
}

#[tokio::test]
async fn a_lost_gpu_comes_back_and_the_library_is_opened_anew_for_it() {
    let mut node = Node::start(|_| {});
    node.until(all_healthy).await;
    node.set("lost", "1\n");
    let reason = node.until_faulty(1).await;
    assert!(reason.contains("fell off the bus"), "{reason}");
    // The library answers the wait itself with the loss; the probes say which GPU it is.
    node.event("lost");
    node.until_opened(2).await;
    let list = node.until(|list| list.len() == 8).await;
    assert!(!healthy(&list, 1) && healthy(&list, 0), "the others stay");
    node.set("lost", "");
    node.until(all_healthy).await;
}

#[tokio::test]
async fn gpus_do_not_drop_out_while_the_library_is_closed_for_a_moment() {
    let mut node = Node::start(|_| {});
    node.until(all_healthy).await;
    node.set("closed", "");
    node.set("lost", "1\n");
    node.until_opened(4).await;
    let list = node.list.borrow().clone().unwrap();
    let out: Vec<usize> = (0..8).filter(|&index| !healthy(&list, index)).collect();
    assert_eq!(out, [1], "only the one that is lost");
    node.set("lost", "");
    std::fs::remove_file(node.folder.path().join("closed")).unwrap();
    node.until(all_healthy).await;
}

#[tokio::test]
async fn a_gpu_that_is_not_listed_any_more_stays_known() {
    let mut node = Node::start(|_| {});
    let before = node.until(all_healthy).await;
    node.set("hidden", "6\n");
    let list = node.until(|list| !healthy(list, 6)).await;
    assert_eq!(list.len(), 8);
    let ids = |list: &GpuList| list.iter().map(|gpu| gpu.info.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&list), ids(&before));
    node.set("hidden", "");
    node.until(all_healthy).await;
}

#[tokio::test]
async fn a_gpu_without_events_is_watched_by_probes() {
    let mut node = Node::start(|folder| set(folder, "recovery", "7 0\n"));
    node.until(all_healthy).await;
    node.set("recovery", "7 2\n");
    assert_eq!(node.until_faulty(7).await, "the driver asks for a reboot of the node");
    node.event("0 62");
    assert_eq!(node.until_faulty(0).await, "xid 62", "the others still report events");
}

#[tokio::test]
async fn a_node_without_the_library_has_no_gpus_and_the_agent_stays_up() {
    let shutdown = CancellationToken::new();
    let backend = NvmlBackend {
        library: Some("/does/not/exist/libnvidia-ml.so.1".into()),
        pci_devices: "/sys/bus/pci/devices".into(),
        dev: "/dev".into(),
    };
    let damping = Damping::with_hold(Duration::from_secs(1));
    let (thread, mut list) =
        backend::spawn(Box::new(backend), damping, Uptime::start(), shutdown.clone()).unwrap();
    let found = tokio::time::timeout(LIMIT, list.wait_for(Option::is_some)).await.unwrap();
    assert!(found.unwrap().as_ref().unwrap().is_empty());
    assert!(!thread.is_finished());
    shutdown.cancel();
    tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
}
