#!/usr/bin/env bash
# Checks the harness itself: everything that the tests rest on works in a fresh cluster, and nothing of it is left
# when it is down. Takes about a minute once the components and images are built.
set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
CLUSTER=selftest
export SLUICE_CLUSTER=$CLUSTER

cluster() { ./cluster.sh --name "$CLUSTER" "$@"; }
kubectl() { cluster exec -- kubectl "$@"; }
check() { printf '  ok  %s\n' "$*"; }
fail() {
  printf 'selftest: %s\n' "$*" >&2
  exit 1
}

# expect TEXT WANTED GOT
expect() {
  [[ $2 == "$3" ]] || fail "$1: expected '$2', got '$3'"
  check "$1"
}

# traces: whatever this cluster might leave on the machine. Others may come and go meanwhile.
traces() {
  findmnt -rn -o TARGET | sort
  ls /sys/class/net
  find /sys/fs/cgroup -maxdepth 3 -type d -name "sluice-$CLUSTER-*"
  find /var/lib/kubelet /var/lib/cni -mindepth 1 2>/dev/null || true
  find /var/log/pods /var/log/containers /etc/cni /opt/cni /usr/libexec/kubernetes 2>/dev/null || true
  cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic /proc/sys/kernel/panic_on_oops
  find "$(cluster folder)" 2>/dev/null || true
}

# of_cluster: the processes that belong to the cluster, by the folder that all of them name or by their cgroup.
of_cluster() {
  local process
  for process in /proc/[0-9]*; do
    if grep -qs "/sluice-$CLUSTER-" "$process/cgroup"; then
      printf '%s %s\n' "${process##*/}" "$(tr '\0' ' ' <"$process/cmdline")"
    fi
  done
}

test_pod() {
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: says}
spec:
  restartPolicy: Never
  nodeSelector: {kubernetes.io/hostname: gpu-node-1}
  containers:
  - name: work
    image: localhost/workload:dev
    args: [--seconds, "0.1"]
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: "GPU-1,GPU-2"}]
YAML
  kubectl wait pod/says --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s >/dev/null
  local log uid
  uid=$(kubectl get pod says -o jsonpath='{.metadata.uid}')
  log=$(kubectl logs says)
  expect 'a pod runs, and kubectl logs shows what it said' 'says ["GPU-1","GPU-2"] '"$uid" \
    "$(jq -r 'select(.event == "start") | "\(.pod) \(.gpus | tojson) \(.uid)"' <<<"$log")"
  expect 'and how it ended' 'time 0' "$(jq -r 'select(.event == "end") | "\(.reason) \(.exit)"' <<<"$log")"
}

test_service_account() {
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-problem-detector"}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
---
apiVersion: v1
kind: Pod
metadata: {name: asks}
spec:
  serviceAccountName: reader
  restartPolicy: Never
  containers:
  - {name: work, image: "localhost/kubectl:dev", args: [get, node, gpu-node-1, -o, name]}
---
apiVersion: v1
kind: Pod
metadata: {name: asks-too-much}
spec:
  serviceAccountName: reader
  restartPolicy: Never
  containers:
  - {name: work, image: "localhost/kubectl:dev", args: [delete, node, gpu-node-1]}
YAML
  kubectl wait pod/asks --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s >/dev/null
  expect 'a pod reaches the API through the service address with its own token' node/gpu-node-1 \
    "$(kubectl logs asks)"
  kubectl wait pod/asks-too-much --for=jsonpath='{.status.phase}'=Failed --timeout=60s >/dev/null
  [[ $(kubectl logs asks-too-much) == *Forbidden* ]] || fail "a pod did what its role does not allow"
  check 'and may do what its role allows, no more'
}

test_kwok() {
  cluster kwok-nodes 2 8
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: ends, annotations: {kwok.test/run-ms: "300"}}
spec:
  nodeSelector: {type: kwok}
  tolerations: [{operator: Exists}]
  containers: [{name: work, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: too-long, annotations: {kwok.test/run-ms: "60000"}}
spec:
  activeDeadlineSeconds: 1
  nodeSelector: {type: kwok}
  tolerations: [{operator: Exists}]
  containers: [{name: work, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
YAML
  kubectl wait pod/ends --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s >/dev/null
  check 'a pod on a simulated node ends when it is told to'
  kubectl wait pod/too-long --for=jsonpath='{.status.reason}'=DeadlineExceeded --timeout=60s >/dev/null
  check 'and is held to its deadline'
  cluster kwok-nodes 0
  expect 'simulated nodes go away' gpu-node-1 "$(kubectl get nodes -o jsonpath='{.items[*].metadata.name}')"
}

test_components() {
  kubectl run holds --image=localhost/workload:dev --restart=Never >/dev/null
  kubectl wait pod/holds --for=condition=Ready --timeout=60s >/dev/null
  local before
  before=$(kubectl get pod holds -o jsonpath='{.status.containerStatuses[0].containerID}')
  cluster kill kubelet
  cluster start kubelet
  for _ in 1 2 3; do
    cluster restart kubelet
  done
  cluster restart containerd
  kubectl wait node/gpu-node-1 --for=condition=Ready --timeout=60s >/dev/null
  expect 'a pod outlives kubelet (killed) and containerd (restarted)' "$before Running" \
    "$(kubectl get pod holds -o jsonpath='{.status.containerStatuses[0].containerID} {.status.phase}')"
  # kubelet serves before it has learned of its pods again.
  for _ in {1..200}; do
    kubectl exec holds -- /usr/local/bin/workload --seconds 0 >"$WORK/said" 2>"$WORK/refused" && break
    sleep 0.1
  done
  [[ $(<"$WORK/said") == *'"event":"end"'* ]] || fail "kubectl exec did not run the command: $(<"$WORK/refused")"
  check 'kubectl exec'
  cluster pause kube-scheduler
  kubectl run waits --image=localhost/workload:dev --restart=Never >/dev/null
  cluster resume kube-scheduler
  kubectl wait pod/waits --for=condition=Ready --timeout=60s >/dev/null
  check 'kube-scheduler goes on after a pause'
}

test_exec() {
  local status=0 process
  cluster exec -- bash -c 'exit 7' || status=$?
  expect 'exec passes the exit status' 7 "$status"
  expect 'exec keeps the folder' "$PWD" "$(cluster exec -- pwd)"
  expect 'exec keeps the streams' hello "$(echo hello | cluster exec -- cat)"
  kubectl get --raw /apis/admissionregistration.k8s.io/v1 | grep -q mutatingadmissionpolicies ||
    fail 'MutatingAdmissionPolicy is not served'
  check 'MutatingAdmissionPolicy v1 is served'
  mkfifo "$WORK/fifo"
  ./cluster.sh --name "$CLUSTER" exec -- bash -c 'setsid sleep 7777 & echo up; wait' >"$WORK/fifo" &
  process=$!
  read -r _ <"$WORK/fifo"
  kill -KILL "$process"
  wait "$process" 2>/dev/null || true
  for _ in {1..100}; do
    cluster exec -- pgrep -f 'sleep 777[7]' >/dev/null || break
    sleep 0.05
  done
  ! cluster exec -- pgrep -af 'sleep 777[7]' || fail 'a killed exec left its command behind'
  check 'a killed exec leaves nothing running'
}

test_hang_up() {
  local server status=0
  socat TCP-LISTEN:18999,bind=127.0.0.1,reuseaddr,fork EXEC:/bin/true &
  server=$!
  # shellcheck disable=SC2016 # for the shell that runs it
  timeout 60 bash -c 'source lib/common.sh
    await 10 port_open 18999
    for _ in {1..100}; do if http_ok 18999 /; then exit 1; fi; done' 2>/dev/null || status=$?
  kill "$server"
  wait "$server" 2>/dev/null || true
  expect 'a server that hangs up does not end the one who asks' 0 "$status"
}

finish() {
  local status=$?
  cluster down >/dev/null 2>&1 || true
  rm -rf "$WORK"
  exit "$status"
}

main() {
  WORK=$(mktemp -d)
  cluster down
  traces >"$WORK/before"
  trap finish EXIT
  trap 'echo "selftest: line $LINENO: status $? of: $BASH_COMMAND" >&2' ERR
  cluster up
  cluster images >/dev/null
  test_hang_up
  test_exec
  test_pod
  test_service_account
  test_kwok
  test_components
  [[ $(of_cluster) ]] || fail 'no process of the cluster is found while it is up: the next check would say nothing'
  cluster down
  traces >"$WORK/after"
  diff "$WORK/before" "$WORK/after" || fail 'the cluster left something behind'
  [[ ! $(of_cluster) ]] || fail "processes are left: $(of_cluster)"
  check 'nothing is left: mounts, network devices, cgroups, folders, settings, processes'
  echo "The harness works. It took $SECONDS s."
}

main
