#!/usr/bin/env bash
# What `exec` runs in the cluster's namespaces: inside.sh LEASH FOLDER COMMAND...
# Joins a cgroup of its own, so that whatever the command starts can be found and ended, then becomes the command.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=cgroups.sh
source "$HARNESS/lib/cgroups.sh"
# shellcheck source=certs.sh
source "$HARNESS/lib/certs.sh"

leash=$(cgroup_leash)/$1 folder=$2
shift 2
mkdir -p "$leash"
echo $$ >"$leash/cgroup.procs"
# The parent lives outside the PID namespace. If it has died already, nobody waits for this command.
[[ $PPID == 0 ]] || exit 143
exec {LEASH_END}>&-
unset LEASH_END
cd "$folder" 2>/dev/null || die "the folder $folder cannot be seen from inside the cluster"
exec "$@"
