#!/usr/bin/env bash
# Moves itself to the cluster's cgroups and becomes the process that holds the new namespaces open for PID 1.
# Descriptor 9 is where PID 1 says that it is ready.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=cgroups.sh
source "$HARNESS/lib/cgroups.sh"

use_cluster "$NAME"
# Fails when `up` has given up and cleaned up already.
echo "$$ $(proc_start $$)" >"$STATE/launcher"
# The place at the time of the call becomes the root of the new cgroup namespace.
cgroup_join $$ "$CGROUP"
exec unshare --mount --net --pid --ipc --uts --cgroup --fork --kill-child \
  --propagation private -- bash "$HARNESS/lib/init.sh"
