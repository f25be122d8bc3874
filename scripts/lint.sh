#!/bin/sh
# Formatting, clippy and documentation with warnings denied, scripts, dependency policy.
set -eu
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
shellcheck -x scripts/*.sh .ci/run
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --offline check bans licenses sources
else
    echo "lint: cargo-deny is not installed: dependency policy (deny.toml) not checked"
fi
