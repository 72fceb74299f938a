#!/usr/bin/env bash
# What `exec` runs in the cluster's namespaces: inside.sh LEASH FOLDER COMMAND...
# Joins a cgroup of its own, so that whatever the command starts can be found and ended, then becomes the command.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=cgroups.sh
source "$HARNESS/lib/cgroups.sh"

token=$STATE/leash/$1 leash=$(cgroup_leash)/$1 folder=$2
shift 2
mkdir -p "$leash"
echo $$ >"$leash/cgroup.procs"
# The leash takes the token away before it looks whom to end: whoever comes later ends here.
[[ -e $token ]] || exit 143
cd "$folder" 2>/dev/null || die "the folder $folder cannot be seen from inside the cluster"
# The harness runs this in the background, where bash has a command ignore the keyboard's signals.
exec env --default-signal=INT,QUIT "$@"
