#!/bin/sh
# What a shared-memory pipe between two processes carries: sluice's memif: and DPDK's, each with itself
# and with the other, in both roles, 60 bytes a packet. `sluice` sends by generate and receives by count;
# `forward` is `sluice forward null:`, which sends. All in one run, in turns. Prints Markdown.
#
#   RUNS=5      rounds; the tables show the median and the spread
#   SECONDS=3   that packets are counted, each time
#
# Who sends has the first CPU, who receives the second. What is shown is the median of the seconds' rates
# as the receiver tells them, the first left out.
set -eu
cd "$(dirname "$0")/.."
name=bench-memif
. scripts/lab.sh
. scripts/rounds.sh

[ -x "$sluice" ] || die 1 "there is no $sluice: run make first"
command -v dpdk-testpmd >/dev/null ||
    die 3 "there is no dpdk-testpmd to compare with: scripts/setup.sh --bench installs it"
trap 'stop "$sender_pid" KILL; stop "$tool_pid" KILL; [ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
scratch=$(mktemp -d)
results=$scratch/results
: >"$results"

# testpmd ROLE MODE CPU SAID
testpmd() {
    exec dpdk-testpmd --no-pci --no-shconf --no-huge -m 256 --lcores "0@$3,1@$3" \
        --vdev "net_memif0,role=$1,socket=$scratch/socket,socket-abstract=no" -- \
        --forward-mode="$2" --txpkts=60 --stats-period=1 --no-mlockall \
        --total-num-mbufs=16384 >"$4" 2>&1 </dev/null
}

# sluice ROLE COMMAND CPU SAID [FLAG…]
sluice() {
    role=$1 command=$2 cpu=$3 said=$4
    shift 4
    exec "$sluice" "$command" "memif:$scratch/socket?role=$role" --cpus "$cpu" \
        --json --interval 1s "$@" >"$said" 2>&1
}

# forward ROLE CPU SAID: sends what costs nothing to make, so that the pipe alone is measured.
forward() {
    exec "$sluice" forward null: "memif:$scratch/socket?role=$1" --one-way --duration 120s --cpus "$2" \
        --json >"$3" 2>&1
}

# begin WHO ROLE WHAT CPU SAID: starts one end, which sends or receives.
begin() {
    case $1-$3 in
    testpmd-send) testpmd "$2" txonly "$4" "$5" & ;;
    testpmd-receive) testpmd "$2" rxonly "$4" "$5" & ;;
    sluice-send) sluice "$2" generate "$4" "$5" --src 198.18.0.1 --dst 198.18.0.2 --dport 9 & ;;
    forward-send) forward "$2" "$4" "$5" & ;;
    sluice-receive) sluice "$2" count "$4" "$5" --wait spin & ;;
    esac
}

# rates SAID: the seconds' rates in Mpps, sorted, without the first that is not 0.
rates() {
    awk '/Rx-pps:/ { if ($2 > 0) print $2 / 1e6 }
        /"interval_s"/ { n = split($0, part, "\"pps\":"); if (n > 1 && part[2] + 0 > 0) print part[2] / 1e6 }' \
        "$1" | tail -n +2 | sort -n
}

# measure SENDER ROLE RECEIVER ROLE: adds a line to the results.
measure() {
    what="$1 ($2) to $3 ($4)"
    rm -f "$scratch/socket"
    : >"$scratch/received"
    if [ "$4" = server ]; then
        begin "$3" server receive "$receive_cpu" "$scratch/received"
        tool_pid=$!
        await_socket
        begin "$1" client send "$send_cpu" "$scratch/sent"
        sender_pid=$!
    else
        begin "$1" server send "$send_cpu" "$scratch/sent"
        sender_pid=$!
        await_socket
        begin "$3" client receive "$receive_cpu" "$scratch/received"
        tool_pid=$!
    fi
    tries=0
    until [ "$(rates "$scratch/received" | wc -l)" -ge "$seconds" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt $((10 * (seconds + 20))) ] ||
            die 1 "$what: nothing came: $(tail -n 5 "$scratch/sent" "$scratch/received")"
        sleep 0.1
    done
    rates "$scratch/received" | awk -v OFS='\t' -v from="$2" -v what="$what" '
        { rate[NR] = $1 } END { print from, what, rate[int((NR + 1) / 2)] }' >>"$results"
    # DPDK 22.11 may crash where the other end goes first; nothing of it is needed any more.
    stop "$tool_pid" KILL
    stop "$sender_pid" KILL
    tool_pid='' sender_pid=''
}

await_socket() {
    tries=0
    until [ -S "$scratch/socket" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || die 1 "nobody listens: $(cat "$scratch/sent" "$scratch/received")"
        sleep 0.1
    done
}

round() {
    measure testpmd client testpmd server
    measure testpmd server testpmd client
    measure sluice client testpmd server
    measure sluice server testpmd client
    measure testpmd client sluice server
    measure testpmd server sluice client
    measure sluice client sluice server
    measure sluice server sluice client
    measure forward client testpmd server
    measure forward server testpmd client
    measure forward client sluice server
    measure forward server sluice client
}

rounds
about_machine
cat <<END
- DPDK $(dpkg-query -W -f '${Version}' dpdk-dev 2>/dev/null || echo "of another source")
- median of $runs runs of $seconds s, in turns: \`RUNS=$runs SECONDS=$seconds scripts/bench-memif.sh\`
END
table client "From a client to a server" "testpmd (client) to testpmd (server)"
table server "From a server to a client" "testpmd (server) to testpmd (client)"
