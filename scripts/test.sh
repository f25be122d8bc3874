#!/bin/sh
# All tests: first what runs as anybody, then what needs root, in network namespaces of its own:
# at once for root, otherwise a second time by sudo. A test that cannot run says why and passes.
set -eu
cd "$(dirname "$0")/.."

# Runs tests; of those that pass, shows only why they were skipped. The last line that it reads
# is the status, which becomes its own.
tests() {
    {
        status=0
        "$@" -- --show-output 2>&1 || status=$?
        echo "status $status"
    } | awk '
        /^status [0-9]+$/ { exit $2 }
        /^successes:$/ { passed = 1 }
        /^(failures:|test result:)/ { passed = 0 }
        /^---- .* stdout ----$/ { name = $2 }
        !passed { print }
        passed && /^skipped/ { print name ": " $0 }
        { fflush() }'
}

echo "== unit tests"
tests cargo test --workspace --lib --bins --examples --quiet

echo "== ring cursors and block hand-over, interleaved (loom)"
RUSTFLAGS="--cfg loom" cargo test --package sluicegate --lib --quiet --target-dir \
    "${CARGO_TARGET_DIR:-target}/loom" -- loom

echo "== documentation examples"
cargo test --workspace --doc --quiet

echo "== integration tests"
# They use the examples too. With the same packages and kinds as above, so that nothing is built
# anew for other features of the dependencies.
cargo build --workspace --bins --examples --quiet
tests cargo test --workspace --test '*' --quiet

[ "$(id -u)" -ne 0 ] || exit 0
echo "== integration tests, as root"
if ! command -v sudo >/dev/null; then
    echo "skipped: there is no sudo"
elif ! { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo true; }; }; then
    echo "skipped: sudo does not let us"
else
    # Built as before, by us; only the tests themselves run by sudo.
    for which in "--workspace --lib --bins --examples" "--workspace --test *"; do
        set -f
        # shellcheck disable=SC2086 # words
        tests cargo test $which --quiet \
            --config 'target."cfg(all())".runner = ["sudo", "--preserve-env"]'
        set +f
    done
fi
