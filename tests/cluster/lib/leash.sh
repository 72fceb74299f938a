#!/usr/bin/env bash
# The other end of an `exec`: leash.sh LEASH. Its standard input ends when the process that a person or a test
# waits for has ended, killed or not; whatever the command has left running is ended then.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=cgroups.sh
source "$HARNESS/lib/cgroups.sh"

leash=$(cgroup_leash)/$1

signal_all() {
  local pid
  while read -r pid; do
    # Another signal, or its own end, may be faster.
    kill "-$1" "$pid" 2>/dev/null || true
  done <"$leash/cgroup.procs"
}

leash_empty() { [[ -z $(<"$leash/cgroup.procs") ]]; }

# Only the end of the input counts.
while read -r _; do :; done
rm -f "$STATE/leash/$1"
mkdir -p "$leash"
if ! leash_empty; then
  signal_all TERM
  await 5 leash_empty || signal_all KILL
  await 5 leash_empty
fi
rmdir "$leash"
