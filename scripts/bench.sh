#!/bin/sh
# What receiving costs, beside tcpdump and DPDK; and what a slot costs, beside dpdk-testpmd. All of
# it in one run, in turns, so that the machine's moods hit everybody alike. Prints Markdown.
#
#   RUNS=5      rounds; the tables show the median and the spread
#   SECONDS=3   of sending, each time
#
# The sender is pinned to the first CPU, which also does the kernel's share of receiving (the
# softirq of a veth); what is measured is pinned to the second. The peers that setup.sh does not
# install come with `scripts/setup.sh --bench`.
set -eu
cd "$(dirname "$0")/.."
name=bench
. scripts/lab.sh
. scripts/rounds.sh

# Seconds until a command is ready to receive.
settle=1
lab_up
choose_sender
results=$scratch/results
: >"$results"

# Time on a CPU of a process and its threads, in ns.
cpu_ns() {
    cat "/proc/$1/task/"*/schedstat | awk '{ ns += $1 } END { printf "%.0f", ns }'
}

# Sends, and waits for the end of it; `elapsed` is how long it sent, in ns.
send_all() {
    start=$(date +%s%N)
    send "$seconds"
    wait "$sender_pid" || die 1 "the sender failed: $(cat "$scratch/sent")"
    sender_pid=
    elapsed=$(($(date +%s%N) - start))
    [ "$sender" != generate ] ||
        elapsed=$(awk -v s="$(number elapsed_s "$scratch/sent")" 'BEGIN { printf "%.0f", s * 1e9 }')
}

# measure TABLE WHAT COUNT_OF COMMAND…: the command receives while packets are sent; COUNT_OF
# reads from what it said how many it got and how many it lost. Adds a line to the results:
# table, what, packets a second, lost in percent, ns of CPU a packet.
measure() {
    table=$1 what=$2 count_of=$3
    shift 3
    "$sluice" lab exec --name "$lab" right -- taskset -c "$receive_cpu" "$@" \
        >"$scratch/said" 2>"$scratch/complained" &
    tool_pid=$!
    sleep "$settle" # until it is ready
    kill -0 "$tool_pid" 2>/dev/null || die 1 "$what: $(cat "$scratch/complained")"
    # A virtual machine gives free memory back to its host, and then waits at the first touch. So
    # what a file will need is in use until now.
    if [ "$table" = file ]; then
        head -c "$((seconds * 400))M" /dev/zero >"$scratch/file.warm"
        rm "$scratch/file.warm"
    fi
    ns=$(cpu_ns "$tool_pid")
    send_all
    sleep 0.5 # until it has dealt with what it has
    ns=$(($(cpu_ns "$tool_pid") - ns))
    stop "$tool_pid" INT
    tool_pid=
    # shellcheck disable=SC2046 # two words
    set -- $($count_of)
    [ $# -eq 2 ] || die 1 "$what: no count in: $(cat "$scratch/said" "$scratch/complained")"
    awk -v OFS='\t' -v table="$table" -v what="$what" -v got="$1" -v lost="$2" -v ns="$ns" \
        -v elapsed="$elapsed" 'BEGIN {
            whole = got + lost
            print table, what, got / elapsed * 1e3, whole ? lost / whole * 100 : 0,
                got ? ns / got : 0
        }' >>"$results"
    rm -f "$scratch"/file.*
}

of_sluice() {
    awk -v whole="$(number in "$scratch/said")" -v got="$(number out "$scratch/said")" \
        'BEGIN { if (got != "") printf "%.0f %.0f\n", got, whole - got }'
}

of_tcpdump() {
    awk '/packets? captured/ { got = $1 } /dropped by (kernel|interface)/ { lost += $1 }
        END { if (got != "") print got, lost }' "$scratch/complained"
}

of_testpmd() {
    awk '/RX-packets:/ { got = $2; lost = $4 } END { if (got != "") print got, lost }' \
        "$scratch/said"
}

# What is taken by XDP; the host gets none of it.
xdp() {
    for port in xdp:right0 "xdp:right0?filter=udp port 9" "xdp:right0?method=af_xdp"; do
        measure xdp "sluice count --wait spin '$port'" of_sluice \
            "$sluice" count --json --wait spin "$port"
    done
    measure xdp "sluice count xdp:right0" of_sluice "$sluice" count --json xdp:right0
    measure xdp "tcpdump -w /dev/null" of_tcpdump \
        tcpdump -n -i right0 -B 65536 -Z root -w /dev/null
    if command -v dpdk-testpmd >/dev/null; then
        settle=4
        measure xdp "dpdk-testpmd rxonly, net_af_xdp" of_testpmd \
            dpdk-testpmd --lcores "0@$receive_cpu,1@$receive_cpu" --no-huge -m 512 --no-shconf \
            --no-pci --vdev net_af_xdp0,iface=right0 -- --forward-mode=rxonly --stats-period 1 \
            --no-mlockall --total-num-mbufs 16384
        settle=1
    fi
}

# What is dropped in XDP, beside a program that does nothing else.
drop() {
    measure drop "sluice count 'xdp:right0?action=drop'" of_sluice \
        "$sluice" count --json "xdp:right0?action=drop"
    [ -f "$scratch/drop.o" ] || return 0
    set -- "$sluice" lab exec --name "$lab" right -- ip link set dev right0
    "$@" xdpdrv object "$scratch/drop.o" section xdp
    send_all
    "$@" xdpdrv off
    awk -v OFS='\t' -v attempted="$(number attempted "$scratch/sent")" -v elapsed="$elapsed" \
        'BEGIN { print "drop", "XDP_DROP and nothing else", attempted / elapsed * 1e3, 0, 0 }' \
        >>"$results"
}

make_drop() {
    [ "$sender" = generate ] && command -v clang >/dev/null || return 0
    printf '%s\n' '__attribute__((section("xdp"), used)) int drop(void *ctx) { return 1; }' |
        clang -O2 -target bpf -x c -c -o "$scratch/drop.o" -
}

# What waiting costs: CPU time at a thousand packets a second, in percent of a CPU.
idle() {
    command -v trafgen >/dev/null || return 0
    for port in packet:right0 xdp:right0 "xdp:right0?method=af_xdp" mirror:right0; do
        "$sluice" lab exec --name "$lab" right -- taskset -c "$receive_cpu" \
            "$sluice" count --json "$port" >"$scratch/said" 2>&1 &
        tool_pid=$!
        sleep "$settle"
        kill -0 "$tool_pid" 2>/dev/null || die 1 "$port: $(cat "$scratch/said")"
        before=$(sent)
        timeout -s INT 4 "$sluice" lab exec --name "$lab" left -- taskset -c "$send_cpu" \
            trafgen --dev left0 --conf "$scratch/slow.cfg" --cpus 1 --no-sock-mem -b 1000pps \
            >"$scratch/sent" 2>&1 &
        sender_pid=$!
        sleep 0.5
        ns=$(cpu_ns "$tool_pid")
        sleep 3
        ns=$(($(cpu_ns "$tool_pid") - ns))
        # 124: it sent until its time was over.
        status=0
        wait "$sender_pid" || status=$?
        sender_pid=
        [ "$status" = 124 ] || die 1 "trafgen failed ($status): $(cat "$scratch/sent")"
        whole=$(($(sent) - before))
        stop "$tool_pid" INT
        tool_pid=
        # To wait for packets that do not come costs less.
        got=$(number out "$scratch/said")
        [ "$whole" -ge 2000 ] || die 1 "trafgen sent $whole packets in 4 s, where 4000 were due"
        [ "$((${got:-0} * 10))" -ge "$((whole * 9))" ] ||
            die 1 "$port: got ${got:-none} of $whole: $(cat "$scratch/said")"
        printf 'idle\tsluice count %s\t%s\n' "$port" "$ns" >>"$results"
    done
}

# forward WHAT COMMAND…: a line of the results from what moved, in Mpps, as the command says.
forward() {
    what=$1
    shift
    taskset -c "$receive_cpu" "$@" >"$scratch/said" 2>"$scratch/complained" ||
        die 1 "$what: $(cat "$scratch/complained")"
    awk -v OFS='\t' -v what="$what" '{ print "forward", what, $2, 0, 1e3 / $2 }' \
        "$scratch/said" >>"$results"
}

# The same by dpdk-testpmd: both ports' receive rates, as it says at the end of the time.
testpmd() {
    timeout -k 5 $((seconds + 30)) dpdk-testpmd -l "$send_cpu,$receive_cpu" --no-huge -m 512 --no-shconf --no-pci \
        --vdev net_null0 --vdev net_null1 -- --forward-mode io --stats-period 1 \
        --no-mlockall --total-num-mbufs 16384 >"$scratch/said" 2>&1 &
    tool_pid=$!
    sleep $((seconds + 3))
    stop "$tool_pid" INT
    tool_pid=
    # Between two looks each port says its rate; the first look is from before the start.
    awk -v OFS='\t' '/Rx-pps:/ { rate[n++] = $2 }
        END {
            for (i = n - 2; i < n; i++) mpps += rate[i] / 1e6
            if (mpps) print "forward", "dpdk-testpmd io, net_null", mpps, 0, 1e3 / mpps
        }' "$scratch/said" >>"$results"
}

round() {
    xdp
    drop
    idle
    for method in recv recvmmsg ring; do
        measure receive "sluice count, $method" of_sluice \
            "$sluice" count --json "packet:right0?method=$method"
    done
    measure receive "sluice count, mirror:" of_sluice "$sluice" count --json mirror:right0
    measure receive "sluice capture -w /dev/null" of_sluice \
        "$sluice" capture --json right0 -w /dev/null
    measure receive "tcpdump -w /dev/null" of_tcpdump \
        tcpdump -n -i right0 -B 65536 -Z root -w /dev/null
    if [ "$to_file" = yes ]; then
        measure file "sluice capture, pcapng" of_sluice \
            "$sluice" capture --json right0 -w "$scratch/file.pcapng"
        measure file "sluice capture, pcap" of_sluice \
            "$sluice" capture --json right0 -w "$scratch/file.pcap"
        measure file "tcpdump, pcap" of_tcpdump \
            tcpdump -n -i right0 -B 65536 -Z root -w "$scratch/file.pcap"
    fi
    for mode in io touch copy; do
        forward "null_forward $mode" "$release/examples/null_forward" "$mode" "$seconds"
    done
    ! command -v dpdk-testpmd >/dev/null || testpmd
}

idle_table() {
    grep -q '^idle	' "$results" || return 0
    printf '\n### Waiting, at 1,000 packets a second\n\n'
    awk -F '\t' '
        $1 == "idle" { if (!($2 in n)) names[++count] = $2; share[$2, ++n[$2]] = $3 / 3e9 * 100 }
        END {
            print "| | % of a CPU, median | most |"
            print "| --- | ---: | ---: |"
            for (i = 1; i <= count; i++) {
                what = names[i]
                for (j = 2; j <= n[what]; j++) {
                    x = share[what, j]
                    for (k = j - 1; k && share[what, k] > x; k--) share[what, k + 1] = share[what, k]
                    share[what, k + 1] = x
                }
                printf "| %s | %.1f | %.1f |\n", what, share[what, int((n[what] + 1) / 2)],
                    share[what, n[what]]
            }
        }' "$results"
}

# A packet takes up to 100 bytes of a file; 5 million a second are more than can be had.
to_file=yes
if [ "$(room_mib "$scratch")" -lt $((seconds * 1400)) ]; then
    to_file=no
    echo "bench: nothing is written to files: $scratch has no $((seconds * 1400)) MiB" >&2
fi
command -v dpdk-testpmd >/dev/null ||
    echo "bench: no dpdk-testpmd to compare with: scripts/setup.sh --bench installs it" >&2

make_drop
trafgen_config >"$scratch/slow.cfg"
rounds
about_machine
cat <<END
- sender: $sender_is
- peers: $(tcpdump --version 2>&1 | head -n 1); DPDK $(dpkg-query -W -f '${Version}' dpdk-dev 2>/dev/null || echo "not there")
- median of $runs runs of $seconds s, in turns: \`RUNS=$runs SECONDS=$seconds make bench-tables\`
END
table receive "Receiving, from a veth" "tcpdump -w /dev/null"
table xdp "Receiving by XDP, from a veth" "dpdk-testpmd rxonly, net_af_xdp"
table drop "Dropping by XDP, from a veth" "XDP_DROP and nothing else"
idle_table
table file "Receiving into a file in $(df -PT "$scratch" | awk 'NR == 2 { print $2 }')" "tcpdump, pcap"
table forward "Forwarding between two ports that cost nothing" "dpdk-testpmd io, net_null"
