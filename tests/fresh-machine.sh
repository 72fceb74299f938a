#!/usr/bin/env bash
# How long a command takes on a machine that has nothing yet, and whether it installs all that it needs: makes a minimal
# Debian of this machine's release in a folder, with Rust, Go, a C linker and a clone of this checkout and nothing else,
# runs the command there, and runs it once more.
#
#   tests/fresh-machine.sh [COMMAND...]      examples/demo.sh, if none is given
#
# Needs root, mmdebstrap, 15 GB and, at first, half an hour. What it makes, it removes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
REPOSITORY=$PWD
MACHINE=$(mktemp -d "${TMPDIR:-/var/tmp}/fresh-machine-XXXXXXXX")

say() { printf '\n== %s\n' "$*" >&2; }

finish() {
  local status=$?
  # Never through a mount: the folder's own file system only.
  rm -rf --one-file-system "$MACHINE"
  exit "$status"
}

make_machine() {
  local release
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  say "A minimal Debian $release in $MACHINE"
  # The linker belongs to Rust: whoever installed it has one.
  mmdebstrap --quiet --variant=minbase --include=ca-certificates,gcc,libc6-dev "$release" "$MACHINE" 2>/dev/null
  # Where packages come from on this machine, and whom it trusts.
  cp -a /etc/apt/. "$MACHINE/etc/apt/"
  if [[ -d /usr/local/share/ca-certificates ]]; then
    cp -a /usr/local/share/ca-certificates/. "$MACHINE/usr/local/share/ca-certificates/"
    chroot "$MACHINE" update-ca-certificates >/dev/null
  fi
  mkdir -p "$MACHINE/opt/rust" "$MACHINE/opt/go"
  cp -a "$(rustc --print sysroot)/." "$MACHINE/opt/rust/"
  cp -a "$(go env GOROOT)/." "$MACHINE/opt/go/"
  git clone --quiet "$REPOSITORY" "$MACHINE/srv/sluice"
}

# on_machine COMMAND...: in mount, PID and IPC namespaces of its own, which end with it.
on_machine() {
  # shellcheck disable=SC2016 # for the shell that runs it
  unshare --mount --pid --fork --kill-child --ipc bash -euc '
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/run"
    [[ ! -e /etc/resolv.conf ]] || cat /etc/resolv.conf >"$1/etc/resolv.conf"
    cat /etc/hosts >"$1/etc/hosts"
    cd "$1"
    pivot_root . mnt
    umount --lazy /mnt
    cd /srv/sluice
    exec env --ignore-environment HOME=/root TERM=dumb LANG=C.UTF-8 \
      PATH=/opt/rust/bin:/opt/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${@:2}"
  ' bash "$MACHINE" "$@"
}

main() {
  local from first
  (($# > 0)) || set -- examples/demo.sh
  trap finish EXIT
  trap 'exit 130' INT TERM
  make_machine
  say "The first run: $*"
  from=$SECONDS
  on_machine "$@"
  first=$((SECONDS - from))
  say "The second run: $*"
  from=$SECONDS
  on_machine "$@"
  printf '\n%s took %d s on a machine that had nothing, and %d s the second time (%d processors).\n' \
    "$*" "$first" $((SECONDS - from)) "$(nproc)"
}

main "$@"
