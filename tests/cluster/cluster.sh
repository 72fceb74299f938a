#!/usr/bin/env bash
# A real Kubernetes cluster on this machine, in namespaces of its own. `cluster.sh --help` tells the rest.
set -euo pipefail

LIB=$(cd "$(dirname "${BASH_SOURCE[0]}")/lib" && pwd)
# shellcheck source=lib/common.sh
source "$LIB/common.sh"
# shellcheck source=lib/cgroups.sh
source "$LIB/cgroups.sh"
# shellcheck source=lib/space.sh
source "$LIB/space.sh"
# shellcheck source=lib/certs.sh
source "$LIB/certs.sh"
# shellcheck source=lib/config.sh
source "$LIB/config.sh"
# shellcheck source=lib/components.sh
source "$LIB/components.sh"
# shellcheck source=lib/images.sh
source "$LIB/images.sh"
# shellcheck source=lib/kwok.sh
source "$LIB/kwok.sh"
# shellcheck source=lib/exec.sh
source "$LIB/exec.sh"
# shellcheck source=lib/session.sh
source "$LIB/session.sh"

help() {
  cat <<'TEXT'
A real Kubernetes cluster in private namespaces: etcd, API server, controller manager, scheduler, kubelet with
containerd (node gpu-node-1), kube-proxy, and kwok for simulated nodes. Nothing of it is seen outside, and nothing
is left when it goes down.

  cluster.sh [--name NAME] COMMAND ...      NAME: $SLUICE_CLUSTER, else "sluice"

  up [NAME]                      start it; the first time installs packages and builds Kubernetes (minutes)
  down [NAME]                    end it and all that runs in it
  shell [NAME]                   a shell in it, with kubectl, helm, ctr and KUBECONFIG
  exec [NAME] -- COMMAND...      run a command in it: same folder, streams and exit status; ends with its caller
  status                         every cluster on this machine and its components

  images                         build what changed of the images, and import them if the cluster is up
  import ARCHIVE.tar...          put docker archives into containerd
  kwok-nodes N [GPUS] [--no-taint]
                                 make the simulated nodes N, kwok-0 and up, of GPUS (8) each. They are tainted
                                 kwok.x-k8s.io/node=fake:NoSchedule; kwok/stages.yaml tells how their pods behave

  start|stop|kill|restart COMPONENT
                                 returns when it serves, or is gone. stop asks with SIGTERM; kill does not ask
  pause|resume COMPONENT         freeze it (SIGSTOP) and let it go on
  logs COMPONENT [TAIL-OPTION...]    of: etcd kube-apiserver containerd kube-controller-manager kube-scheduler
                                 kubelet kube-proxy kwok init
  folder                         where the cluster keeps its logs and kubeconfig

All but up and down work inside (shell, exec) as well. Environment: SLUICE_CACHE (~/.cache/sluice) keeps the built
components, images and running clusters; SLUICE_KEEP_LOGS=FOLDER saves the logs when a cluster goes down;
SLUICE_PROFILE (release) is how cargo builds for the images.
TEXT
}

# inner_component VERB COMPONENT
inner_component() {
  need_component "$2"
  case $1 in
    start) component_start "$2" ;;
    stop) component_stop "$2" ;;
    kill) component_kill "$2" ;;
    restart)
      component_stop "$2"
      component_start "$2"
      ;;
    pause) component_signal "$2" STOP ;;
    resume) component_signal "$2" CONT ;;
  esac
}

inner_status() { components_status; }

inner_import() {
  local archive
  for archive in "$@"; do
    image_import "$archive"
  done
}

inner_kwok() { kwok_nodes "$@"; }

# optional_name ARGUMENT...: takes a cluster's name in front of the rest, if there is one.
optional_name() {
  SHIFTED=0
  if [[ ${1:-} && $1 != -* ]]; then
    use_cluster "$1"
    SHIFTED=1
  fi
}

kwok_command() {
  local tainted=yes numbers=() argument
  for argument in "$@"; do
    case $argument in
      --no-taint) tainted=no ;;
      *[!0-9]* | '') die "kwok-nodes takes numbers: kwok-nodes N [GPUS] [--no-taint]" ;;
      *) numbers+=("$argument") ;;
    esac
  done
  ((${#numbers[@]} == 1 || ${#numbers[@]} == 2)) || die "kwok-nodes N [GPUS] [--no-taint]"
  in_cluster kwok "${numbers[0]}" "${numbers[1]:-8}" "$tainted"
}

logs_command() {
  local component=${1:?of which component?}
  [[ $component == init ]] || need_component "$component"
  [[ -e $STATE/log/$component.log ]] || die "$component of cluster $NAME has no log"
  tail "${@:2}" "$STATE/log/$component.log"
}

import_command() {
  local archive paths=()
  (($# > 0)) || die "import ARCHIVE.tar..."
  for archive in "$@"; do
    paths+=("$(realpath -e "$archive")")
  done
  in_cluster import "${paths[@]}"
}

main() {
  use_cluster "${SLUICE_CLUSTER:-sluice}"
  if [[ ${1:-} == --name || ${1:-} == -n ]]; then
    use_cluster "${2:?--name needs a name}"
    shift 2
  fi
  local command=${1:---help}
  shift || true
  if inside; then
    cluster_environment
  fi
  case $command in
    up | down | shell)
      optional_name "$@"
      (($# == SHIFTED)) || die "$command takes a cluster's name only"
      "cluster_$command"
      ;;
    exec)
      optional_name "$@"
      shift "$SHIFTED"
      [[ ${1:-} == -- && $# -gt 1 ]] || die "exec [NAME] -- COMMAND..."
      shift
      cluster_exec "$@"
      ;;
    status) clusters_status ;;
    images) images_build ;;
    import) import_command "$@" ;;
    kwok-nodes) kwok_command "$@" ;;
    start | stop | kill | restart | pause | resume)
      need_component "${1:-}"
      in_cluster component "$command" "$1"
      ;;
    logs) logs_command "$@" ;;
    folder) echo "$STATE" ;;
    inner-start-all) inner_start_all ;;
    inner-status | inner-import | inner-kwok | inner-component) "${command/-/_}" "$@" ;;
    -h | --help | help) help ;;
    *) die "'$command' is no command; see --help" ;;
  esac
}

main "$@"
