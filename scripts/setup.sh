#!/bin/sh
# Installs the system packages that building, testing and the demo need, by name.
# Debian 12 and later, Ubuntu 22.04 and later. Does nothing if all are installed.
# --bench adds the peers that only benches compare with, --vm the tools of `make vm-test`.
set -eu

# clang compiles the XDP programs; libbpf is built from its crate, with libelf and zlib
build="gcc libc6-dev make pkg-config libpcap-dev clang libelf-dev zlib1g-dev"
# netbase: names of protocols and services, for filters
run="iproute2 ethtool iputils-ping netbase"
# valgrind counts the instructions of hot loops; curl, dig, dnsmasq and python3's web server talk in
# the captures that scripts/captures.sh makes
peers="valgrind tcpdump tshark wireshark-common netsniff-ng tcpreplay iperf3 nftables zstd lz4 strace
    libcap2-bin python3 curl bind9-dnsutils dnsmasq-base zsh"
# Ubuntu has bpftool and perf in the packages of its kernels, by their versions.
! grep -qs '^ID=debian$' /etc/os-release || peers="$peers bpftool linux-perf"
lint="shellcheck"
bench=
vm=
case ${1:-} in
'') ;;
--bench) bench="dpdk-dev masscan xdp-tools iptables" ;;
--vm) vm="xz-utils" ;;
*)
    echo "usage: scripts/setup.sh [--bench | --vm]" >&2
    exit 2
    ;;
esac

missing=
for package in $build $run $peers $lint $bench $vm; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
if [ -z "$missing" ]; then
    [ -z "$vm" ] || "$(dirname "$0")/vm/fetch.sh"
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install the equivalents of:$missing" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup: these packages are missing:$missing; install them as root" >&2
        exit 3
    fi
    as_root=sudo
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get -qq update
# shellcheck disable=SC2086 # a list of words
$as_root apt-get -qq install -y --no-install-recommends $missing >/dev/null
[ -z "$vm" ] || "$(dirname "$0")/vm/fetch.sh"
