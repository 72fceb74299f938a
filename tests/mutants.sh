#!/usr/bin/env bash
# Mutation testing of the rule (docs/mutation-testing.md): each small change to src/policy, one at a
# time, must be noticed by a test. Takes about an hour on two cores; the arguments are those of
# `cargo mutants`, such as `-f src/policy/credit.rs` for one file or `-j 8`.
set -euo pipefail

# The tests that take longer than all others together.
slow=(corrupt:: explained:: model:: needed:: needs:: told:: worst::)

# As cargo's runner: most mutants fail in the quick tests, so the slow ones come after them.
if [[ ${1:-} == --judge ]]; then
  tests=$2
  shift 2
  skips=()
  for name in "${slow[@]}"; do skips+=(--skip "$name"); done
  "$tests" "$@" "${skips[@]}"
  exec "$tests" "$@" "${slow[@]}"
fi

cd "$(dirname "$0")/.."
wanted=27.1.0
if [[ $(cargo mutants --version 2>/dev/null) != *" $wanted" ]]; then
  echo "cargo-mutants $wanted is needed: cargo install cargo-mutants --version $wanted --locked" >&2
  exit 1
fi
[[ " $* " == *" -f "* ]] || set -- -f 'src/policy/**' "$@"
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=$PWD/tests/mutants.sh --judge"
exec cargo mutants --no-shuffle -j 2 "$@"
