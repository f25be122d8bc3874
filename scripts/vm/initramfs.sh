#!/bin/sh
# initramfs.sh KERNEL: makes the small file system that a guest starts with, of busybox, the
# modules of KERNEL (a folder that fetch.sh made) and init. Prints where the kernel is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernel=$1
tools=$(dirname "$kernel")/tools
image=$(find "$kernel" -name 'vmlinuz*')

# What the drivers and the way to the host's files are in; modules elsewhere are not needed.
parts="drivers/virtio drivers/net/ethernet/intel drivers/net/vmxnet3 drivers/net/virtio_net
    drivers/net/veth drivers/net/net_failover net/core net/9p fs/9p fs/netfs fs/fscache
    drivers/ptp drivers/pps drivers/i2c drivers/dca drivers/mdio drivers/net/mdio
    drivers/net/tun net/sched net/8021q net/802 net/llc net/netfilter/nf_tables.ko
    net/netfilter/nft_ct.ko net/netfilter/nf_conntrack.ko net/netfilter/nfnetlink.ko
    net/ipv4/netfilter/nf_defrag net/ipv6/netfilter/nf_defrag lib/libcrc32c crypto/crc32c
    net/ipv4/gre.ko net/ipv4/ip_gre.ko net/ipv4/ip_tunnel.ko"

tree=$kernel/tree
rm -rf "$tree"
mkdir -p "$tree/bin" "$tree/dev" "$tree/proc" "$tree/sys" "$tree/host"
cp "$tools/bin/busybox" "$tree/bin"
cp "$here/init" "$tree/init"
modules=$(dirname "$(find "$kernel" -type d -path '*/lib/modules/*/kernel' | head -n 1)")
into=$tree/lib/modules/$(basename "$modules")
mkdir -p "$into"
for part in $parts; do
    (cd "$modules" && find kernel -path "kernel/$part*" -name '*.ko*') | while read -r module; do
        mkdir -p "$into/$(dirname "$module")"
        case $module in
        *.xz) xz -dc "$modules/$module" >"$into/${module%.xz}" ;;
        *) cp "$modules/$module" "$into/$module" ;;
        esac
    done
done
for applet in sh mount modprobe chroot sleep poweroff; do
    ln -s busybox "$tree/bin/$applet"
done
"$tools/bin/busybox" depmod -b "$tree" "$(basename "$modules")"
(cd "$tree" && find . | "$tools/bin/busybox" cpio -o -H newc 2>/dev/null) >"$kernel/initramfs"
rm -rf "$tree"
echo "$image"
