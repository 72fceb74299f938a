#!/usr/bin/env bash
# Every test, on a machine that may have nothing but Rust, Go and Debian's packages. The quick ones come first; the last
# ones run on a real cluster, which is built on first use. Ends non-zero if any test failed.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

say "Format and lints"
cargo fmt --check
cargo clippy --quiet --all-targets --all-features -- -D warnings
cargo clippy --quiet --all-targets --no-default-features -- -D warnings

say "The pure part, without anything of Kubernetes in the build"
cargo test --no-default-features

say "The cluster part against stand-ins on Unix sockets and in memory"
cargo test

say "The cluster that the next tests run on"
SLUICE_PROFILE=dev bash tests/cluster/selftest.sh

say "The whole of it on a real cluster"
cargo test --features e2e --test admission
cargo test --features e2e --test e2e

say "All tests passed"
