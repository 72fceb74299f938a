#!/usr/bin/env bash
# Installs the Debian packages that the test cluster and its images need, those only that are missing.
set -euo pipefail
# shellcheck source=lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

PACKAGES=(
  buildah                     # the images, from the Dockerfile, without a daemon
  ca-certificates
  conntrack                   # kube-proxy
  containerd                  # what kubelet runs pods with
  containernetworking-plugins # pod addresses
  gcc                         # the static pause program
  iproute2
  iptables                    # kube-proxy
  jq                          # image manifests
  libc6-dev                   # likewise the pause program
  mmdebstrap                  # the base image
  mount
  openssl                     # the cluster's certificates
  procps
  runc
  socat                       # kubectl port-forward
  util-linux                  # unshare, nsenter, flock, setsid
)

missing() {
  local known
  # It fails for packages that it has never heard of, which is no fault here.
  known=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${PACKAGES[@]}" 2>/dev/null || true)
  local package
  for package in "${PACKAGES[@]}"; do
    grep -qx "installed $package" <<<"$known" || echo "$package"
  done
}

main() {
  command -v dpkg-query >/dev/null ||
    die "this is no Debian: install the likes of ${PACKAGES[*]} by hand"
  local wanted
  mapfile -t wanted < <(missing)
  if ((${#wanted[@]} == 0)); then
    return
  fi
  need_root
  say "Installing Debian packages: ${wanted[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >&2
}

main "$@"
