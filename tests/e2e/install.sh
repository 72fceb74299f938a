#!/usr/bin/env bash
# Installs the chart into the cluster that this runs in, or upgrades it to what the checkout holds now.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$folder/../.." && pwd)

# What an interrupted run has left; a scenario that installs anew has its own still.
if [[ ! ${SLUICE_E2E_INSIDE:-} ]]; then
  kubectl delete namespace --selector sluice-e2e=scenario --ignore-not-found
fi

# The tag of the image stays the same from build to build. What ran at the last install is noted on the deployment.
deployment=deployment/sluice-controller
note=sluice-e2e/image
system=(kubectl --namespace sluice-system)
built=$(ctr --namespace k8s.io images list | awk '$1 == "localhost/sluice:dev" { print $3 }')
before=$("${system[@]}" get "$deployment" --ignore-not-found -o "jsonpath={.metadata.annotations.$note}")
helm upgrade --install sluice "$repository/charts/sluice" --namespace sluice-system --create-namespace \
  --values "$repository/examples/demo-values.yaml" --values "$folder/values.yaml" --wait --timeout 3m
"${system[@]}" annotate --overwrite "$deployment" "$note=$built"
if [[ $before && $before != "$built" ]]; then
  "${system[@]}" rollout restart "$deployment" daemonset/sluice-agent
fi
for owner in "$deployment" daemonset/sluice-agent; do
  "${system[@]}" rollout status "$owner" --timeout=3m
done
kubectl wait --for=condition=Ready --timeout=60s gpupool/default
