#!/bin/sh
# Formatting, clippy and documentation with warnings denied, floors, scripts, dependency policy.
set -eu
cd "$(dirname "$0")/.."

cargo fmt --all --check
cargo clippy --workspace --all-targets --quiet -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet
scripts/floors.sh
scripts/language.sh
shellcheck -x scripts/*.sh scripts/vm/*.sh scripts/vm/init .ci/run
if cargo deny --version >/dev/null 2>&1; then
    cargo deny --offline check bans licenses sources
else
    echo "skipped: the dependency policy (deny.toml) needs cargo-deny; get it by cargo install cargo-deny"
fi
