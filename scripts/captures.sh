#!/bin/sh
# Makes the captures that tests read, in the folder `captures` of the target directory: other
# programs talk between two network namespaces, and tcpdump and dumpcap record them. Takes 5 s;
# does nothing if this version of the script made the captures there. Needs root.
set -eu
cd "$(dirname "$0")/.."
captures=${CARGO_TARGET_DIR:-target}/captures

skip() {
    echo "captures: skipped: needs $1; get it by $2" >&2
    exit 3
}

# Waits until a command succeeds, 10 s at most.
await() {
    for _ in $(seq 200); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.05
    done
    echo "captures: failed within 10 s: $*" >&2
    exit 1
}

right() { nsenter --net=/run/netns/right -- "$@"; }

# Joins the hosts left (this namespace) and right by a link.
hosts() {
    ip netns add right
    ip link add left0 type veth peer name right0 netns right
    ip link set lo up
    ip address add 198.18.0.1/24 dev left0
    ip address add 2001:db8:18::1/64 dev left0 nodad
    ip link set left0 up
    ip -n right address add 198.18.0.2/24 dev right0
    ip -n right address add 2001:db8:18::2/64 dev right0 nodad
    ip -n right link set right0 up
}

servers() {
    right dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --user=root --no-hosts \
        --no-resolv --local=/example/ --host-record=host.example,198.18.0.2,2001:db8:18::2 \
        --cname=www.example,host.example --mx-host=example,host.example,10 \
        --srv-host=_http._tcp.example,host.example,8000 --txt-record='example,v=spf1 -all,"ä' \
        --dns-rr=example,65,000100 --ptr-record=_http._tcp.local,left._http._tcp.local &
    right python3 -m http.server --bind :: --directory docs 8000 >/dev/null 2>&1 &
    right iperf3 --server >/dev/null &
    for port in 53 5201 8000; do
        await right sh -c "ss -Htln sport = :$port | grep ."
    done
}

# Starts to record into a file, in the background: record FILE PROGRAM [ARGUMENT...]
record() {
    file=$1
    shift
    "$@" -w "$file" 2>"/run/$file.log" &
    recorders="$recorders $!"
    await grep -e '^File: ' -e 'listening on' "/run/$file.log"
}

recorders() {
    recorders=
    set -- tcpdump --packet-buffered -Z root
    record micro.pcap "$@" -i left0
    record nano.pcap "$@" -i left0 --time-stamp-precision=nano
    record cut.pcap "$@" -i left0 -s 60
    record sll.pcap "$@" -i any -y LINUX_SLL
    record sll2.pcap "$@" -i any -y LINUX_SLL2
    record ports.pcapng dumpcap -i left0 -i lo
}

# Speaks each protocol, by IPv4 and IPv6, until the last packet is in each recording.
talk() {
    for host in 198.18.0.2 2001:db8:18::2; do
        ping -c 9 -i 0.01 $host
        ping -c 4 -i 0.01 -s 4000 $host
        for query in 'A host.example' 'AAAA host.example' 'A www.example' 'MX example' \
            'SRV _http._tcp.example' 'TXT example' 'TYPE65 example' 'ANY example' 'SOA example' \
            'PTR _http._tcp.local' '-x 198.18.0.2' 'A none.example' 'A elsewhere.test'; do
            # shellcheck disable=SC2086 # words
            dig +tries=1 @$host $query
            # shellcheck disable=SC2086 # words
            dig +tries=1 +tcp @$host $query
        done
        # Nothing listens there: ICMP answers.
        dig +tries=1 +time=1 @$host -p 9 host.example || true
        await iperf3 --client $host --bytes 100K
        await iperf3 --client $host --bytes 50K --length 200 --udp --bitrate 20M
    done
    curl -sS -o /dev/null http://198.18.0.2:8000/design.md
    curl -sS -o /dev/null -g 'http://[2001:db8:18::2]:8000/design.md'
    ping -c 9 -i 0.01 127.0.0.1
    ping -c 1 -t 99 198.18.0.2
    for file in *.pcap*; do
        await sh -c "tcpdump -r $file 'ip[8] = 99' | grep ."
    done
}

# Divides the recordings by protocol, and adds tags, comments, cuts, other formats and link types.
divide() {
    while read -r kind filter; do
        for from in micro nano cut sll sll2; do
            precision=micro
            [ $from != nano ] || precision=nano
            tcpdump --time-stamp-precision=$precision -r $from.pcap -w "$kind-$from.pcap" "$filter"
        done
        tcpdump -r "$kind-micro.pcap" -c 1 | grep -q . || { echo "captures: no $kind"; exit 1; }
        tcprewrite -i "$kind-micro.pcap" -o "$kind-vlan.pcap" --enet-vlan=add --enet-vlan-tag=5 \
            --enet-vlan-pri=3 --enet-vlan-cfi=0
        tcprewrite -i "$kind-vlan.pcap" -o "$kind-qinq.pcap" --enet-vlan=add --enet-vlan-tag=7 \
            --enet-vlan-pri=0 --enet-vlan-cfi=0 --enet-vlan-proto=802.1ad ||
            rm -f "$kind-qinq.pcap" # tcprewrite before 4.4
        editcap -F pcapng -a 1:first "$kind-micro.pcap" "$kind-commented.pcapng"
        editcap -F pcap -C -8 "$kind-micro.pcap" "$kind-chopped.pcap"
        editcap -F pcap -C 14 -L -T rawip "$kind-micro.pcap" "$kind-raw.pcap"
        mergecap -w "$kind-merged.pcapng" "$kind-nano.pcap" "$kind-chopped.pcap"
    done
}

# Runs as the first process of its namespaces: its end ends the others and removes the namespaces.
inside() {
    mount -t tmpfs tmpfs /run
    trap 'exit 130' INT TERM HUP
    trap '[ $? -eq 0 ] || tail -n 5 /run/log >&2' EXIT
    hosts
    servers
    mkdir /run/captures
    cd /run/captures
    recorders
    talk >/run/log 2>&1
    # shellcheck disable=SC2086 # words
    kill $recorders
    # shellcheck disable=SC2086 # words
    wait $recorders
    divide >/run/log 2>&1 <<'KINDS'
arp arp
neighbours icmp6[icmp6type] >= 130
ping4 icmp[icmptype] = icmp-echo or icmp[icmptype] = icmp-echoreply
ping6 icmp6[icmp6type] = 128 or icmp6[icmp6type] = 129
unreachable icmp[icmptype] = icmp-unreach or icmp6[icmp6type] = 1
fragments4 ip[6:2] & 0x3fff != 0
fragments6 ip6 proto 44
dns4 ip and udp port 53
dns6 ip6 and udp port 53
dnstcp tcp port 53
http4 ip and tcp port 8000
http6 ip6 and tcp port 8000
iperf4 ip and tcp port 5201
iperf6 ip6 and tcp port 5201
datagrams udp port 5201
KINDS
    rm micro.pcap nano.pcap sll.pcap sll2.pcap
    cd "$OLDPWD"
    rm -rf "$captures"
    mkdir -p "$captures"
    install -m 644 /run/captures/* "$captures"
}

if [ "${1:-}" = inside ]; then
    inside
    exit 0
fi
[ "$(id -u)" -eq 0 ] || skip root "sudo scripts/captures.sh"
version=$(cksum <scripts/captures.sh)
[ ! -d "$captures" ] || [ "$(cat "$captures.version" 2>/dev/null)" != "$version" ] || exit 0
for program in ping iperf3 curl dig dnsmasq python3 tcpdump dumpcap editcap mergecap tcprewrite; do
    command -v $program >/dev/null || skip $program scripts/setup.sh
done
timeout --foreground -s KILL 60 \
    unshare --net --pid --fork --kill-child --mount-proc scripts/captures.sh inside
echo "$version" >"$captures.version"
# `cargo clean` by the user of sudo removes them, too.
[ -z "${SUDO_UID:-}" ] || chown -R "$SUDO_UID:${SUDO_GID:-}" "$captures" "$captures.version"
