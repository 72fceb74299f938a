#!/usr/bin/env bash
# Runs a program in a cluster of its own, which goes down whatever happens.
set -euo pipefail

cluster=$(dirname "${BASH_SOURCE[0]}")/../cluster/cluster.sh
export SLUICE_CLUSTER=${SLUICE_ADMISSION_CLUSTER:-admission}
trap '"$cluster" down "$SLUICE_CLUSTER"' EXIT
"$cluster" up "$SLUICE_CLUSTER" >&2
"$cluster" exec "$SLUICE_CLUSTER" -- "$@"
