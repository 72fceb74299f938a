//! Cluster side: kubelet's word on which pod was given which GPUs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use super::holders::{ListedPod, PodName};
use super::wire::podresources::ListPodResourcesRequest;
use super::wire::podresources::pod_resources_lister_client::PodResourcesListerClient;

/// How long one call may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The largest answer taken; kubelet sends at most as much.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Kubelet could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// The socket path cannot be written as an address.
    #[error("not a usable socket path: {0}")]
    Path(String, #[source] tonic::transport::Error),
    /// The call failed.
    #[error("kubelet does not list the pods' resources: {}", .0.message())]
    Call(#[source] Box<tonic::Status>),
}

/// A client that connects when it is used, and again after kubelet was restarted.
#[derive(Clone, Debug)]
pub(super) struct PodResources {
    client: PodResourcesListerClient<Channel>,
    resource: String,
}

impl PodResources {
    /// Will ask on `socket` about devices of `resource`.
    pub(super) fn new(socket: &Path, resource: &str) -> Result<Self, PodResourcesError> {
        let address = format!("unix://{}", socket.display());
        let channel = Endpoint::from_shared(address.clone())
            .map_err(|error| PodResourcesError::Path(address, error))?
            .connect_timeout(TIMEOUT)
            .timeout(TIMEOUT)
            .connect_lazy();
        let client =
            PodResourcesListerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { client, resource: resource.to_owned() })
    }

    /// Every pod that kubelet lists, with its GPUs.
    pub(super) async fn list(&mut self) -> Result<Vec<ListedPod>, PodResourcesError> {
        let answer = self
            .client
            .list(ListPodResourcesRequest {})
            .await
            .map_err(|status| PodResourcesError::Call(Box::new(status)))?;
        let mut pods: BTreeMap<PodName, ListedPod> = BTreeMap::new();
        for pod in answer.into_inner().pod_resources {
            let name = PodName { namespace: pod.namespace, name: pod.name };
            let listed = pods
                .entry(name.clone())
                .or_insert_with(|| ListedPod { pod: name, gpus: [].into() });
            let devices = pod.containers.into_iter().flat_map(|container| container.devices);
            let ours = devices.filter(|devices| devices.resource_name == self.resource);
            listed.gpus.extend(ours.flat_map(|devices| devices.device_ids));
        }
        Ok(pods.into_values().collect())
    }
}
