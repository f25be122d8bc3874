#!/bin/sh
# Long runs of tests that are short in `make test`. The part `netmap` takes about an hour: programs that scribble over
# their memory, that are killed, and random requests. The part `scrub` takes half an hour: pairs of a random policy and a
# packet, on which the XDP program and its oracle decide; each run has other ones, from a seed that a failure prints.
#
#     PARTS="netmap scrub"  SEEDS=1000  CYCLES=500  INPUTS=2000000  PAIRS=100000000  FIRST_SEED=1
set -eu
cd "$(dirname "$0")/.."

PARTS=${PARTS:-netmap scrub}
SEEDS=${SEEDS:-1000}
CYCLES=${CYCLES:-500}
INPUTS=${INPUTS:-2000000}
CONNECTIONS=${CONNECTIONS:-100000}
PAIRS=${PAIRS:-100000000}
FIRST_SEED=${FIRST_SEED:-$(date +%s)}

if [ "$(id -u)" != 0 ] || ! command -v cc >/dev/null; then
    echo "soak: needs root, for labs, and cc: run scripts/setup.sh, then sudo make soak" >&2
    exit 1
fi

soak_netmap() {
    echo "soak: $SEEDS programs that scribble, of each host of the engine"
    SOAK_SEEDS=$SEEDS cargo test --release -p sluicegate-netmap --test engine --test shared -- \
        hostile:: a_program_that_scribbles
    echo "soak: $CYCLES programs that are killed, of each host"
    SOAK_CYCLES=$CYCLES cargo test --release -p sluicegate-netmap-preload --test programs -- kills::
    echo "soak: $INPUTS random requests"
    # The time is a limit that is not reached.
    (cd fuzz && BOLERO_RANDOM_ITERATIONS=$INPUTS BOLERO_RANDOM_TEST_TIME_MS=86400000 \
        cargo test --release --test netmap_request)
}

soak_scrub() {
    for test in connections_succeed connections_need_one_round_trip; do
        for mode in native skb; do
            echo "soak: $CONNECTIONS connections: ${test}_in_${mode}_mode"
            SCRUB_CONNECTIONS=$((CONNECTIONS / 2)) cargo test --release -p sluicegate-scrub --test traffic -- \
                "${test}_in_${mode}_mode"
        done
    done
    # A policy meets 10,000 packets (scrub/tests/differential.rs).
    policies=$(((PAIRS + 9999) / 10000))
    seed=$FIRST_SEED
    while [ "$policies" -gt 0 ]; do
        run=$((policies < 500 ? policies : 500))
        echo "soak: $((run * 10000)) pairs of seed $seed; $(((policies - run) * 10000)) are left"
        SCRUB_POLICIES=$run SCRUB_SEED=$seed cargo test --release -p sluicegate-scrub --test differential -- \
            verdicts_and_causes_are_equal
        policies=$((policies - run))
        seed=$((seed + 1))
    done
}

for part in $PARTS; do
    case $part in
    netmap | scrub) "soak_$part" ;;
    *) echo "soak: no part '$part': netmap, scrub" >&2; exit 2 ;;
    esac
done
