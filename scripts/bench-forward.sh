#!/bin/sh
# What forwarding reaches, beside DPDK and a bare XDP program: from left through the host in the middle to
# right, counted there in XDP. All of it in one run, in turns, so that the machine's moods hit everybody
# alike. Prints Markdown.
#
#   RUNS=5      rounds; the tables show the median and the spread
#   SECONDS=3   that packets are counted, each time
#
# The sender has the first CPU, which also does the softirq of its veth; what forwards has the second.
set -eu
cd "$(dirname "$0")/.."
name=bench-forward
shape=line
. scripts/lab.sh
. scripts/rounds.sh

lab_up
results=$scratch/results
: >"$results"
: >"$scratch/turns"
# In so many turns those that forward in the kernel have their seconds of a round.
parts=20
counter_pid=

# Beside what lab.sh ends.
end_counter() {
    stop "$counter_pid" INT
    clean_up
}
trap end_counter EXIT

# How DPDK is to run, and testpmd to forward.
environment="--lcores 0@$receive_cpu,1@$receive_cpu --no-huge -m 512 --no-shconf --no-pci"
io="--forward-mode=io --stats-period 1 --no-mlockall --total-num-mbufs 32768"

# Packets that the XDP program on right0 has seen.
seen() {
    "$sluice" claims right0 --netns "$right" --json >"$scratch/seen"
    number packets "$scratch/seen"
}

in_middle() {
    "$sluice" lab exec --name "$lab" middle -- "$@"
}

# In the first second or two rates go up and down, most where a CPU was idle before.
start_sender() {
    "$sluice" lab exec --name "$lab" left -- "$sluice" generate left0 --method live \
        --cpus "$send_cpu" --dmac "$nobody" --src 198.18.0.1 --dst 198.18.0.2 --dport 9 \
        >"$scratch/sent" 2>&1 &
    sender_pid=$!
    sleep 2
}

end_sender() {
    stop "$sender_pid" INT
    sender_pid=
}

# count_right TABLE WHAT DURATION: counts at right0 for so many seconds, and notes it as a turn: table,
# what, packets, ns.
count_right() {
    from=$(date +%s%N)
    before=$(seen)
    sleep "$3"
    to=$(date +%s%N)
    after=$(seen)
    [ "$after" -gt "$before" ] || die 1 "$2: nothing comes: $(cat "$scratch/said" "$scratch/sent")"
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$((after - before))" "$((to - from))" >>"$scratch/turns"
}

# The turns of a round become its results: table, what, packets a microsecond.
sum_turns() {
    awk -F '\t' -v OFS='\t' '{
            what = $1 OFS $2
            if (!ns[what]) names[++count] = what
            n[what] += $3; ns[what] += $4
        }
        END { for (i = 1; i <= count; i++) print names[i], n[names[i]] / ns[names[i]] * 1e3 }' \
        "$scratch/turns" >>"$results"
    : >"$scratch/turns"
}

# middle_begins WHAT SETTLE COMMAND…: the command forwards from middle0 to middle1, and is ready SETTLE
# seconds later.
middle_begins() {
    what=$1 settle=$2
    shift 2
    # No function: it is to be ended by its number.
    "$sluice" lab exec --name "$lab" middle -- taskset -c "$receive_cpu" "$@" \
        >"$scratch/said" 2>&1 &
    tool_pid=$!
    sleep "$settle"
    kill -0 "$tool_pid" 2>/dev/null || die 1 "$what ended early: $(cat "$scratch/said")"
}

middle_ends() {
    stop "$tool_pid" INT
    tool_pid=
}

# measure WHAT SETTLE COMMAND…: a row of the first table.
measure() {
    what=$1
    middle_begins "$@"
    start_sender
    count_right rings "$what" "$seconds"
    end_sender
    middle_ends
}

# forward PORT PORT [FLAG…]
forward() {
    measure "sluice forward $*" 1 "$sluice" forward "$@" --json
}

rings() {
    forward xdp:middle0 xdp:middle1
    forward xdp:middle0 xdp:middle1 --wait spin
    forward xdp:middle0 "live:middle1?cpu=$receive_cpu" --one-way
    forward packet:middle0 packet:middle1
    command -v dpdk-testpmd >/dev/null || return 0
    # shellcheck disable=SC2086 # a list of words
    measure "dpdk-testpmd io, two net_af_xdp" 4 dpdk-testpmd $environment \
        --vdev net_af_xdp0,iface=middle0 --vdev net_af_xdp1,iface=middle1 -- $io
}

# bare_redirect WORD…: what ip is to do with it; on middle1, too, as most drivers want a program there.
bare_redirect() {
    for interface in middle0 middle1; do
        in_middle ip link set dev "$interface" xdpdrv "$@"
    done
}

# These two are near each other, and a machine that is shared changes its speed by a quarter for a
# second or two at a time. So their seconds of a round are many short turns, beside one sender.
in_kernel() {
    start_sender
    part=$(awk -v s="$seconds" -v n="$parts" 'BEGIN { print s / n }')
    for _ in $(seq "$parts"); do
        middle_begins "sluice forward --in-kernel" 0.5 \
            "$sluice" forward xdp:middle0 xdp:middle1 --in-kernel --json
        count_right kernel "sluice forward xdp:middle0 xdp:middle1 --in-kernel" "$part"
        middle_ends
        if [ -f "$scratch/redirect.o" ]; then
            bare_redirect object "$scratch/redirect.o" section xdp
            : >"$scratch/said"
            sleep 0.5
            count_right kernel "bpf_redirect and nothing else" "$part"
            bare_redirect off
        fi
    done
    end_sender
}

# From nowhere to nowhere: what remains is the framework's own cost.
null() {
    taskset -c "$receive_cpu" "$sluice" forward null: null: --duration "${seconds}s" --json \
        >"$scratch/said"
    awk -v OFS='\t' -v pps="$(number pps "$scratch/said")" \
        'BEGIN { print "null", "sluice forward null: null:", pps / 1e6 }' >>"$results"
    command -v dpdk-testpmd >/dev/null || return 0
    # shellcheck disable=SC2086 # a list of words
    timeout -s INT $((seconds + 4)) taskset -c "$receive_cpu" dpdk-testpmd $environment \
        --vdev net_null0 --vdev net_null1 -- $io >"$scratch/said" 2>&1 || true
    # The last second of both ports.
    awk -v OFS='\t' '/Rx-pps:/ { before = last; last = $2 }
        END { print "null", "dpdk-testpmd io, two net_null", (before + last) / 1e6 }' \
        "$scratch/said" >>"$results"
}

round() {
    rings
    in_kernel
    sum_turns
    null
}

make_redirect() {
    command -v clang >/dev/null || return 0
    out=$(in_middle cat /sys/class/net/middle1/ifindex)
    # bpf_redirect is helper 23 of linux/bpf.h.
    printf '%s\n' 'static long (*redirect)(unsigned int, unsigned long) = (void *)23;' \
        '__attribute__((section("xdp"), used)) int out(void *ctx) { return redirect(OUT, 0); }' |
        clang -O2 -target bpf -D "OUT=$out" -x c -c -o "$scratch/redirect.o" -
}

make_redirect
command -v dpdk-testpmd >/dev/null ||
    echo "bench-forward: no dpdk-testpmd to compare with: scripts/setup.sh --bench installs it" >&2
"$sluice" count --netns "$right" 'xdp:right0?action=drop' --json >"$scratch/counted" 2>&1 &
counter_pid=$!
sleep 0.5
kill -0 "$counter_pid" 2>/dev/null || die 1 "$(cat "$scratch/counted")"
rounds

about_machine
cat <<END
- peers: DPDK $(dpkg-query -W -f '${Version}' dpdk-dev 2>/dev/null || echo "not there")
- median of $runs runs of $seconds s, in turns, in the kernel each run in $parts parts:
  \`RUNS=$runs SECONDS=$seconds scripts/bench-forward.sh\`
END
table rings "Forwarding from veth to veth" "dpdk-testpmd io, two net_af_xdp"
table kernel "Forwarding in the kernel, from veth to veth" "bpf_redirect and nothing else"
table null "Forwarding from nowhere to nowhere" "dpdk-testpmd io, two net_null"
