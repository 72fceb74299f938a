# shellcheck shell=bash
# One cgroup subtree per cluster in every hierarchy of the machine, version 1 or 2. The cluster's cgroup
# namespace makes the subtree its root, so kubelet's `kubepods` lies where it lies on a real node.

# cgroup_mounts: the folders where the hierarchies are mounted; only the one of version 2 where it is alone.
cgroup_mounts() {
  local folders
  folders=$(findmnt -rn -t cgroup -o TARGET | sort -u)
  [[ -n $folders ]] || folders=$(findmnt -rn -t cgroup2 -o TARGET | sort -u | head -n 1)
  [[ -n $folders ]] || die "no cgroup hierarchy is mounted"
  printf '%s\n' "$folders"
}

# cgroup_make FOLDER: a cgroup that processes can join at once.
cgroup_make() {
  local file parent
  parent=$(dirname "$1")
  mkdir -p "$1"
  # A new cpuset of version 1 has no processors and takes nobody in.
  for file in cpuset.cpus cpuset.mems; do
    if [[ -e $1/cgroup.clone_children && -e $1/$file && -z $(<"$1/$file") ]]; then
      cat "$parent/$file" >"$1/$file"
    fi
  done
}

# cgroup_delegate FOLDER: version 2 hands controllers down one level at a time.
cgroup_delegate() {
  local controller
  [[ -e $1/cgroup.subtree_control ]] || return 0
  for controller in $(<"$1/cgroup.controllers"); do
    grep -qw "$controller" "$1/cgroup.subtree_control" ||
      echo "+$controller" >"$1/cgroup.subtree_control" || return 1
  done
}

# cgroup_create: the cluster's subtree, and in it a leaf for its components.
cgroup_create() {
  local mounted
  while read -r mounted; do
    cgroup_delegate "$mounted"
    cgroup_make "$mounted/$CGROUP"
    cgroup_make "$mounted/$CGROUP/components"
  done < <(cgroup_mounts)
}

# cgroup_join PID PATH: moves a process to PATH below every mounted hierarchy.
cgroup_join() {
  local mounted
  # A process substitution would stay behind as a zombie of what this shell becomes.
  while read -r mounted; do
    echo "$1" >"$mounted/$2/cgroup.procs" || return 1
  done <<<"$(cgroup_mounts)"
}

# cgroup_kill: whoever is still in the cluster's cgroups belongs to it.
cgroup_kill() {
  local mounted file pid
  while read -r mounted; do
    [[ -d $mounted/$CGROUP ]] || continue
    while read -r file; do
      while read -r pid; do
        kill -KILL "$pid" 2>/dev/null || true
      done <"$file"
    done < <(find "$mounted/$CGROUP" -name cgroup.procs)
  done < <(cgroup_mounts)
}

# cgroup_remove: the whole subtree, leaves first. The processes are gone by now; the kernel may still be
# a moment behind.
cgroup_remove() {
  local mounted
  while read -r mounted; do
    [[ -d $mounted/$CGROUP ]] || continue
    await 10 cgroup_remove_tree "$mounted/$CGROUP" || say "cluster: could not remove $mounted/$CGROUP"
  done < <(cgroup_mounts)
}

cgroup_remove_tree() {
  find "$1" -depth -type d -exec rmdir {} +
  [[ ! -e $1 ]]
}

# cgroup_leash: the folder whose children hold one `exec` each. Any one hierarchy does.
cgroup_leash() {
  local folder=/sys/fs/cgroup
  [[ ! -d $folder/pids ]] || folder=$folder/pids
  printf '%s/exec\n' "$folder"
}
