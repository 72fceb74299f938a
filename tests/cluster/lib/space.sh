# shellcheck shell=bash
# The private namespaces of one cluster: made by `up`, entered by everything, gone with their PID 1.

# These have to exist to be covered by a tmpfs of the cluster's own; a machine without Kubernetes has none.
MOUNT_POINTS=(/var/lib/kubelet /var/lib/cni)

# inside: does this very process live in the chosen cluster?
inside() { [[ -r $INSIDE_MARK && $(<"$INSIDE_MARK") == "$NAME" ]]; }

# space_pid: the pid of the cluster's PID 1 as the caller sees it; false if there is none alive.
space_pid() {
  local pid start boot
  if inside; then
    echo 1
    return
  fi
  read -r pid start boot 2>/dev/null <"$STATE/init" || return 1
  [[ $boot == "$(</proc/sys/kernel/random/boot_id)" ]] && proc_is "$pid" "$start" || return 1
  echo "$pid"
}

# lock_clusters: one `up` or `down` at a time on a machine. The lock ends with this process.
lock_clusters() {
  mkdir -p "$CLUSTERS"
  exec {CLUSTERS_LOCK}<"$CLUSTERS"
  flock --nonblock "$CLUSTERS_LOCK" && return
  say "cluster: another up or down is at work; waiting for it"
  flock "$CLUSTERS_LOCK"
}

# mount_points_make: what is made here is noted, so that the last cluster's `down` can take it away.
mount_points_make() {
  local folder
  for folder in "${MOUNT_POINTS[@]}"; do
    [[ -d $folder ]] && continue
    mkdir "$folder"
    echo "$folder" >>"$CLUSTERS/mount-points"
  done
}

# mount_points_remove: removing a folder would end a mount on it in another namespace too, be it of a cluster that
# another SLUICE_CACHE knows or of somebody else.
mount_points_remove() {
  local folder
  [[ -z $(find "$CLUSTERS" -mindepth 1 -maxdepth 1 -type d) && -e $CLUSTERS/mount-points ]] || return 0
  while read -r folder; do
    if grep -qs " $folder " /proc/[0-9]*/mountinfo; then
      # Whoever goes last takes it away.
      return
    fi
    [[ ! -d $folder ]] || rmdir --ignore-fail-on-non-empty "$folder"
  done <"$CLUSTERS/mount-points"
  rm "$CLUSTERS/mount-points"
}

# space_create: returns when the namespaces are furnished.
space_create() {
  local ready pid start launcher
  mount_points_make
  cgroup_create
  exec {ready}< <(exec 9>&1 </dev/null >"$STATE/log/init.log" 2>&1
    close_inherited 9
    exec setsid bash "$HARNESS/lib/launch-space.sh")
  # Init says its pid when it is done; when it dies before, the pipe ends without a word.
  if ! read -r -t 30 -u "$ready" pid; then
    exec {ready}<&-
    return 1
  fi
  exec {ready}<&-
  start=$(proc_start "$pid") || return 1
  # Version 2 keeps processes out of a cgroup that hands controllers down.
  read -r launcher _ <"$STATE/launcher"
  cgroup_join "$launcher" "$CGROUP/components"
  echo "$pid $start $(</proc/sys/kernel/random/boot_id)" >"$STATE/init"
}

# space_destroy: the kernel ends every process of a PID namespace whose first one dies, and lets that one go
# last. Mounts, network devices and the rest have no other owner.
space_destroy() {
  local file pid start
  # Neither file is there when `up` failed early; the first has no pid of an init that is not ready yet.
  for file in "$STATE/init" "$STATE/launcher"; do
    read -r pid start _ 2>/dev/null <"$file" || continue
    proc_is "$pid" "$start" || continue
    kill -KILL "$pid"
    await 30 proc_gone "$pid" "$start" || die "process $pid of cluster $NAME does not end"
  done
  cgroup_kill
  cgroup_remove
}

# space_enter COMMAND...: runs it in all the cluster's namespaces, with the machine's environment.
space_enter() {
  local pid
  pid=$(space_pid) || die "cluster $NAME is not up"
  nsenter --target "$pid" --mount --net --pid --ipc --uts --cgroup --wdns=/ -- "$@"
}
