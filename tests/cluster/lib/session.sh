# shellcheck shell=bash
# Life of a cluster as a whole, and running commands in it.

# cluster_environment: what a command in the cluster finds set.
cluster_environment() {
  PATH=$(tools_folder):$PATH
  KUBECONFIG=$STATE/admin.kubeconfig
  SLUICE_CLUSTER=$NAME
  CONTAINERD_ADDRESS=/run/containerd/containerd.sock
  CONTAINERD_NAMESPACE=k8s.io
  export PATH KUBECONFIG SLUICE_CLUSTER CONTAINERD_ADDRESS CONTAINERD_NAMESPACE
  # Proxies of the machine cannot be reached from in here, and would be asked for the API server.
  unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
}

# in_cluster COMMAND...: cluster.sh COMMAND inside the namespaces, for the parts that have to be there.
in_cluster() {
  if inside; then
    "inner_$1" "${@:2}"
  else
    space_enter bash "$HARNESS/cluster.sh" --name "$NAME" "inner-$1" "${@:2}"
  fi
}

cluster_up() {
  local from=${EPOCHREALTIME/[.,]/} pid ms
  need_root
  inside && die "this is inside cluster $NAME already"
  bash "$HARNESS/install-packages.sh"
  bash "$HARNESS/build-tools.sh" >/dev/null
  lock_clusters
  if pid=$(space_pid); then
    say "Cluster $NAME is up already (pid $pid)."
    return
  fi
  if [[ -d $STATE ]]; then
    say "Cluster $NAME left something behind when it died; cleaning up first."
    cluster_clean
  fi
  say "Starting cluster $NAME:"
  mkdir -p "$STATE/log"
  trap 'cluster_up_failed' EXIT
  cluster_start
  trap - EXIT
  ms=$(((${EPOCHREALTIME/[.,]/} - from) / 1000))
  say "Cluster $NAME is up after $((ms / 1000)).$(printf '%03d' $((ms % 1000))) s." \
    "Try: $HARNESS/cluster.sh shell $NAME"
}

cluster_start() {
  step init 'pause image' pause_image
  step certs 'certificates and configuration' make_files
  step init 'namespaces' space_create
  space_enter bash "$HARNESS/cluster.sh" --name "$NAME" inner-start-all
  rm "$STATE/failed-part"
}

make_files() {
  certs_create
  configs_write
}

# inner_start_all: the parts that need nobody start together; the rest follows the API server.
inner_start_all() {
  local component first=(etcd containerd kube-apiserver)
  local rest=(kube-controller-manager kube-scheduler kubelet kube-proxy kwok)
  for component in "${first[@]}"; do
    component_launch "$component"
  done
  step etcd etcd component_wait etcd
  step containerd containerd component_wait containerd
  step containerd 'pause image into containerd' image_import "$(pause_archive)"
  step kube-apiserver kube-apiserver component_wait kube-apiserver
  for component in "${rest[@]}"; do
    component_launch "$component"
  done
  for component in "${rest[@]}"; do
    step "$component" "$component" component_wait "$component"
  done
  step kubelet "node $NODE_NAME ready" node_ready
  step kube-controller-manager 'default service account' default_account
}

default_account() { kubectl wait --for=create --timeout=60s serviceaccount/default >/dev/null; }

node_ready() {
  kubectl wait --for=create --timeout=60s "node/$NODE_NAME" >/dev/null
  kubectl wait --for=condition=Ready --timeout=60s "node/$NODE_NAME" >/dev/null
}

# cluster_up_failed: shows why and leaves nothing behind. Runs as the EXIT trap of `up`.
cluster_up_failed() {
  local part=init
  trap - EXIT
  [[ ! -e $STATE/failed-part ]] || part=$(<"$STATE/failed-part")
  say "Cluster $NAME did not come up. The end of the log of $part:"
  [[ ! -e $STATE/log/$part.log ]] || tail -n 30 "$STATE/log/$part.log" >&2
  if [[ ${SLUICE_KEEP_LOGS:-} ]]; then
    mkdir -p "$SLUICE_KEEP_LOGS"
    cp -r "$STATE/log/." "$SLUICE_KEEP_LOGS"
    say "All its logs: $SLUICE_KEEP_LOGS"
  fi
  cluster_clean
  exit 1
}

cluster_down() {
  need_root
  inside && die "leave the cluster first (exit), then take it down"
  lock_clusters
  if [[ ! -d $STATE ]]; then
    say "Cluster $NAME is not up."
    return
  fi
  if [[ ${SLUICE_KEEP_LOGS:-} ]]; then
    mkdir -p "$SLUICE_KEEP_LOGS"
    cp -r "$STATE/log/." "$SLUICE_KEEP_LOGS"
  fi
  step down "cluster $NAME down" cluster_clean
}

cluster_clean() {
  space_destroy
  rm -rf "$STATE"
  mount_points_remove
}

# cluster_exec COMMAND...: becomes the command, in the cluster. Its exit status, standard streams and current folder
# are the caller's; when the caller's process is ended, so is all that the command has started.
cluster_exec() {
  local pid leash enter
  cluster_environment
  if inside; then
    exec "$@"
  fi
  pid=$(space_pid) || die "cluster $NAME is not up"
  leash=$$-$(proc_start $$)
  enter=(nsenter --target "$pid" --mount --net --pid --ipc --uts --cgroup --wdns=/ --)
  exec {LEASH_END}> >(exec setsid "${enter[@]}" bash "$HARNESS/lib/leash.sh" "$leash" >/dev/null 2>&1)
  export LEASH_END
  exec "${enter[@]}" bash "$HARNESS/lib/inside.sh" "$leash" "$PWD" "$@"
}

cluster_shell() {
  say "kubectl, helm and ctr talk to cluster $NAME here; 'exit' leaves it running."
  cluster_exec bash --rcfile <(
    echo '[[ ! -r ~/.bashrc ]] || source ~/.bashrc'
    printf "PS1='(%s) \\\\w \\\\$ '\n" "$NAME"
  ) -i
}

clusters_status() {
  local folder pid
  if inside; then
    say "Inside cluster $NAME, logs in $STATE/log"
    inner_status
    return
  fi
  for folder in "$CLUSTERS"/*/; do
    [[ -d $folder ]] || continue
    use_cluster "$(basename "$folder")"
    if pid=$(space_pid); then
      say "Cluster $NAME: up, pid $pid, logs in $STATE/log"
      in_cluster status
    else
      say "Cluster $NAME: dead; its leftovers go with: cluster.sh down $NAME"
    fi
  done
  [[ ${folder:-} && -d $folder ]] || say "No cluster is up."
}
