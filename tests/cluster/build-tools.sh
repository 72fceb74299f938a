#!/usr/bin/env bash
# Builds the pinned Kubernetes components (tools/go.mod) into the cache folder and prints where they are.
# Once built they are found again at once; a change of go.mod or go.sum gives another folder.
set -euo pipefail
# shellcheck source=lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

# binary PACKAGE: the file name of its program.
binary() {
  case $1 in
    go.etcd.io/etcd/*) echo etcd ;;
    *) basename "$1" ;;
  esac
}

# usual_seconds BINARY: measured on two free cores with an empty build cache, in the order of the list.
usual_seconds() {
  case $1 in
    etcd) echo 60 ;;
    helm) echo 90 ;;
    kube-apiserver) echo 240 ;;
    kube-controller-manager | kube-scheduler) echo 45 ;;
    kubectl) echo 80 ;;
    *) echo 20 ;;
  esac
}

packages() {
  awk '$1 == "tool" && $2 == "(" { on = 1; next } on && $1 == ")" { exit } on { print $1 }' \
    "$HARNESS/tools/go.mod"
}

ldflags() {
  local version=$1 rest=${1#v}
  local major=${rest%%.*} minor=${rest#*.}
  local k8s=k8s.io/component-base/version client=k8s.io/client-go/pkg/version
  printf '%s' "-s -w -X $k8s.gitVersion=$version -X $k8s.gitMajor=$major" \
    " -X $k8s.gitMinor=${minor%%.*} -X $client.gitVersion=$version"
}

# build_one PACKAGE FILE: a first build takes minutes without a word from Go, so a clock talks meanwhile.
build_one() {
  local package=$1 file=$2 flags='-s -w' clock status=0
  [[ $package == go.etcd.io/* ]] || flags=$(ldflags "$(tool_version k8s.io/kubernetes)")
  (
    seconds=0
    # Not longer than the build, should that be killed.
    while sleep 30 && kill -0 $$ 2>/dev/null; do
      seconds=$((seconds + 30))
      say "      still building $(basename "$file"): $seconds s"
    done
  ) &
  clock=$!
  (cd "$HARNESS/tools" &&
    CGO_ENABLED=0 go build -trimpath -ldflags "$flags" -o "$file.new" "$package") || status=$?
  kill "$clock"
  wait "$clock" 2>/dev/null || true
  ((status == 0)) || return "$status"
  mv "$file.new" "$file"
}

main() {
  local folder partial lock list package file count=0 number=0 from
  folder=$(tools_folder)
  if [[ -d $folder ]]; then
    echo "$folder"
    return
  fi
  command -v go >/dev/null || die "Go is needed to build the cluster's components: https://go.dev/dl/"
  mkdir -p "$SLUICE_CACHE"
  exec {lock}>"$SLUICE_CACHE/tools.lock"
  if ! flock --nonblock "$lock"; then
    say "cluster: another build of the components is running; waiting for it"
    flock "$lock"
  fi
  if [[ -d $folder ]]; then
    echo "$folder"
    return
  fi
  partial=$folder.partial
  mkdir -p "$partial"
  mapfile -t list < <(packages)
  count=${#list[@]}
  say "Building Kubernetes $(tool_version k8s.io/kubernetes) from source, once: $count programs," \
    "about 10 minutes on two free cores."
  say "An interrupted build goes on where it stopped. Result: $folder"
  for package in "${list[@]}"; do
    number=$((number + 1))
    file=$partial/$(binary "$package")
    if [[ -x $file ]]; then
      say "  [$number/$count] $(basename "$file"): there already"
      continue
    fi
    say "  [$number/$count] $(basename "$file"): about $(usual_seconds "$(basename "$file")") s"
    from=$SECONDS
    build_one "$package" "$file" || die "building $package failed"
    say "  [$number/$count] $(basename "$file"): built in $((SECONDS - from)) s"
  done
  mv "$partial" "$folder"
  echo "$folder"
}

main "$@"
