# shellcheck shell=bash
# Simulated nodes beside the real one: kwok answers for them, the rest of the cluster does not know.

kwok_node() {
  cat <<YAML
apiVersion: v1
kind: Node
metadata:
  name: $1
  annotations:
    kwok.x-k8s.io/node: fake
    node.alpha.kubernetes.io/ttl: "0"
  labels:
    type: kwok
    kubernetes.io/arch: amd64
    kubernetes.io/hostname: $1
    kubernetes.io/os: linux
    node-role.kubernetes.io/agent: ""
spec:
  taints: $3
status:
  phase: Pending
  allocatable: &size {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "$2"}
  capacity: *size
---
YAML
}

# kwok_nodes NUMBER GPUS TAINTED: makes the simulated nodes this many, kwok-0 and up, of GPUS each.
kwok_nodes() {
  local number=$1 gpus=$2 taints='[]' index present=() surplus=()
  declare -A have=()
  # Without the taint the cluster's ordinary pods (Sluice's own, say) would land on a node that runs nothing.
  [[ $3 == no ]] || taints='[{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]'
  mapfile -t present < <(kubectl get nodes -l type=kwok -o name)
  for index in "${present[@]}"; do
    index=${index#node/kwok-}
    have[$index]=1
    ((index < number)) || surplus+=("kwok-$index")
  done
  for ((index = 0; index < number; index++)); do
    [[ ${have[$index]:-} ]] || kwok_node "kwok-$index" "$gpus" "$taints"
  done >"$STATE/kwok-nodes.yaml"
  if [[ -s $STATE/kwok-nodes.yaml ]]; then
    kubectl create --validate=false -f "$STATE/kwok-nodes.yaml" >/dev/null
  fi
  rm "$STATE/kwok-nodes.yaml"
  if ((number == 0)); then
    # All of them in one request.
    kubectl delete --raw '/api/v1/nodes?labelSelector=type%3Dkwok' >/dev/null
  elif ((${#surplus[@]} > 0)); then
    kubectl delete node --wait=false "${surplus[@]}" >/dev/null
  fi
  await 120 kwok_ready "$number" || die "not all $number simulated nodes became ready: cluster.sh logs kwok"
}

# kwok_ready NUMBER: are there this many, all of them ready? One list tells; `kubectl wait` watches each by itself.
kwok_ready() {
  local template='{{range .items}}{{range .status.conditions}}{{if eq .type "Ready"}}{{.status}}{{"\n"}}{{end}}{{end}}{{end}}'
  local all ready
  all=$(kubectl get nodes -l type=kwok -o name | wc -l)
  ready=$(kubectl get nodes -l type=kwok -o go-template="$template" | grep -c True || true)
  ((all == $1 && ready == $1))
}
