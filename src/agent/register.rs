//! Cluster side: keeps the plugin registered with kubelet.
//!
//! Kubelet never reconnects by itself. It forgets its plugins when it restarts, removes their
//! sockets when it starts, and drops a plugin whose device list ended. So the question is not what
//! has happened but whether what should be the case is: kubelet's socket is the one registered
//! with, the plugin's own socket is in place, and kubelet follows a device list.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::clock::Uptime;
use super::endpoint::{Endpoint, EndpointError, Names};
use super::folder::{FileId, POLL_EVERY, file_id};
use super::metrics::Metrics;
use super::plugin::{Shared, options};
use super::wire::deviceplugin::RegisterRequest;
use super::wire::deviceplugin::registration_client::RegistrationClient;
use super::wire::{KUBELET_SOCKET, VERSION};
use crate::admin::Check;

/// How long kubelet may take to answer; it dials back for up to ten seconds meanwhile.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long kubelet may take after that to ask for the device list.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);
/// How long no device list has to be followed before the plugin registers again. Kubelet closes
/// an old list after it has opened a new one, so without a list for a moment is lost for good.
const STREAM_GRACE: Duration = Duration::from_millis(300);
/// The wait after a first failed attempt; it doubles with each further one.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait between attempts.
const RETRY_MAX: Duration = Duration::from_secs(3);

/// Keeps one resource registered.
#[derive(Debug)]
pub(super) struct Registrar {
    /// Kubelet's plugin folder.
    pub folder: PathBuf,
    /// Name of the node.
    pub(super) node: String,
    /// The resource.
    pub resource: String,
    /// What the plugin serves.
    pub shared: Arc<Shared>,
    /// Something changed in the folder.
    pub changed: Arc<Notify>,
    /// Takes whether kubelet follows the device list.
    pub registered: Check,
    /// Counters.
    pub metrics: Metrics,
    /// The agent's clock.
    pub uptime: Uptime,
}

/// An attempt to register failed.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("kubelet's socket is not there")]
    NoKubelet,
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot connect to kubelet")]
    Connect(#[source] tonic::transport::Error),
    #[error("kubelet refuses the registration: {}", .0.message())]
    Refused(#[source] Box<tonic::Status>),
    #[error("kubelet did not answer the registration in time")]
    NoAnswer,
    #[error("kubelet took the registration and did not ask for the device list")]
    NoStream,
}

impl RegisterError {
    fn label(&self) -> &'static str {
        match self {
            Self::NoKubelet => "no_kubelet",
            Self::Endpoint(_) => "own_socket",
            Self::Connect(_) => "connect",
            Self::Refused(_) => "refused",
            Self::NoAnswer => "no_answer",
            Self::NoStream => "no_stream",
        }
    }
}

/// Why the plugin has to register again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lapse {
    KubeletRestarted,
    SocketLost,
    StreamEnded,
}

/// A registration that kubelet took.
#[derive(Debug)]
struct Registered {
    endpoint: Endpoint,
    /// Kubelet's socket, as it was before the registration: if it was replaced meanwhile, the
    /// registration may have gone to the one that is gone.
    kubelet: FileId,
    streams: watch::Receiver<usize>,
    streamless_since: Option<Duration>,
}

impl Registered {
    fn lapse(&mut self, kubelet: Option<FileId>, now: Duration) -> Option<Lapse> {
        let streams = *self.streams.borrow_and_update();
        self.streamless_since = (streams == 0).then(|| self.streamless_since.unwrap_or(now));
        let streamless_for = self.streamless_since.map(|since| now.saturating_sub(since));
        lapse(kubelet? == self.kubelet, self.endpoint.in_place(), streamless_for)
    }
}

/// Whether a registration has lapsed, by what is the case now.
fn lapse(same_kubelet: bool, own_socket: bool, streamless_for: Option<Duration>) -> Option<Lapse> {
    if !same_kubelet {
        Some(Lapse::KubeletRestarted)
    } else if !own_socket {
        Some(Lapse::SocketLost)
    } else if streamless_for.is_some_and(|span| span >= STREAM_GRACE) {
        Some(Lapse::StreamEnded)
    } else {
        None
    }
}

impl Registrar {
    /// Runs until shutdown, then removes the socket.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let mut registered = None;
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.keep(&mut registered) => {}
        }
        self.say(false);
        if let Some(Registered { endpoint, .. }) = registered {
            endpoint.close().await;
        }
    }

    async fn keep(&self, registered: &mut Option<Registered>) {
        // Kubelet would take an empty list at its word and fail the pods it restarts with.
        let mut gpus = self.shared.gpus.clone();
        if gpus.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut names = Names::new(&self.folder, &self.resource);
        names.clean();
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX, &self.node);
        loop {
            if let Some(registered) = registered.as_mut() {
                let lapse = self.wait_for_lapse(registered).await;
                tracing::info!(?lapse, "registering with kubelet again");
            }
            self.say(false);
            let kubelet = file_id(&self.kubelet_socket());
            match self.register(names.next()).await {
                Ok(new) => {
                    backoff.start_over();
                    tracing::info!(resource = self.resource, "registered with kubelet");
                    self.metrics.registration("ok");
                    // The old socket goes only now, so that kubelet has a device list throughout.
                    if let Some(old) = registered.replace(new) {
                        old.endpoint.close().await;
                    }
                    self.say(true);
                }
                Err(error) => {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    let retry = backoff.wait();
                    tracing::warn!(%error, source, retry_ms = retry.as_millis(), "not registered");
                    self.metrics.registration(error.label());
                    if self.wait_for_retry(kubelet, retry).await {
                        backoff.start_over();
                    }
                }
            }
        }
    }

    async fn register(&self, path: PathBuf) -> Result<Registered, RegisterError> {
        let socket = self.kubelet_socket();
        let kubelet = file_id(&socket).ok_or(RegisterError::NoKubelet)?;
        let endpoint = Endpoint::open(path, self.shared.clone()).await?;
        match self.announce(&socket, &endpoint).await {
            Ok(()) => {
                let streams = endpoint.streams();
                Ok(Registered { endpoint, kubelet, streams, streamless_since: None })
            }
            Err(error) => {
                endpoint.close().await;
                Err(error)
            }
        }
    }

    async fn announce(&self, socket: &Path, endpoint: &Endpoint) -> Result<(), RegisterError> {
        let address = format!("unix://{}", socket.display());
        let call = async {
            let mut client =
                RegistrationClient::connect(address).await.map_err(RegisterError::Connect)?;
            let request = RegisterRequest {
                version: VERSION.to_owned(),
                endpoint: endpoint.name(),
                resource_name: self.resource.clone(),
                options: Some(options()),
            };
            let refused = |status| RegisterError::Refused(Box::new(status));
            client.register(request).await.map_err(refused)
        };
        tokio::time::timeout(REGISTER_TIMEOUT, call)
            .await
            .map_err(|_| RegisterError::NoAnswer)??;
        let mut streams = endpoint.streams();
        let followed = streams.wait_for(|&streams| streams > 0);
        match tokio::time::timeout(STREAM_TIMEOUT, followed).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(RegisterError::NoStream),
        }
    }

    /// Waits until the registration has lapsed and kubelet is there to take another.
    async fn wait_for_lapse(&self, registered: &mut Registered) -> Lapse {
        loop {
            let kubelet = file_id(&self.kubelet_socket());
            if let Some(lapse) = registered.lapse(kubelet, self.uptime.now()) {
                return lapse;
            }
            let streamless = registered.streamless_since.is_some();
            self.say(!streamless);
            let wait = if streamless { STREAM_GRACE / 3 } else { POLL_EVERY };
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
                _ = registered.streams.changed() => {}
            }
        }
    }

    /// Waits before another attempt; answers `true` at once when kubelet's socket is another than
    /// the one of the attempt that failed.
    async fn wait_for_retry(&self, kubelet: Option<FileId>, wait: Duration) -> bool {
        let until = self.uptime.now() + wait;
        loop {
            let now = file_id(&self.kubelet_socket());
            if now.is_some() && now != kubelet {
                return true;
            }
            let left = until.saturating_sub(self.uptime.now());
            if left.is_zero() {
                return false;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(left.min(POLL_EVERY)) => {}
            }
        }
    }

    fn kubelet_socket(&self) -> PathBuf {
        self.folder.join(KUBELET_SOCKET)
    }

    fn say(&self, registered: bool) {
        self.metrics.registered(registered);
        self.registered.set(registered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_lapses_for_each_reason_and_only_then() {
        let ms = Duration::from_millis;
        assert_eq!(lapse(true, true, None), None);
        assert_eq!(lapse(true, true, Some(ms(299))), None, "an old list closes after a new one");
        assert_eq!(lapse(true, true, Some(ms(300))), Some(Lapse::StreamEnded));
        assert_eq!(lapse(true, false, None), Some(Lapse::SocketLost));
        assert_eq!(lapse(false, true, None), Some(Lapse::KubeletRestarted));
        assert_eq!(lapse(false, false, Some(ms(9000))), Some(Lapse::KubeletRestarted));
    }
}
