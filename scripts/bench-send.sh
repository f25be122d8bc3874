#!/bin/sh
# What sending reaches, beside trafgen, tcpreplay and DPDK, counted at the other end in XDP. All of it
# in one run, in turns, so that the machine's moods hit everybody alike. Prints Markdown.
#
#   RUNS=5      rounds; the tables show the median and the spread
#   SECONDS=3   that packets are counted, each time
#   MIX=FILE    a capture to be replayed; without it, 200,000 packets of IMIX sizes
#
# A sender is pinned to the first CPU, which also does the softirq of the veth; what is said to have
# two has both.
set -eu
cd "$(dirname "$0")/.."
name=bench-send
queues=2
. scripts/lab.sh
. scripts/rounds.sh

lab_up
results=$scratch/results
: >"$results"

# Packets that the XDP program on right0 has seen.
seen() {
    number packets "$scratch/seen"
}
look() {
    "$sluice" claims right0 --netns "$right" --json >"$scratch/seen"
}

# begin COMMAND…: starts what sends, on the left host.
begin() {
    "$sluice" lab exec --name "$lab" left -- "$@" >"$scratch/said" 2>&1 &
    sender_pid=$!
}

# measure TABLE WHAT SETTLE COMMAND…: the command sends; after SETTLE seconds its packets are counted
# for a while. Adds a line to the results: table, what, packets a microsecond.
measure() {
    table=$1 what=$2 settle=$3
    shift 3
    begin "$@"
    sleep "$settle"
    from=$(date +%s%N)
    look
    before=$(seen)
    sleep "$seconds"
    to=$(date +%s%N)
    look
    after=$(seen)
    kill -0 "$sender_pid" 2>/dev/null || die 1 "$what ended early: $(cat "$scratch/said")"
    stop "$sender_pid" INT
    sender_pid=
    [ "$after" -gt "$before" ] || die 1 "$what sent nothing: $(cat "$scratch/said")"
    awk -v OFS='\t' -v table="$table" -v what="$what" -v n="$((after - before))" \
        -v ns="$((to - from))" 'BEGIN { print table, what, n / ns * 1e3 }' >>"$results"
}

# generate TABLE WHAT PORT CPUS [FLAG…]
generate() {
    table=$1 what=$2 port=$3 cpus=$4
    shift 4
    measure "$table" "$what" 0.5 "$sluice" generate "$port" --cpus "$cpus" --dmac "$nobody" \
        --dst 198.18.0.2 --dport 9 "$@"
}

live() {
    generate live "one packet" left0 "$send_cpu" --method live --src 198.18.0.1
    set -- --method live --src 198.18.0.0/16 --sport 1024-65535
    generate live "random source" left0 "$send_cpu" "$@"
    generate live "random source, two CPUs" left0 "$send_cpu,$receive_cpu" "$@"
    generate live "random source, IMIX" left0 "$send_cpu" "$@" --size imix
    # It forks, and is ended by its time.
    ! command -v trafgen >/dev/null ||
        measure live "trafgen, random source" 1 timeout -s INT $((seconds + 3)) \
            taskset -c "$send_cpu" trafgen --dev left0 --conf "$scratch/random.cfg" --cpus 1 \
            --no-sock-mem
}

# testpmd TABLE WHAT DEVICE
testpmd() {
    ! command -v dpdk-testpmd >/dev/null ||
        measure "$1" "$2" 4 dpdk-testpmd --lcores "0@$send_cpu,1@$send_cpu" --no-huge -m 512 \
            --no-shconf --no-pci --vdev "$3" -- --forward-mode=txonly --txpkts=60 \
            --stats-period 1 --no-mlockall --total-num-mbufs 16384
}

rings() {
    generate rings "sluice generate xdp:left0" xdp:left0/0 "$send_cpu" --src 198.18.0.1
    generate rings "sluice generate live:left0" "live:left0?cpu=$send_cpu" "$receive_cpu" \
        --src 198.18.0.1
    testpmd rings "dpdk-testpmd txonly, net_af_xdp" net_af_xdp0,iface=left0
}

sockets() {
    for way in sendmmsg ring sendto; do
        generate sockets "sluice generate packet:left0?qdisc=bypass&send=$way" \
            "packet:left0?qdisc=bypass&send=$way" "$send_cpu" --src 198.18.0.1
    done
    testpmd sockets "dpdk-testpmd txonly, net_af_packet" \
        net_af_packet0,iface=left0,qdisc_bypass=1
}

replay() {
    measure replay "sluice replay --top-speed" 1 taskset -c "$send_cpu,$receive_cpu" \
        "$sluice" replay "$mix" left0 --top-speed --loop 0
    ! command -v tcpreplay >/dev/null ||
        measure replay "tcpreplay --topspeed --preload-pcap" 2 taskset -c "$send_cpu,$receive_cpu" \
            tcpreplay --quiet --topspeed --preload-pcap --loop=0 -i left0 "$mix"
}

# counting WHAT FLAG…: the XDP program on right0 with other work to do.
counting() {
    what=$1
    shift
    stop "$tool_pid" INT
    count_in_xdp "$@"
    generate counting "$what" left0 "$send_cpu,$receive_cpu" --method live --src 198.18.0.1 --stamp
}

count_in_xdp() {
    "$sluice" count --netns "$right" 'xdp:right0?action=drop' --json "$@" \
        >"$scratch/counted" 2>"$scratch/complained" &
    tool_pid=$!
    sleep 0.5
    kill -0 "$tool_pid" 2>/dev/null || die 1 "$(cat "$scratch/complained")"
}

round() {
    live
    rings
    sockets
    replay
    counting "count" 
    counting "count --analyze" --analyze
    stop "$tool_pid" INT
    count_in_xdp
}

# Packets for trafgen as those of `generate live "random source"`.
cat >"$scratch/random.cfg" <<END
{ eth(da=$nobody, sa=02:00:00:00:00:01, type=0x0800)
  0x45, 0, c16(46), 0, 0, 0, 0, 64, 17, csumip(14, 33), 198, 18, drnd(2), 198, 18, 0, 2,
  drnd(2), c16(9), c16(26), csumudp(14, 34), fill(0, 18) }
END
mix=${MIX:-$scratch/mix.pcap}
[ -n "${MIX:-}" ] || "$sluice" generate "pcap:$mix" --count 200000 --size imix --dmac "$nobody" \
    --src 198.18.0.0/16 --dst 198.18.0.2 --sport 1024-65535 --dport 9 >/dev/null
command -v dpdk-testpmd >/dev/null ||
    echo "bench-send: no dpdk-testpmd to compare with: scripts/setup.sh --bench installs it" >&2

count_in_xdp
rounds

about_machine
cat <<END
- peers: $(trafgen --version 2>&1 | head -n 1); $(tcpreplay --version 2>&1 | head -n 1); DPDK $(dpkg-query -W -f '${Version}' dpdk-dev 2>/dev/null || echo "not there")
- median of $runs runs of $seconds s, in turns: \`RUNS=$runs SECONDS=$seconds scripts/bench-send.sh\`
END
table live "Sending as live frames, into a veth" "random source"
table rings "Sending by rings, into a veth" "sluice generate xdp:left0"
table sockets "Sending by packet sockets, past the queueing discipline" "dpdk-testpmd txonly, net_af_packet"
table replay "Replaying 200,000 packets" "tcpreplay --topspeed --preload-pcap"
table counting "Counting in XDP what two CPUs send" "count"
