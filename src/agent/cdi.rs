//! Cluster side: the CDI specification, for container runtimes that find devices by name.
//!
//! On a node with NVIDIA's container toolkit the toolkit writes a specification that also brings
//! the driver's libraries, and this one is not wanted: two specifications of one kind clash. It is
//! written only where a folder is configured, and hands over the device files alone.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::gpu::{Gpu, GpuList};
use super::metrics::Metrics;

/// The version of the format; everything used here is in it, and every runtime with CDI reads it.
const CDI_VERSION: &str = "0.5.0";
/// Device files that every container with a GPU needs, in `/dev`.
const CONTROL_FILES: [&str; 4] = ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"];

/// Where a specification is written and what it names.
#[derive(Clone, Debug)]
pub(super) struct CdiFile {
    /// The folder, usually `/var/run/cdi`.
    pub folder: PathBuf,
    /// `vendor/class`.
    pub kind: String,
    /// Where device files are, usually `/dev`.
    pub dev: PathBuf,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification<'a> {
    cdi_version: &'static str,
    kind: &'a str,
    devices: Vec<Device<'a>>,
    #[serde(skip_serializing_if = "Edits::is_empty")]
    container_edits: Edits,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: Edits,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<Node>,
}

#[derive(Serialize)]
struct Node {
    path: String,
}

impl Edits {
    fn is_empty(&self) -> bool {
        self.env.is_empty() && self.device_nodes.is_empty()
    }
}

impl CdiFile {
    /// Writes the specification now and at every change of the GPUs, until shutdown.
    pub(super) async fn keep(
        self,
        mut gpus: watch::Receiver<Option<GpuList>>,
        metrics: Metrics,
        shutdown: CancellationToken,
    ) {
        gpus.mark_changed();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = gpus.changed() => if changed.is_err() { return },
            }
            let list = gpus.borrow_and_update().clone();
            let Some(list) = list else { continue };
            if let Err(error) = self.write(&list) {
                let path = self.path();
                tracing::error!(file = %path.display(), %error, "CDI specification not written");
                metrics.api_error("cdi_file");
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("sluice-{}.json", self.kind.replace('/', "-")))
    }

    fn write(&self, gpus: &GpuList) -> io::Result<()> {
        let text = serde_json::to_string_pretty(&self.specification(gpus))?;
        let path = self.path();
        if std::fs::read_to_string(&path).is_ok_and(|written| written == text) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.folder)?;
        // A runtime that reads at the same time sees the old one or the new one.
        let unfinished = path.with_extension("tmp");
        std::fs::write(&unfinished, text)?;
        std::fs::rename(&unfinished, &path)
    }

    fn specification<'a>(&'a self, gpus: &'a GpuList) -> Specification<'a> {
        let node = |path: &Path| Node { path: path.display().to_string() };
        let has_files = gpus.iter().any(|gpu| !gpu.info.device_files.is_empty());
        let control = CONTROL_FILES.iter().map(|name| self.dev.join(name));
        let control: Vec<Node> =
            control.filter(|path| has_files && path.exists()).map(|path| node(&path)).collect();
        let device = |gpu: &'a Gpu| Device {
            name: &gpu.info.id,
            container_edits: Edits {
                // A device needs an edit to be valid, and a simulated GPU has no file.
                env: vec![format!("SLUICE_GPU_{}={}", gpu.info.index, gpu.info.id)],
                device_nodes: gpu.info.device_files.iter().map(|f| node(Path::new(f))).collect(),
            },
        };
        Specification {
            cdi_version: CDI_VERSION,
            kind: &self.kind,
            devices: gpus.iter().map(device).collect(),
            container_edits: Edits { env: vec![], device_nodes: control },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gpu::GpuInfo;
    use super::*;

    fn gpu(index: u32, files: &[&str]) -> Gpu {
        let device_files = files.iter().map(|&file| file.to_owned()).collect();
        let id = format!("GPU-{index}");
        Gpu { info: GpuInfo { index, id, numa_node: None, device_files }, fault: None }
    }

    #[test]
    fn the_file_names_every_gpu_and_is_written_only_when_it_changes() {
        let folder = tempfile::tempdir().expect("temp folder");
        std::fs::write(folder.path().join("nvidiactl"), "").expect("write");
        let file = CdiFile {
            folder: folder.path().join("cdi"),
            kind: "nvidia.com/gpu".to_owned(),
            dev: folder.path().to_owned(),
        };
        let list = GpuList::new(vec![gpu(1, &["/dev/nvidia1"]), gpu(0, &["/dev/nvidia0"])]);
        file.write(&list).expect("written");
        let path = folder.path().join("cdi/sluice-nvidia.com-gpu.json");
        let read = || -> serde_json::Value {
            serde_json::from_str(&std::fs::read_to_string(&path).expect("read")).expect("JSON")
        };
        let found = read();
        assert_eq!(found["cdiVersion"], "0.5.0");
        assert_eq!(found["kind"], "nvidia.com/gpu");
        assert_eq!(found["devices"][0]["name"], "GPU-0");
        let edits = &found["devices"][1]["containerEdits"];
        assert_eq!(edits["deviceNodes"][0]["path"], "/dev/nvidia1");
        assert_eq!(edits["env"][0], "SLUICE_GPU_1=GPU-1");
        let control = found["containerEdits"]["deviceNodes"].as_array().expect("control files");
        assert_eq!(control.len(), 1, "only those that exist");

        let before = std::fs::metadata(&path).expect("there").modified().expect("time");
        file.write(&list).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").modified().expect("time"), before);
        file.write(&GpuList::new(vec![gpu(0, &[])])).expect("written");
        assert_eq!(read()["devices"].as_array().map(Vec::len), Some(1));
        assert_eq!(read().get("containerEdits"), None, "nothing that every container needs");
    }
}
