#!/usr/bin/env bash
# PID 1 of a cluster: furnishes the namespaces, says so, then collects the dead until it is killed itself.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=cgroups.sh
source "$HARNESS/lib/cgroups.sh"

# This /proc is still the machine's and tells the pid that the machine knows this process by.
read -r host_pid _ </proc/self/stat
# The hierarchies, as "number:controllers:path"; version 2 has no controllers.
mapfile -t hierarchies </proc/self/cgroup

mount_cgroups() {
  local line controllers name
  if ((${#hierarchies[@]} == 1)); then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    return
  fi
  mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
  for line in "${hierarchies[@]}"; do
    controllers=${line#*:}
    controllers=${controllers%%:*}
    [[ -n $controllers ]] || continue
    mkdir "/sys/fs/cgroup/${controllers#name=}"
    mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/${controllers#name=}"
    if [[ $controllers == *,* ]]; then
      for name in ${controllers//,/ }; do
        ln -s "$controllers" "/sys/fs/cgroup/$name"
      done
    fi
  done
}

# kubelet sets these for the whole machine. It finds and keeps its own values here instead.
cover_sysctls() {
  local setting key value
  mkdir /run/sysctl
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    key=${setting%=*} value=${setting#*=}
    [[ -e /proc/sys/$key ]] || continue
    echo "$value" >"/run/sysctl/${key//\//.}"
    mount --bind "/run/sysctl/${key//\//.}" "/proc/sys/$key"
  done
}

make_network() {
  ip link set lo up
  # A bridge without ports: the node's address must not be loopback, and not every kernel has `dummy`.
  ip link add node0 type bridge
  ip addr add "$NODE_IP/24" dev node0
  ip link set node0 up
  ip route add default dev node0
  echo 1 >/proc/sys/net/ipv4/ip_forward
}

# Nothing flows back to the machine; inside, mounts spread to pods that ask for it, as on a systemd machine.
mount --make-rprivate /
mount --make-rshared /
umount --recursive --lazy /proc
mount -t proc proc /proc
umount --recursive --lazy /sys
mount -t sysfs sysfs /sys
mount_cgroups
for folder in /run /var/log /var/lib/kubelet /var/lib/cni; do
  mount -t tmpfs -o mode=755 "$NAME" "$folder"
done
mkdir -p /run/lock /run/containerd /run/netns /run/cni/net.d /var/log/pods /var/log/containers
cover_sysctls
make_network
hostname "$NODE_NAME"
cgroup_join $$ components
echo "$NAME" >"$INSIDE_MARK"

echo "$host_pid" >&9
exec 9>&-
# `wait` returns for a child of this shell only, but bash collects every orphan while it waits.
while :; do
  sleep infinity &
  wait $! || true
done
