#!/bin/sh
# All tests: what runs without root first, as an ordinary user would; then what needs root, in
# network namespaces of its own. What cannot run says why.
set -eu
cd "$(dirname "$0")/.."

echo "== unit and integration tests"
cargo test --workspace --quiet

echo "== ring cursors and block hand-over, every interleaving (loom)"
RUSTFLAGS="--cfg loom" cargo test --package sluicegate --lib --quiet --target-dir target/loom -- loom

echo "== documentation examples build"
cargo test --workspace --doc --quiet
