//! Cluster side: the node's real GPUs, through NVIDIA's management library.
//!
//! The library is opened at run time. A node without it has no GPUs: the agent stays up, says so,
//! and looks again from time to time.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE,
};
use nvml_wrapper::{Device, EventSet, Nvml};

use super::super::clock::Uptime;
use super::super::gpu::GpuInfo;
use super::super::health::{Probe, Severity};
use super::xid::{XidClass, classify};
use super::{Backend, BackendError, Sink};

/// How long one wait for events blocks, and so how long a shutdown takes at most.
const WAIT_MS: u32 = 250;
/// How often every GPU is looked at.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long a GPU may be out of reach before the library is opened anew: a handle to a GPU that
/// was reset or reseated stays dead until then.
const REOPEN_AFTER: Duration = Duration::from_secs(5);
/// How often the library is opened anew while it does not list a GPU that was known before.
const REOPEN_FOR_MISSING: Duration = Duration::from_secs(15);
/// After how many errors in a row, each other than a time-out, the library is opened anew.
const WAIT_ERRORS_MAX: u32 = 20;

/// Real GPUs.
#[derive(Clone, Debug)]
pub struct NvmlBackend {
    /// The library to open; by default what the loader finds as `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// Where PCI devices and their NUMA nodes are listed, usually `/sys/bus/pci/devices`.
    pub pci_devices: PathBuf,
    /// Where device files are, usually `/dev`.
    pub dev: PathBuf,
}

impl Backend for NvmlBackend {
    fn name(&self) -> &'static str {
        "nvml"
    }

    fn run(&mut self, sink: &mut Sink) -> Result<(), BackendError> {
        let name = OsString::from("libnvidia-ml.so.1");
        let library = self.library.as_ref().map_or(name.as_os_str(), |path| path.as_os_str());
        let nvml = Nvml::builder().lib_path(library).init()?;
        let infos = self.discover(&nvml)?;
        let ids: Vec<String> = infos.iter().map(|info| info.id.clone()).collect();
        tracing::info!(gpus = infos.len(), driver = nvml.sys_driver_version().ok(), "NVML opened");
        // A fault between the list and the subscription would be lost.
        let events = subscribe(&nvml, &ids);
        sink.discovered(&infos);
        watch(&nvml, &ids, events.as_ref(), sink);
        drop(events);
        // With a GPU lost the library may not close cleanly, which says nothing about the others.
        if let Err(error) = nvml.shutdown() {
            tracing::warn!(%error, "NVML does not close cleanly");
        }
        Ok(())
    }
}

impl NvmlBackend {
    fn discover(&self, nvml: &Nvml) -> Result<Vec<GpuInfo>, NvmlError> {
        let mut infos = Vec::new();
        for index in 0..nvml.device_count()? {
            let device = match nvml.device_by_index(index) {
                Ok(device) => device,
                // One GPU that cannot be opened must not hide the others. If it was known before,
                // it stays listed as faulty.
                Err(error) => {
                    tracing::warn!(index, %error, "GPU cannot be opened");
                    continue;
                }
            };
            match self.describe(index, &device) {
                Ok(info) => infos.push(info),
                Err(error) => tracing::warn!(index, %error, "GPU does not say what it is"),
            }
        }
        Ok(infos)
    }

    fn describe(&self, index: u32, device: &Device<'_>) -> Result<GpuInfo, NvmlError> {
        let file = device.minor_number().ok().map(|minor| self.dev.join(format!("nvidia{minor}")));
        Ok(GpuInfo {
            index,
            id: device.uuid()?,
            numa_node: self.numa_node(device),
            device_files: file.iter().map(|path| path.display().to_string()).collect(),
        })
    }

    /// The NUMA node of the GPU's slot, as the kernel says; -1 there means that it has none.
    ///
    /// NVML's own `numa_node_id` is about the GPU's memory as a NUMA node, which is another thing.
    fn numa_node(&self, device: &Device<'_>) -> Option<u32> {
        let bus_id = device.pci_info().ok()?.bus_id.to_lowercase();
        // NVML writes the domain with eight digits, the kernel with four.
        let bus_id = bus_id.strip_prefix("0000").unwrap_or(&bus_id);
        let path = self.pci_devices.join(bus_id).join("numa_node");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Waits for events and looks at every GPU, until shutdown or until the library should be opened
/// anew.
fn watch(nvml: &Nvml, ids: &[String], events: Option<&EventSet<'_>>, sink: &mut Sink) {
    let uptime = Uptime::start();
    let mut lost = Lost::default();
    let mut probe_at = Duration::ZERO;
    let mut wait_errors = 0;
    while !sink.stopped() {
        if uptime.now() >= probe_at {
            probe_at = uptime.now() + PROBE_EVERY;
            probe_all(nvml, ids, &mut lost, sink);
            if lost.reopen(sink.misses_any(), uptime.now()) {
                tracing::info!("a GPU stays out of reach: opening NVML anew");
                return;
            }
        }
        let Some(events) = events else {
            sink.pause(Duration::from_millis(WAIT_MS.into()));
            continue;
        };
        match events.wait(WAIT_MS) {
            Ok(event) => {
                wait_errors = 0;
                if take(&event, sink) {
                    probe_at = Duration::ZERO;
                }
            }
            Err(NvmlError::Timeout) => wait_errors = 0,
            // The wait does not say which GPU it is about; the probes do.
            Err(error) => {
                probe_at = Duration::ZERO;
                wait_errors += 1;
                if wait_errors == 1 {
                    tracing::warn!(%error, "waiting for GPU events failed");
                }
                if wait_errors > WAIT_ERRORS_MAX {
                    return;
                }
                sink.pause(Duration::from_millis(WAIT_MS.into()));
            }
        }
    }
}

/// GPUs that do not answer.
#[derive(Debug, Default)]
struct Lost {
    ids: BTreeSet<String>,
    since: Option<Duration>,
}

impl Lost {
    /// Whether GPUs have been out of reach for so long that the library should be opened anew.
    fn reopen(&mut self, missing: bool, now: Duration) -> bool {
        let after = if self.ids.is_empty() { REOPEN_FOR_MISSING } else { REOPEN_AFTER };
        if self.ids.is_empty() && !missing {
            self.since = None;
            return false;
        }
        now.saturating_sub(*self.since.get_or_insert(now)) >= after
    }
}

/// Subscribes to the faults of every GPU that can report any. A subscription that fails takes the
/// whole set with it, so the set is made again without that GPU.
fn subscribe<'nvml>(nvml: &'nvml Nvml, ids: &[String]) -> Option<EventSet<'nvml>> {
    let mut skip: BTreeSet<&str> = BTreeSet::new();
    'set: for _ in 0..=ids.len() {
        let mut set = match nvml.create_event_set() {
            Ok(set) => set,
            Err(error) => {
                tracing::warn!(%error, "no GPU events: faults are found by probes only");
                return None;
            }
        };
        for id in ids.iter().filter(|id| !skip.contains(id.as_str())) {
            match add(nvml, id, set) {
                Ok(with_gpu) => set = with_gpu,
                Err(error) => {
                    tracing::warn!(gpu = id, %error, "this GPU reports no events");
                    skip.insert(id);
                    continue 'set;
                }
            }
        }
        return Some(set);
    }
    None
}

fn add<'nvml>(
    nvml: &'nvml Nvml,
    id: &str,
    set: EventSet<'nvml>,
) -> Result<EventSet<'nvml>, NvmlError> {
    let device = nvml.device_by_uuid(id)?;
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let supported = device.supported_event_types()?;
    device.register_events(wanted & supported, set).map_err(|error| error.error)
}

/// Takes in one event; answers whether the GPUs should be looked at now.
fn take(event: &EventData<'_>, sink: &mut Sink) -> bool {
    let Ok(id) = event.device.uuid() else { return true };
    if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
        sink.faulted(&id, "double-bit memory error", Severity::Fatal);
        return false;
    }
    let xid = match event.event_data {
        Some(XidError::Value(xid)) => xid,
        Some(XidError::Unknown) => {
            sink.faulted(&id, "unknown XID", Severity::Transient);
            return false;
        }
        None => return false,
    };
    match classify(xid) {
        XidClass::Application => {
            tracing::info!(gpu = id, xid, "XID of an application: no fault of the GPU");
            false
        }
        XidClass::Notice => true,
        XidClass::Fault(severity) => {
            sink.faulted(&id, &format!("xid {xid}"), severity);
            false
        }
    }
}

/// Looks at every GPU.
fn probe_all(nvml: &Nvml, ids: &[String], lost: &mut Lost, sink: &mut Sink) {
    for id in ids {
        let found = match nvml.device_by_uuid(id.as_str()).and_then(|device| probe(&device)) {
            // One that was gone and is back has been reset.
            Ok(Probe::Good) if lost.ids.remove(id) => Probe::Recovered,
            Ok(found) => {
                lost.ids.remove(id);
                found
            }
            Err(error) => {
                lost.ids.insert(id.clone());
                Probe::Bad(error.to_string())
            }
        };
        sink.probed(id, &found);
    }
}

/// Looks at one GPU. An error means that it does not answer.
fn probe(device: &Device<'_>) -> Result<Probe, NvmlError> {
    // A call that reads from the GPU itself.
    match device.memory_info() {
        // Drivers before 510 lack the call.
        Ok(_) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {}
        Err(error) => return Err(error),
    }
    if optional(device.mig_mode())?.is_some_and(|mode| mode.current == 1) {
        return Ok(Probe::Bad("MIG mode is on: Sluice hands out whole GPUs".to_owned()));
    }
    if field(device, NVML_FI_DEV_REMAPPED_FAILURE)? == Some(1) {
        return Ok(Probe::Bad("row remapping failed".to_owned()));
    }
    Ok(match field(device, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)? {
        None => Probe::Good,
        Some(0) => Probe::Recovered,
        Some(action) => Probe::Bad(format!("the driver asks for {}", recovery_action(action))),
    })
}

/// What the driver asks for before the GPU can be used again, in NVML's numbering.
fn recovery_action(action: u64) -> &'static str {
    match action {
        1 => "a GPU reset",
        2 => "a reboot of the node",
        3 => "a drain of peer-to-peer work",
        4 => "a drain and a GPU reset",
        _ => "a recovery action that is not known here",
    }
}

/// The value of one field; `None` where the driver or the GPU does not know the field.
fn field(device: &Device<'_>, id: u32) -> Result<Option<u64>, NvmlError> {
    let Some(samples) = optional(device.field_values_for(&[FieldId(id)]))? else {
        return Ok(None);
    };
    let Some(Ok(sample)) = samples.into_iter().next() else { return Ok(None) };
    Ok(match optional(sample.value)? {
        Some(SampleValue::U32(value)) => Some(value.into()),
        Some(SampleValue::U64(value)) => Some(value),
        Some(SampleValue::I64(value)) => u64::try_from(value).ok(),
        Some(SampleValue::F64(_)) | None => None,
    })
}

/// What an older driver or a smaller GPU lacks is no fault.
fn optional<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(
            NvmlError::NotSupported
            | NvmlError::InvalidArg
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}
