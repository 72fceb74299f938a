# shellcheck shell=bash
# Life of a cluster as a whole.

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
  step init 'pause image' with_scratch pause_image
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
  # When this process was told to end, what it was waiting for goes on.
  pkill -KILL -P $$ || true
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
  # A child of an `up` that was told to end may be writing its last file.
  await 5 rm -rf "$STATE" || die "cannot remove $STATE"
  mount_points_remove
}

clusters_status() {
  local folder pid
  if inside; then
    echo "Inside cluster $NAME, logs in $STATE/log"
    inner_status
    return
  fi
  for folder in "$CLUSTERS"/*/; do
    [[ -d $folder ]] || continue
    use_cluster "$(basename "$folder")"
    if pid=$(space_pid); then
      echo "Cluster $NAME: up, pid $pid, logs in $STATE/log"
      in_cluster status
    else
      echo "Cluster $NAME: dead; its leftovers go with: cluster.sh down $NAME"
    fi
  done
  [[ ${folder:-} && -d $folder ]] || echo "No cluster is up."
}
