#!/bin/sh
# All tests: first what runs as anybody, then what needs root, in network namespaces of its own:
# at once for root, otherwise a second time by sudo. A test that cannot run reports why and passes.
#
#   scripts/test.sh [--fast]
#
# --fast runs, as an ordinary user, the tests that need neither root nor a lab, without the longest.
set -eu
cd "$(dirname "$0")/.."

# A line for each test that was skipped, with the reason.
skipped=$(mktemp)
# Not empty if the tests of `bench` passed.
passed=$(mktemp)
trap 'rm -f "$skipped" "$passed"' EXIT
trap 'exit 130' INT TERM HUP

# Prints what was not tested, and what is missing for it.
summary() {
    if [ ! -s "$skipped" ]; then
        echo "== nothing was skipped"
        return
    fi
    # The varying part of a reason follows another colon.
    sort -u "$skipped" | sed 's/^[^ ]* skipped[^:]*: //; s/: .*//' | sort | uniq -c | sort -rn |
        awk '{ all += $1; line[NR] = $0 }
            END {
                print "== " all (all == 1 ? " test" : " tests") " skipped, which is no failure:"
                for (i = 1; i <= NR; i++) print line[i]
            }'
}

# Runs tests, by arguments that end with those of the tests; of those that pass, shows only why they were
# skipped. The last line that it reads is the status, which becomes its own.
tests() {
    {
        status=0
        "$@" --show-output 2>&1 || status=$?
        printf '\n@@tests status %s\n' "$status"
    } | awk -v list="$skipped" '
        BEGIN { status = 1 }
        /^@@tests status [0-9]+$/ { status = $3; exit }
        /^successes:$/ { passed = 1 }
        /^(failures:|test result:)/ { passed = 0 }
        /^---- .* stdout ----$/ { name = $2 }
        !passed { print }
        passed && /^skipped/ { print name ": " $0; print name, $0 >>list }
        { fflush("") }
        END { exit status }'
}

# Runs all integration tests, with more arguments for cargo. Those of `bench` take turns, because they measure
# CPUs: all others run beside them, and their lines come before. A pipe, as the shell shields jobs from Ctrl-C.
integration_tests() {
    : >"$passed"
    { tests cargo test --workspace --test command --quiet "$@" -- bench:: && echo yes >"$passed"; } | {
        status=0
        tests cargo test --workspace --test '*' --quiet "$@" -- --skip bench:: </dev/null || status=$?
        cat
        exit "$status"
    }
    [ -s "$passed" ]
}

# Thousands of random programs, expressions and frames, every combination of options, other programs.
long="generated:: model:: interop:: every_combination_is_read_back any_program_judges_any_frame
    a_program_that_writes_while_the_server_reads"
if [ "${1-}" = --fast ]; then
    set -- cargo test --workspace --lib --bins --test '*' --quiet
    # Root becomes nobody, who has no labs and no home.
    [ "$(id -u)" -ne 0 ] || set -- "$@" --config 'target."cfg(all())".runner = ["env", "HOME=/nonexistent",
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]'
    set -- "$@" --
    for name in $long; do set -- "$@" --skip "$name"; done
    exec "$@"
fi

# A BPF file system for programs that are pinned: init systems mount it, containers often have none.
if [ "$(id -u)" -eq 0 ] && ! grep -q ' /sys/fs/bpf bpf ' /proc/mounts; then
    mount -t bpf bpf /sys/fs/bpf || echo "no BPF file system: some tests are skipped"
fi

# Exit status 3: the captures cannot be made here, and tests that need them are skipped.
echo "== captures"
scripts/captures.sh || [ $? -eq 3 ]
# More captures, where a collection lies beside the repository.
if [ -z "${SLUICE_CAPTURES+set}" ] && [ -d ../shared/pcaps ]; then
    export SLUICE_CAPTURES="$PWD/../shared/pcaps"
fi

echo "== unit tests"
tests cargo test --workspace --lib --bins --examples --quiet --

echo "== ring cursors and block hand-over, interleaved (loom)"
RUSTFLAGS="--cfg loom" cargo test --package sluicegate-base --package sluicegate-memif \
    --package sluicegate --lib --quiet --target-dir "${CARGO_TARGET_DIR:-target}/loom" -- loom

echo "== documentation examples"
cargo test --workspace --doc --quiet

echo "== integration tests"
# They use the examples too. With the same packages and kinds as above, so that nothing is built
# anew for other features of the dependencies.
cargo build --workspace --bins --examples --quiet
cargo test --workspace --test '*' --no-run --quiet
integration_tests

if [ "$(id -u)" -eq 0 ]; then
    summary
    exit 0
fi
echo "== integration tests, as root"
if ! command -v sudo >/dev/null; then
    echo "skipped: needs sudo; get it by installing it, or be root"
elif ! { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo true; }; }; then
    echo "skipped: needs root; get it by sudo make test"
else
    sudo --preserve-env scripts/captures.sh || [ $? -eq 3 ]
    # All of them again: what was skipped before is not.
    : >"$skipped"
    # Built as before, by us; only the tests themselves run by sudo.
    set -- --config 'target."cfg(all())".runner = ["sudo", "--preserve-env"]'
    tests cargo test --workspace --lib --bins --examples --quiet "$@" --
    integration_tests "$@"
fi
summary
