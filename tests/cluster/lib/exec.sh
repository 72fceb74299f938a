# shellcheck shell=bash
# Running commands in a cluster, for `exec` and `shell`.

# cluster_environment: what a command in the cluster finds set.
cluster_environment() {
  PATH=$(tools_folder):$PATH
  KUBECONFIG=$STATE/admin.kubeconfig
  SLUICE_CLUSTER=$NAME
  # kubectl and helm remember what a server serves by its address, and every cluster has the same one.
  KUBECACHEDIR=$STATE/kube-cache
  CONTAINERD_ADDRESS=/run/containerd/containerd.sock
  CONTAINERD_NAMESPACE=k8s.io
  export PATH KUBECONFIG KUBECACHEDIR SLUICE_CLUSTER CONTAINERD_ADDRESS CONTAINERD_NAMESPACE
  # Proxies of the machine cannot be reached from in here, and would be asked for the API server.
  unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY
}

# cluster_exec COMMAND...: runs it in the cluster and exits as it does. Standard streams and current folder are the
# caller's. SIGTERM, SIGHUP and SIGINT go on to the command; if this process is killed outright, the leash ends the
# command and all that it has started.
cluster_exec() {
  local pid leash enter child status interrupted
  cluster_environment
  if inside; then
    exec "$@"
  fi
  pid=$(space_pid) || die "cluster $NAME is not up"
  leash=$$-$(proc_start $$)
  mkdir -p "$STATE/leash"
  : >"$STATE/leash/$leash"
  enter=(nsenter --target "$pid" --mount --net --pid --ipc --uts --cgroup --wdns=/ --)
  exec {leash_end}> >(exec setsid "${enter[@]}" bash "$HARNESS/lib/leash.sh" "$leash" >/dev/null 2>&1)
  # Without the redirection bash would give a background command an empty input.
  "${enter[@]}" bash "$HARNESS/lib/inside.sh" "$leash" "$PWD" "$@" <&0 {leash_end}>&- &
  child=$!
  trap 'interrupted=yes; forward TERM "$child"' TERM
  trap 'interrupted=yes; forward HUP "$child"' HUP
  trap 'interrupted=yes; at_terminal || forward INT "$child"' INT
  while :; do
    interrupted=no status=0
    wait "$child" || status=$?
    [[ $interrupted == yes ]] || break
  done
  exit "$status"
}

# at_terminal: a key press reaches every process of the terminal's foreground group by itself.
at_terminal() {
  local line
  read -r line <"/proc/$$/stat"
  # shellcheck disable=SC2086 # the fields are to be split
  set -- ${line##*) }
  [[ $3 == "$6" ]]
}

# forward SIGNAL PID: to the command that nsenter, PID, has started and waits for.
forward() {
  local command
  # It may have ended in this very moment.
  command=$(pgrep -P "$2") || return 0
  kill "-$1" "$command" 2>/dev/null || true
}

cluster_shell() {
  local rc=$STATE/shellrc
  {
    echo '[[ ! -r ~/.bashrc ]] || source ~/.bashrc'
    printf "PS1='(%s) \\w \\$ '\n" "$NAME"
  } >"$rc"
  say "kubectl, helm and ctr talk to cluster $NAME here; 'exit' leaves it running."
  cluster_exec bash --rcfile "$rc" -i
}
