#!/usr/bin/env bash
# The whole of Sluice on one machine, on real parts: builds and starts a Kubernetes cluster in namespaces of its own,
# installs the chart, applies labelled pods, shows live what happens, and ends with the timeline and its check.
#
#   examples/demo.sh [--keep]      --keep leaves the cluster up: look around with tests/cluster/cluster.sh shell demo
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
CLUSTER=demo NAMESPACE=sluice-demo OUT=out/demo
KEEP=no
case ${1:-} in
  --keep) KEEP=yes ;;
  '') ;;
  *)
    echo "demo.sh: '$1' is no option; there is --keep" >&2
    exit 2
    ;;
esac

cluster() { tests/cluster/cluster.sh --name "$CLUSTER" "$@"; }
in_cluster() { tests/cluster/cluster.sh exec "$CLUSTER" -- "$@"; }
say() { printf '\n== %s\n' "$*"; }

RECORDER=
finish() {
  local status=$?
  [[ -z $RECORDER ]] || kill -TERM "$RECORDER" 2>/dev/null || true
  if [[ $KEEP == yes ]]; then
    echo "The cluster is still up: tests/cluster/cluster.sh shell $CLUSTER; tests/cluster/cluster.sh down $CLUSTER"
  else
    cluster down "$CLUSTER"
  fi
  exit "$status"
}

main() {
  local started=$SECONDS
  mkdir -p "$OUT"
  rm -f "$OUT"/*

  say "A Kubernetes cluster of its own (the first time it is built from source: some 10 to 20 minutes)"
  trap finish EXIT
  trap 'exit 130' INT TERM
  cluster up "$CLUSTER"
  say "Sluice's image, and that of the kube-scheduler which it guards"
  cluster images
  say "helm install"
  in_cluster helm upgrade --install sluice charts/sluice --namespace sluice-system --create-namespace \
    --values examples/demo-values.yaml --wait --timeout 5m
  in_cluster kubectl wait gpunode/gpu-node-1 --for=create --timeout=1m
  in_cluster kubectl wait gpunode/gpu-node-1 --for=jsonpath='{.status.freeOfTotal}'=8/8 --timeout=2m

  say "Live: eight smalls, then two larges with twelve smalls behind them"
  in_cluster kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | in_cluster kubectl apply -f - >/dev/null
  in_cluster kubectl --namespace "$NAMESPACE" delete pods --all --wait >/dev/null
  # Not by the function: $! would be a shell around it, which does not hand SIGTERM on.
  tests/cluster/cluster.sh exec "$CLUSTER" -- target/release/sluice --log warn record --namespace "$NAMESPACE" --without-runs \
    --out "$OUT/history.jsonl" &
  RECORDER=$!
  local kubectl=(in_cluster kubectl --namespace "$NAMESPACE")
  "${kubectl[@]}" apply -f examples/1-eight-smalls.yaml >/dev/null
  # Not their phase: one that has ended by then would never be Running again.
  "${kubectl[@]}" wait pod --all --for=condition=PodScheduled --timeout=2m >/dev/null
  "${kubectl[@]}" apply -f examples/2-two-larges-and-twelve-smalls.yaml >/dev/null
  in_cluster kubectl get gpool,gnode
  "${kubectl[@]}" wait pod --all --for=jsonpath='{.status.phase}'=Succeeded --timeout=5m >/dev/null
  in_cluster kubectl wait gpunode/gpu-node-1 --for=jsonpath='{.status.freeOfTotal}'=8/8 --timeout=1m >/dev/null
  kill -TERM "$RECORDER"
  wait "$RECORDER" || true
  RECORDER=

  say "What each container itself saw: its GPUs, its start, its end"
  local pod
  for pod in $("${kubectl[@]}" get pods -o name); do
    "${kubectl[@]}" logs "$pod"
  done | grep '"event"' >"$OUT/containers.jsonl"
  target/release/sluice timeline "$OUT/history.jsonl" "$OUT/containers.jsonl" --svg "$OUT/timeline.svg" --check |
    tee "$OUT/timeline.txt"
  echo
  echo "The same as a picture: $OUT/timeline.svg. All of it took $((SECONDS - started)) s."
}

main
