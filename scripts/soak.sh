#!/bin/sh
# Long runs of tests that are short in `make test`: netmap programs that scribble over their memory, that are killed,
# and random requests. Takes about an hour.
#
#     SEEDS=1000  CYCLES=500  INPUTS=2000000
set -eu
cd "$(dirname "$0")/.."

SEEDS=${SEEDS:-1000}
CYCLES=${CYCLES:-500}
INPUTS=${INPUTS:-2000000}

if [ "$(id -u)" != 0 ] || ! command -v cc >/dev/null; then
    echo "soak: needs root, for labs, and cc: run scripts/setup.sh, then sudo make soak" >&2
    exit 1
fi

echo "soak: $SEEDS programs that scribble, of each host of the engine"
SOAK_SEEDS=$SEEDS cargo test --release -p sluicegate-netmap --test engine --test shared -- \
    hostile:: a_program_that_scribbles
echo "soak: $CYCLES programs that are killed, of each host"
SOAK_CYCLES=$CYCLES cargo test --release -p sluicegate-netmap-preload --test programs -- kills::
echo "soak: $INPUTS random requests"
cd fuzz
# The time is a limit that is not reached.
BOLERO_RANDOM_ITERATIONS=$INPUTS BOLERO_RANDOM_TEST_TIME_MS=86400000 \
    cargo test --release --test netmap_request
