//! Cluster side: a kubelet that does what the real one does with a device plugin, and can be told
//! to fail. It speaks the real wire contract over real sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice::agent::wire::deviceplugin::device_plugin_client::DevicePluginClient;
use sluice::agent::wire::deviceplugin::registration_server::{Registration, RegistrationServer};
use sluice::agent::wire::deviceplugin::{Device, Empty, RegisterRequest};
use sluice::agent::wire::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use sluice::agent::wire::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

/// The longest time that anything may take in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// What happened, in order.
#[derive(Debug)]
pub(crate) enum Event {
    /// A plugin registered and was dialled back.
    Registered(RegisterRequest),
    /// It sent a device list through the socket of this name.
    List(String, Vec<Device>),
    /// The stream of this socket ended.
    Ended(String),
}

/// A running kubelet.
pub(crate) struct Kubelet {
    folder: PathBuf,
    events: mpsc::Receiver<Event>,
    service: Service,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

#[derive(Clone)]
struct Service {
    folder: PathBuf,
    events: mpsc::Sender<Event>,
    /// Paths of plugins whose stream has not ended, as the real one keeps them.
    connected: Arc<Mutex<BTreeSet<String>>>,
    streams: Arc<Mutex<CancellationToken>>,
    refuse: Arc<Mutex<u32>>,
}

impl Kubelet {
    /// Starts as the real one does: every socket in the folder is removed first.
    pub(crate) fn start(folder: &Path) -> Self {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "sock") {
                // The plugin may remove its own at the same time.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let (events, receiver) = mpsc::channel(4096);
        let service = Service {
            folder: folder.to_owned(),
            events,
            connected: Arc::default(),
            streams: Arc::default(),
            refuse: Arc::default(),
        };
        let stop = CancellationToken::new();
        let serving = Server::builder()
            .add_service(RegistrationServer::new(service.clone()))
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                stop.clone().cancelled_owned(),
            );
        let server = tokio::spawn(async move { serving.await.unwrap() });
        Self { folder: folder.to_owned(), events: receiver, service, stop, server }
    }

    /// Ends as the real one does: connections close, its socket file stays behind.
    pub(crate) async fn stop(self) -> PathBuf {
        self.drop_streams();
        self.stop.cancel();
        self.server.await.unwrap();
        self.folder
    }

    /// Closes every connection to plugins and stays up.
    pub(crate) fn drop_streams(&self) {
        std::mem::take(&mut *self.service.streams.lock().unwrap()).cancel();
    }

    /// Refuses the next registrations.
    pub(crate) fn refuse(&self, times: u32) {
        *self.service.refuse.lock().unwrap() = times;
    }

    pub(crate) async fn event(&mut self) -> Event {
        within(self.events.recv()).await.expect("kubelet lives")
    }

    /// Waits for a registration and the first device list after it.
    pub(crate) async fn registered(&mut self) -> (RegisterRequest, Vec<Device>) {
        let mut request = None;
        loop {
            match self.event().await {
                Event::Registered(registered) => request = Some(registered),
                Event::List(endpoint, devices) => {
                    if let Some(request) = &request
                        && request.endpoint == endpoint
                    {
                        return (request.clone(), devices);
                    }
                }
                Event::Ended(_) => {}
            }
        }
    }

    /// Waits for a device list of which this is true.
    pub(crate) async fn list(&mut self, wanted: impl Fn(&[Device]) -> bool) -> Vec<Device> {
        loop {
            if let Event::List(_, devices) = self.event().await
                && wanted(&devices)
            {
                return devices;
            }
        }
    }

    /// A client of the plugin behind a socket name.
    pub(crate) async fn client(&self, endpoint: &str) -> DevicePluginClient<Channel> {
        dial(&self.folder, endpoint).await.unwrap()
    }
}

async fn dial(
    folder: &Path,
    endpoint: &str,
) -> Result<DevicePluginClient<Channel>, tonic::transport::Error> {
    DevicePluginClient::connect(format!("unix://{}", folder.join(endpoint).display())).await
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let endpoint = request.endpoint.clone();
        {
            let mut refuse = self.refuse.lock().unwrap();
            if *refuse > 0 {
                *refuse -= 1;
                return Err(Status::unavailable("told to refuse"));
            }
        }
        // The real one fails here for good until it is restarted.
        if self.connected.lock().unwrap().contains(&endpoint) {
            return Err(Status::unknown(format!("device plugin already connected: {endpoint}")));
        }
        // Dialling back inside of the call, as the real one does.
        let unreachable = |error| Status::unknown(format!("failed to dial: {error}"));
        let mut client = dial(&self.folder, &endpoint).await.map_err(unreachable)?;
        client.get_device_plugin_options(Empty {}).await?;
        self.connected.lock().unwrap().insert(endpoint.clone());
        self.events.try_send(Event::Registered(request)).unwrap();
        let (service, closed) = (self.clone(), self.streams.lock().unwrap().clone());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = service.follow(client, &endpoint) => {}
            }
            service.connected.lock().unwrap().remove(&endpoint);
            let _ = service.events.try_send(Event::Ended(endpoint));
        });
        Ok(Response::new(Empty {}))
    }
}

impl Service {
    async fn follow(&self, mut client: DevicePluginClient<Channel>, endpoint: &str) {
        let Ok(lists) = client.list_and_watch(Empty {}).await else { return };
        let mut lists = lists.into_inner();
        while let Ok(Some(list)) = lists.message().await {
            let event = Event::List(endpoint.to_owned(), list.devices);
            self.events.try_send(event).unwrap();
        }
    }
}

/// Kubelet's pod resources API, with a list that the test sets.
#[derive(Clone, Default)]
pub(crate) struct PodList(Arc<Mutex<Pods>>);

/// GPU ids by namespace and name.
type Pods = BTreeMap<(String, String), Vec<String>>;

impl PodList {
    /// Serves on `socket` until dropped with the runtime.
    pub(crate) fn serve(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let serving = Server::builder()
            .add_service(PodResourcesListerServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(async move { serving.await.unwrap() });
    }

    pub(crate) fn set(&self, name: &str, gpus: &[String]) {
        let key = ("ns".to_owned(), name.to_owned());
        self.0.lock().unwrap().insert(key, gpus.to_vec());
    }

    pub(crate) fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(&("ns".to_owned(), name.to_owned()));
    }
}

#[tonic::async_trait]
impl PodResourcesLister for PodList {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let device = |resource: &str, ids: &[String]| ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.to_vec(),
            topology: None,
        };
        let pods = self.0.lock().unwrap();
        let pods = pods.iter().map(|((namespace, name), gpus)| PodResources {
            namespace: namespace.clone(),
            name: name.clone(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![
                    device("nvidia.com/gpu", gpus),
                    device("example.com/other", &["g0".to_owned()]),
                ],
                ..ContainerResources::default()
            }],
            ..PodResources::default()
        });
        Ok(Response::new(ListPodResourcesResponse { pod_resources: pods.collect() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }

    async fn get(
        &self,
        _: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked for"))
    }
}

/// Fails the test instead of waiting for ever.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}
