//! Cluster side: the wire types of kubelet's device plugin and pod resources APIs, made from
//! `proto/` by the build script.

/// Device plugin API, `v1beta1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// Pod resources API, `v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The version that a plugin names when it registers.
pub const VERSION: &str = "v1beta1";
/// `Device.health` of a GPU that work may be placed on.
pub const HEALTHY: &str = "Healthy";
/// `Device.health` of a GPU that no work may be placed on.
pub const UNHEALTHY: &str = "Unhealthy";
/// File name of kubelet's registration socket in the plugin folder.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
