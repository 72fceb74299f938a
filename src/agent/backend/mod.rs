//! Cluster side: where the GPUs of a node come from.
//!
//! A backend runs on an OS thread of its own, because NVML's wait blocks. It tells a [`Sink`] what
//! it finds; the sink keeps the health of every GPU and publishes the list whenever it changes.

pub mod nvml;
pub mod simulated;
mod xid;

use std::thread;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::clock::Uptime;
use super::gpu::{GpuInfo, GpuList};
use super::health::{Damping, Health, Probe, Severity};

/// How long a backend that cannot start waits before it tries again. A driver that is installed
/// or loaded later is found without a restart of the agent.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// How long GPUs that were healthy are still taken at their last word while the backend cannot be
/// opened: a driver that resets one GPU may refuse the library for a moment, and the other GPUs
/// must not drop out for it.
const KEEP_FOR: Duration = Duration::from_secs(30);
/// Between attempts meanwhile.
const RETRY_SOON: Duration = Duration::from_secs(1);
/// The longest time that the thread takes to notice a shutdown.
const STOP_STEP: Duration = Duration::from_millis(100);

/// A source of GPUs.
pub trait Backend: Send {
    /// Name for logs.
    fn name(&self) -> &'static str;

    /// Finds the GPUs and watches them until `sink.stopped()`, or until the source has to be
    /// opened anew, which is no error.
    fn run(&mut self, sink: &mut Sink) -> Result<(), BackendError>;
}

/// Why a backend cannot tell anything about GPUs.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// NVML cannot be used on this node.
    #[error("cannot use NVML")]
    Nvml(#[from] nvml_wrapper::error::NvmlError),
    /// The thread could not be started.
    #[error("failed to start the thread of the backend")]
    Thread(#[source] std::io::Error),
}

/// Takes what a backend finds.
#[derive(Debug)]
pub struct Sink {
    health: Health,
    list: watch::Sender<Option<GpuList>>,
    shutdown: CancellationToken,
    uptime: Uptime,
}

impl Sink {
    /// Every GPU of the node, healthy or not. Those that were known and are not in the list stay
    /// known as faulty.
    pub fn discovered(&mut self, found: &[GpuInfo]) {
        self.health.discovered(found, self.uptime.now());
        self.publish();
    }

    /// The driver reported a fault.
    pub fn faulted(&mut self, id: &str, reason: &str, severity: Severity) {
        tracing::warn!(gpu = id, reason, ?severity, "GPU fault");
        self.health.faulted(id, reason, severity, self.uptime.now());
        self.publish();
    }

    /// A look at a GPU showed this.
    pub fn probed(&mut self, id: &str, probe: &Probe) {
        self.health.probed(id, probe, self.uptime.now());
        self.publish();
    }

    /// Whether a GPU that was known before was not in the last list.
    pub fn misses_any(&self) -> bool {
        self.health.misses_any()
    }

    /// Whether the agent is shutting down.
    pub fn stopped(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Waits, or returns early on shutdown.
    pub fn pause(&self, span: Duration) {
        let until = self.uptime.now() + span;
        while !self.stopped() {
            let left = until.saturating_sub(self.uptime.now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(STOP_STEP));
        }
    }

    fn publish(&self) {
        let list = self.health.list();
        self.list.send_if_modified(|known| {
            if known.as_ref() == Some(&list) {
                return false;
            }
            for gpu in &list {
                let before = known.as_ref().and_then(|known| known.get(&gpu.info.id));
                if before.is_none_or(|before| before.fault != gpu.fault) {
                    let fault = gpu.fault.as_deref();
                    tracing::info!(gpu = gpu.info.id, index = gpu.info.index, fault, "GPU health");
                }
            }
            *known = Some(list);
            true
        });
    }
}

/// Starts a backend. The channel holds `None` until the backend has had its first say; a node on
/// which the backend finds nothing to talk to has an empty list.
pub fn spawn(
    mut backend: Box<dyn Backend>,
    damping: Damping,
    uptime: Uptime,
    shutdown: CancellationToken,
) -> Result<(thread::JoinHandle<()>, watch::Receiver<Option<GpuList>>), BackendError> {
    let (list, receiver) = watch::channel(None);
    let mut sink = Sink { health: Health::new(damping), list, shutdown, uptime };
    let thread = thread::Builder::new()
        .name(format!("gpus-{}", backend.name()))
        .spawn(move || drive(&mut *backend, &mut sink))
        .map_err(BackendError::Thread)?;
    Ok((thread, receiver))
}

fn drive(backend: &mut dyn Backend, sink: &mut Sink) {
    let mut said = String::new();
    let mut failing_since: Option<Duration> = None;
    while !sink.stopped() {
        let Err(error) = backend.run(sink) else {
            said.clear();
            failing_since = None;
            continue;
        };
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let text = format!("{error}: {}", source.unwrap_or_default());
        if text != said {
            tracing::warn!(backend = backend.name(), error = text, "no GPUs in sight");
            said = text;
        }
        let failing_for = {
            let now = sink.uptime.now();
            now.saturating_sub(*failing_since.get_or_insert(now))
        };
        let gives_up = sink.health.is_empty() || failing_for >= KEEP_FOR;
        if gives_up {
            // Every GPU that was known is out of sight, and a node that never had any has none.
            sink.discovered(&[]);
        }
        sink.pause(if gives_up { RETRY_AFTER } else { RETRY_SOON });
    }
}
