//! Cluster side: one socket of the device plugin, from binding to removal.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::folder::{FileId, file_id};
use super::plugin::{Plugin, Shared};
use super::wire::deviceplugin::Empty;
use super::wire::deviceplugin::device_plugin_client::DevicePluginClient;
use super::wire::deviceplugin::device_plugin_server::DevicePluginServer;

/// How long the socket may take to answer its own maker.
const SELF_DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long open calls may take to end when the socket closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndpointError {
    /// The socket file cannot be made.
    #[error("cannot listen on {}", .0.display())]
    Bind(PathBuf, #[source] io::Error),
    /// The socket does not answer.
    #[error("{} does not answer its own call: {reason}", .path.display())]
    SelfDial {
        /// The socket file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// A served socket.
#[derive(Debug)]
pub(super) struct Endpoint {
    path: PathBuf,
    file: Option<FileId>,
    streams: watch::Receiver<usize>,
    closing: CancellationToken,
    server: JoinHandle<()>,
}

impl Endpoint {
    /// Binds, serves, and calls itself, so that kubelet's call back finds it ready.
    pub(super) async fn open(path: PathBuf, shared: Arc<Shared>) -> Result<Self, EndpointError> {
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(EndpointError::Bind(path, error)),
        }
        let listener =
            UnixListener::bind(&path).map_err(|error| EndpointError::Bind(path.clone(), error))?;
        let file = file_id(&path);
        let closing = CancellationToken::new();
        let plugin = Plugin::new(shared, closing.clone());
        let streams = plugin.streams();
        let serving = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                closing.clone().cancelled_owned(),
            );
        let shown = path.display().to_string();
        let server = tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(socket = shown, %error, "the plugin's socket failed");
            }
        });
        let endpoint = Self { path, file, streams, closing, server };
        match tokio::time::timeout(SELF_DIAL_TIMEOUT, endpoint.dial()).await {
            Ok(Ok(())) => Ok(endpoint),
            Ok(Err(reason)) => Err(endpoint.failed(reason).await),
            Err(_) => Err(endpoint.failed("no answer in time".to_owned()).await),
        }
    }

    async fn dial(&self) -> Result<(), String> {
        let address = format!("unix://{}", self.path.display());
        let mut client =
            DevicePluginClient::connect(address).await.map_err(|error| error.to_string())?;
        client
            .get_device_plugin_options(Empty {})
            .await
            .map_err(|status| status.message().to_owned())?;
        Ok(())
    }

    async fn failed(self, reason: String) -> EndpointError {
        let path = self.path.clone();
        self.close().await;
        EndpointError::SelfDial { path, reason }
    }

    /// File name of the socket, which is how kubelet is told of it.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Follows how many device lists kubelet watches through this socket.
    pub(super) fn streams(&self) -> watch::Receiver<usize> {
        self.streams.clone()
    }

    /// Whether the socket file is still the one that was made.
    pub(super) fn in_place(&self) -> bool {
        self.file.is_some() && file_id(&self.path) == self.file
    }

    /// Ends every stream, stops serving and removes the socket file.
    pub(super) async fn close(mut self) {
        self.remove();
        if tokio::time::timeout(CLOSE_TIMEOUT, &mut self.server).await.is_err() {
            self.server.abort();
        }
    }

    fn remove(&self) {
        if self.in_place()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
        self.closing.cancel();
    }
}

/// An attempt that is given up halfway leaves nothing behind either.
impl Drop for Endpoint {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Names of the sockets of one resource. Each registration takes the next.
///
/// Kubelet keeps a connection under its socket's path, and an attempt to register a path that it
/// still holds makes it lose track of the one that works: after that every attempt with the same
/// path fails until kubelet restarts. With a name of its own no registration meets an earlier one.
#[derive(Debug)]
pub(super) struct Names {
    folder: PathBuf,
    prefix: String,
    next: u64,
}

impl Names {
    /// Names in `folder` for `resource`.
    pub(super) fn new(folder: &Path, resource: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
        let resource: String = resource.chars().map(plain).collect();
        Self { folder: folder.to_owned(), prefix: format!("sluice-{resource}-"), next: 0 }
    }

    /// Removes sockets that an earlier run left behind, and goes on after the highest of them.
    pub(super) fn clean(&mut self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(number) = self.number(&name.to_string_lossy()) else { continue };
            self.next = self.next.max(number.saturating_add(1));
            if let Err(error) = std::fs::remove_file(entry.path()) {
                tracing::warn!(socket = ?name, %error, "cannot remove an old socket");
            }
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        name.strip_prefix(&self.prefix)?.strip_suffix(".sock")?.parse().ok()
    }

    /// A path that this run has not used.
    pub(super) fn next(&mut self) -> PathBuf {
        let path = self.folder.join(format!("{}{}.sock", self.prefix, self.next));
        self.next += 1;
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_on_after_what_an_earlier_run_left() {
        let folder = tempfile::tempdir().expect("temp folder");
        let file = |name: &str| folder.path().join(name);
        for name in ["sluice-nvidia.com_gpu-4.sock", "sluice-nvidia.com_gpu-x.sock", "kubelet.sock"]
        {
            std::fs::write(file(name), "").expect("write");
        }
        let mut names = Names::new(folder.path(), "nvidia.com/gpu");
        names.clean();
        assert_eq!(names.next(), file("sluice-nvidia.com_gpu-5.sock"));
        assert_eq!(names.next(), file("sluice-nvidia.com_gpu-6.sock"));
        assert!(!file("sluice-nvidia.com_gpu-4.sock").exists());
        assert!(file("sluice-nvidia.com_gpu-x.sock").exists(), "not ours");
        assert!(file("kubelet.sock").exists());
    }
}
