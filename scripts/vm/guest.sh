#!/bin/sh
# Runs the tests of the programs that $vm_job lists in a guest, each in its own process, so that a test
# that hangs or dies does not affect others. The host reads lines of the console that begin with "vm:".
set -u
# The kernel's command line names it; scripts/vm-test.sh has written it: $driver, $programs, which
# $tests, how many $seconds for one.
# shellcheck source=/dev/null disable=SC2154
. "${vm_job:?}"
# SCRUB_POLICIES: of the scrubber's test differential.
export RUST_BACKTRACE=0 SLUICE_TEST_THIN=10 SCRUB_POLICIES=3

# Brings back what a killed test had in its namespaces.
recover() {
    for netns in $(ip netns list | sed -n 's/^\(wire-[^ ]*\).*/\1/p'); do
        ip -n "$netns" link set left0 down netns 1 name eth0
        ip -n "$netns" link set right0 down netns 1 name eth1
        ip netns delete "$netns"
    done 2>/dev/null
}

echo "vm: kernel $(uname -r)"
ip link set lo up
# Of the packets that a driver hands over in one go, packet sockets get the tagged ones first
# (net/core/dev.c, __netif_receive_skb_list_core): the tests look at the order.
echo 1 >/proc/sys/net/core/gro_normal_batch
if [ "${driver:?}" != veth ]; then
    export SLUICE_TEST_WIRE=eth0,eth1
fi

# The tests that are wanted of those that a program has. It is a program of the host's: what it
# needs may not be here.
tests_of() {
    if ! "$1" --list --format terse >/tmp/list 2>/tmp/said; then
        echo "vm: cannot list the tests of $1: $(tail -n 1 /tmp/said)" >&2
        return
    fi
    sed -n 's/: test$//p' /tmp/list | grep -E "${tests:?}"
}

# is_known_to_hang PROGRAM TEST: the list has tests without their modules.
is_known_to_hang() {
    echo "${hangs?}" | grep -q -x -F "$1 ${2##*::}"
}

# run PROGRAM TEST SECONDS: leaves its status in $ended. Each test has a file of its own: one that
# was left may end after all, while another runs.
run() {
    timeout -s KILL "$3" "$1" --exact "$2" --nocapture 2>&1 </dev/null
    echo $? >"$ended"
}

# Waits for a process that does not end by a signal, and then leaves it.
run_and_leave() {
    run "$1" "$2" 120 &
    for _ in $(seq 125); do
        sleep 1
        [ ! -s "$ended" ] || return
    done
    ended=$ended.left
    echo 137 >"$ended"
    dmesg | tail -n 1
}

# try PROGRAM NAME TEST: one test, and what is to be known of it.
try() {
    echo "vm: begin $2 $3"
    ended=/tmp/ended.$2.$3
    start=$(date +%s)
    if is_known_to_hang "$2" "$3"; then
        run_and_leave "$1" "$3"
    else
        run "$1" "$3" "${seconds:?}"
    fi
    read -r status <"$ended"
    took=$(($(date +%s) - start))
    echo
    echo "vm: end $2 $3 $status $took"
    [ "$status" -eq 0 ] || is_known_to_hang "$2" "$3" || recover
    dmesg -c | grep -E 'BUG|WARNING|RIP:|Oops|hung_task|blocked for|timed out' | tail -n 20
}

for last in '' yes; do
    for program in ${programs:?}; do
        name=$(basename "$program" | sed 's/-[0-9a-f]*$//')
        # These make labs of their own, or need no interface.
        case $name in
        xdp | live | host | tap | spec | analyse | differential | limits | marks | reloads | return_path | tcp | traffic | udp)
            [ "$driver" = veth ] || continue
            ;;
        esac
        tests_of "$program" | while read -r test; do
            late=
            ! is_known_to_hang "$name" "$test" || late=yes
            [ "$late" != "$last" ] || try "$program" "$name" "$test"
        done
    done
done
echo "vm: done"
