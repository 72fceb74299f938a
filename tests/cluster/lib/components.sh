# shellcheck shell=bash
# The programs of a cluster: how each is started, how one sees that it serves, and how it is ended. All of this
# runs inside the cluster's namespaces (cluster.sh enters them first).

# In the order of starting. `down` needs no order: it ends the namespace.
COMPONENTS=(etcd kube-apiserver containerd kube-controller-manager kube-scheduler kubelet kube-proxy kwok)

need_component() {
  local component
  for component in "${COMPONENTS[@]}"; do
    [[ $component != "$1" ]] || return 0
  done
  die "'$1' is no component: ${COMPONENTS[*]}"
}

# component_command COMPONENT: fills COMMAND.
component_command() {
  local bin
  bin=$(tools_folder)
  case $1 in
    etcd)
      # Nothing has to outlive the machine: no fsync, and data in memory.
      COMMAND=("$bin/etcd" --data-dir=/run/etcd --unsafe-no-fsync --log-level=warn
        --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379
        --listen-peer-urls=http://127.0.0.1:2380)
      ;;
    kube-apiserver) apiserver_command "$bin" ;;
    containerd) COMMAND=(containerd --config "$STATE/conf/containerd.toml") ;;
    kube-controller-manager)
      COMMAND=("$bin/kube-controller-manager" --kubeconfig="$STATE/kube-controller-manager.kubeconfig"
        --service-account-private-key-file="$(pki sa.key)" --root-ca-file="$(pki ca.crt)"
        --use-service-account-credentials --leader-elect=false --authentication-skip-lookup
        --bind-address=127.0.0.1 --tls-cert-file="$(pki apiserver.crt)"
        --tls-private-key-file="$(pki apiserver.key)" --kube-api-qps=300 --kube-api-burst=600
        --flex-volume-plugin-dir=/run/volume-plugins)
      ;;
    kube-scheduler)
      COMMAND=("$bin/kube-scheduler" --config="$STATE/conf/kube-scheduler.yaml"
        --authentication-skip-lookup --bind-address=127.0.0.1
        --tls-cert-file="$(pki apiserver.crt)" --tls-private-key-file="$(pki apiserver.key)")
      ;;
    kubelet)
      COMMAND=("$bin/kubelet" --config="$STATE/conf/kubelet.yaml" --kubeconfig="$STATE/kubelet.kubeconfig"
        --hostname-override="$NODE_NAME" --node-ip="$NODE_IP" --v=2)
      ;;
    kube-proxy)
      COMMAND=("$bin/kube-proxy" --config="$STATE/conf/kube-proxy.yaml" --hostname-override="$NODE_NAME")
      ;;
    kwok)
      COMMAND=("$bin/kwok" --kubeconfig="$STATE/kwok.kubeconfig" --config="$HARNESS/kwok/stages.yaml"
        --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake --node-ip="$NODE_IP"
        --cidr=10.86.0.0/16 --node-lease-duration-seconds=40 --server-address=127.0.0.1:10247)
      ;;
  esac
}

# InternalIP: node names resolve nowhere, and "kubectl logs" would hang on them.
apiserver_command() {
  # shellcheck disable=SC2054 # the comma is part of a flag
  COMMAND=("$1/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=6443
    --bind-address=0.0.0.0 --advertise-address="$NODE_IP" --service-cluster-ip-range=10.96.0.0/16
    --tls-cert-file="$(pki apiserver.crt)" --tls-private-key-file="$(pki apiserver.key)"
    --client-ca-file="$(pki ca.crt)" --authorization-mode=Node,RBAC
    --enable-admission-plugins=NodeRestriction --allow-privileged=true
    --service-account-issuer=https://kubernetes.default.svc
    --service-account-key-file="$(pki sa.pub)" --service-account-signing-key-file="$(pki sa.key)"
    --kubelet-client-certificate="$(pki apiserver-kubelet.crt)"
    --kubelet-client-key="$(pki apiserver-kubelet.key)" --kubelet-certificate-authority="$(pki ca.crt)"
    --kubelet-preferred-address-types=InternalIP)
}

# component_serves COMPONENT: does it answer?
component_serves() {
  case $1 in
    etcd) http_ok 2379 /health ;;
    kube-apiserver) kubectl get --raw /readyz ;;
    containerd) ctr --timeout 2s --connect-timeout 1s version ;;
    kube-controller-manager) port_open 10257 ;;
    kube-scheduler) port_open 10259 ;;
    kubelet) http_ok 10248 /healthz ;;
    kube-proxy) http_ok 10256 /healthz ;;
    kwok) http_ok 10247 /healthz ;;
  esac
}

# component_pid COMPONENT: the pid in the cluster's namespace; false if it does not run.
component_pid() {
  local pid start
  read -r pid start 2>/dev/null <"$STATE/pids/$1" || return 1
  proc_is "$pid" "$start" || return 1
  echo "$pid"
}

# component_launch COMPONENT: starts it and returns at once.
component_launch() {
  local pid COMMAND=()
  if pid=$(component_pid "$1"); then
    say "cluster: $1 runs already, pid $pid"
    return
  fi
  component_command "$1"
  mkdir -p "$STATE/pids"
  say "--- $(date --iso-8601=ns) $NAME: ${COMMAND[*]}" 2>>"$STATE/log/$1.log"
  (
    cgroup_join "$BASHPID" components
    cd /
    close_inherited
    exec setsid "${COMMAND[@]}"
  ) </dev/null >>"$STATE/log/$1.log" 2>&1 &
  pid=$!
  echo "$pid $(proc_start "$pid")" >"$STATE/pids/$1"
  disown "$pid"
}

# component_wait COMPONENT: until it serves, as long as it lives.
component_wait() {
  # The API server is slowest, on a machine that builds something at the same time most of all.
  await 120 component_serves_or_died "$1" && component_pid "$1" >/dev/null
}

component_serves_or_died() { ! component_pid "$1" >/dev/null || component_serves "$1"; }

component_start() {
  component_launch "$1"
  component_wait "$1" && return
  tail -n 20 "$STATE/log/$1.log" >&2
  die "$1 did not come up; all of its log: cluster.sh logs $1"
}

# component_signal COMPONENT SIGNAL
component_signal() {
  local pid
  pid=$(component_pid "$1") || die "$1 does not run"
  kill "-$2" "$pid"
}

# component_stop COMPONENT: asks, and after ten seconds insists. Containers outlive containerd and kubelet.
component_stop() {
  local pid start
  if ! component_pid "$1" >/dev/null; then
    say "cluster: $1 does not run"
    return
  fi
  read -r pid start <"$STATE/pids/$1"
  kill -TERM "$pid"
  # A paused process takes no TERM before it goes on. Any other may have ended by now.
  kill -CONT "$pid" 2>/dev/null || true
  if ! await 10 proc_gone "$pid" "$start"; then
    say "cluster: $1 goes on after SIGTERM and 10 s; killing it"
    kill -KILL "$pid"
    await 10 proc_gone "$pid" "$start" || die "$1, pid $pid, does not end"
  fi
  rm "$STATE/pids/$1"
}

component_kill() {
  local pid start
  component_pid "$1" >/dev/null || die "$1 does not run"
  read -r pid start <"$STATE/pids/$1"
  kill -KILL "$pid"
  await 10 proc_gone "$pid" "$start" || die "$1, pid $pid, does not end"
  rm "$STATE/pids/$1"
}

components_status() {
  local component pid
  for component in "${COMPONENTS[@]}"; do
    if ! pid=$(component_pid "$component"); then
      printf '  %-24s not running\n' "$component"
    elif [[ $(ps -o state= -p "$pid") == T ]]; then
      printf '  %-24s pid %-7s paused\n' "$component" "$pid"
    elif component_serves "$component" >/dev/null 2>&1; then
      printf '  %-24s pid %-7s serves\n' "$component" "$pid"
    else
      printf '  %-24s pid %-7s does not answer\n' "$component" "$pid"
    fi
  done
}
