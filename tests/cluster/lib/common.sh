# shellcheck shell=bash
# Names, folders, messages and process identity: what every other file of the harness rests on.

: "${SLUICE_CACHE:=${HOME:?}/.cache/sluice}"
export SLUICE_CACHE

HARNESS=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
REPOSITORY=$(cd "$HARNESS/../.." && pwd)
CLUSTERS=$SLUICE_CACHE/clusters
NODE_NAME=gpu-node-1
NODE_IP=192.0.2.1
API_URL=https://127.0.0.1:6443
# Set only inside a cluster's namespaces: /run is a tmpfs of its own there.
INSIDE_MARK=/run/sluice-cluster
export HARNESS REPOSITORY NODE_NAME NODE_IP API_URL INSIDE_MARK

say() { printf '%s\n' "$*" >&2; }
die() { say "cluster: $*"; exit 1; }

# Chooses the cluster that the following calls are about.
use_cluster() {
  NAME=$1
  [[ $NAME =~ ^[a-z][a-z0-9-]{0,23}$ ]] ||
    die "'$NAME' is no cluster name: small letters, digits and '-', at most 24"
  STATE=$CLUSTERS/$NAME
  # Another SLUICE_CACHE may have a cluster of this name.
  CGROUP=sluice-$NAME-$(cksum <<<"$STATE" | cut -d' ' -f1)
  export NAME STATE CGROUP
}

# tools_key: the name of the tools folder follows the pinned versions.
tools_key() {
  cat "$HARNESS/tools/go.mod" "$HARNESS/tools/go.sum" | sha256sum | cut -c1-16
}

tools_folder() { printf '%s/tools-%s\n' "$SLUICE_CACHE" "$(tools_key)"; }

# tool_version MODULE: the version that go.mod pins.
tool_version() {
  awk -v module="$1" '$1 == module && $2 ~ /^v/ { print $2; exit }' "$HARNESS/tools/go.mod"
}

# proc_start PID: the start time in clock ticks. With the pid it names a process for good.
proc_start() {
  local line
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The command's name is in brackets and may hold anything; what follows it does not.
  line=${line##*) }
  # shellcheck disable=SC2086 # the fields are to be split
  set -- $line
  printf '%s\n' "${20}"
}

# proc_is PID START: does this very process still run? A zombie does not, unless threads of it go on: then its ports
# and files are still held.
proc_is() {
  local line
  [[ $(proc_start "$1") == "$2" ]] || return 1
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  line=${line##*) }
  # shellcheck disable=SC2086 # the fields are to be split
  set -- $line
  [[ $1 != [ZX] ]] || ((${18} > 1))
}

proc_gone() { ! proc_is "$@"; }

# await SECONDS COMMAND...: repeats COMMAND until it succeeds; false when the time is over.
await() {
  local end=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
  shift
  until "$@" >/dev/null 2>&1; do
    ((${EPOCHREALTIME/[.,]/} < end)) || return 1
    sleep 0.05
  done
}

# step PART TEXT COMMAND...: runs it, prints how long it took, and ends the harness if it failed. PART is whose log
# then tells why.
step() {
  local part=$1 text=$2 from=${EPOCHREALTIME/[.,]/} status ms
  shift 2
  [[ ! -d $STATE ]] || echo "$part" >"$STATE/failed-part"
  # A subshell of its own: behind `||` or `if`, bash would ignore `set -e` in everything that COMMAND calls.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  ms=$(((${EPOCHREALTIME/[.,]/} - from) / 1000))
  if ((status != 0)); then
    printf '  %-44s failed after %d.%03d s\n' "$text" $((ms / 1000)) $((ms % 1000)) >&2
    exit "$status"
  fi
  printf '  %-44s %4d.%03d s\n' "$text" $((ms / 1000)) $((ms % 1000)) >&2
}

# port_open PORT: does something listen on loopback?
port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# http_ok PORT PATH: does a plain HTTP server on loopback answer 200? A shell of its own with SIGPIPE ignored: a server
# that hangs up half-way, as one does that is just ending, would else end the harness without a word.
http_ok() {
  (
    trap '' PIPE
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$2" >&3
    read -r -t 5 answer <&3
    [[ $answer == *' 200 '* ]]
  )
}

# close_inherited KEEP: closes this shell's descriptors above the standard ones, but KEEP. What lives as long as a
# cluster must hold no lock, pipe or terminal of the process that happened to start it.
close_inherited() {
  local path fd
  for path in /proc/"$BASHPID"/fd/*; do
    fd=${path##*/}
    ((fd <= 2 || fd == ${1:-0})) || exec {fd}>&-
  done
}

need_root() {
  ((EUID == 0)) || die "a cluster needs root for its namespaces: run it with sudo -E"
}
