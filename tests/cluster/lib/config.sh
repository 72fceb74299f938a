# shellcheck shell=bash
# The configuration files of the components, written to $STATE/conf.

configs_write() {
  mkdir -p "$STATE/conf/cni"
  containerd_config >"$STATE/conf/containerd.toml"
  cni_config >"$STATE/conf/cni/pods.conflist"
  kubelet_config >"$STATE/conf/kubelet.yaml"
  proxy_config >"$STATE/conf/kube-proxy.yaml"
  scheduler_config >"$STATE/conf/kube-scheduler.yaml"
  # Names outside the cluster do not resolve in there, and a search list would only make that slow.
  echo "options timeout:1 attempts:1" >"$STATE/conf/resolv.conf"
}

# Everything below /run: the tmpfs ends with the cluster. restrict_oom_score_adj: root without
# CAP_SYS_RESOURCE cannot lower a score, and runc gives up when asked to.
containerd_config() {
  cat <<TOML
version = 2
root = "/run/containerd/root"
state = "/run/containerd/state"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$STATE/conf/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
}

cni_config() {
  cat <<'JSON'
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "/run/cni/data",
        "ranges": [[{"subnet": "10.85.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON
}

kubelet_config() {
  cat <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $(pki ca.crt)}
authorization: {mode: Webhook}
tlsCertFile: $(pki kubelet-server.crt)
tlsPrivateKeyFile: $(pki kubelet-server.key)
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: $STATE/conf/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
cgroupDriver: cgroupfs
failCgroupV1: false
enforceNodeAllocatable: [pods]
failSwapOn: false
# A full disk or a busy machine is no reason to throw a test's pods off the node.
evictionHard: {}
# Tests kill containers' processes again and again.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
localStorageCapacityIsolation: false
YAML
}

proxy_config() {
  cat <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.85.0.0/16
clientConnection: {kubeconfig: $STATE/kube-proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0}
YAML
}

scheduler_config() {
  cat <<YAML
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: $STATE/kube-scheduler.kubeconfig, qps: 500, burst: 1000}
YAML
}
