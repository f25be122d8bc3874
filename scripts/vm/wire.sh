#!/bin/sh
# wire.sh QUEUES COMMAND...: runs a command in a network namespace of its own, in which tap1 and
# tap2, of one queue or several, are the ends of a wire: what is sent into one comes out of the
# other, whatever it is. (A bridge would keep frames for 01:80:c2:00:00:0x, and learn addresses.) The
# namespace has no name and no other interface that is up, and ends with the command, however that
# ends. Root, or user namespaces.
set -eu
# Who is no administrator has not these in the path.
PATH=$PATH:/usr/sbin:/sbin
if [ "$1" != --inside ]; then
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root=--map-root-user
    exec unshare --net $as_root -- "$0" --inside "$@"
fi
several=
[ "$2" = 1 ] || several=multi_queue
shift 2

# needs WHAT COMMAND...: what there is no wire without. The command itself has said why it failed.
needs() {
    what=$1
    shift
    "$@" || {
        echo "wire.sh: no wire: $what failed: $*" >&2
        exit 1
    }
}

# IPv6 would speak up as soon as an interface is up; of IPv4 there are no addresses.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null || true
for end in tap1 tap2; do
    needs "to make a TAP device" ip tuntap add dev $end mode tap $several
    # QEMU reads as slowly as its guest does, and a wire keeps what is on it.
    needs "to set one up" ip link set $end mtu 9216 txqueuelen 20000
done
other=tap1
for end in tap2 tap1; do
    needs "to set one up" ip link set $end up
    needs "a queue (sch_fifo)" tc qdisc replace dev $end root pfifo limit 20000
    needs "to see what comes (sch_ingress)" tc qdisc add dev $end handle ffff: ingress
    needs "to pass it on (cls_u32, act_mirred)" tc filter add dev $end parent ffff: protocol all \
        u32 match u32 0 0 action mirred egress redirect dev $other
    other=$end
done
exec "$@"
