#!/bin/sh
# Fetches what `make vm-test` boots: kernels and a static busybox, as Debian packages, unpacked
# below target/vm, and installs QEMU where there is none that emulates igb (8.0 and later do).
# The system's package sources stay as they are; their mirror is used, or DEBIAN_MIRROR.
# KERNELS: the series, "6.1 6.12 7.2". Existing files are left alone.
set -eu
cd "$(dirname "$0")/../.."

KERNELS=${KERNELS:-6.1 6.12 7.2}
root=${CARGO_TARGET_DIR:-target}/vm
mkdir -p "$root/apt/sources" "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
root=$(cd "$root" && pwd)

if ! command -v apt-get >/dev/null; then
    echo "vm: no apt-get here; the kernels are Debian packages" >&2
    exit 1
fi

# A configuration for apt with sources, lists and cache of its own.
cat >"$root/apt/apt.conf" <<END
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$root/apt/sources";
Dir::State::Lists "$root/apt/lists";
Dir::Cache "$root/apt/cache";
END

private() {
    APT_CONFIG="$root/apt/apt.conf" "$@"
}

# The suites that have the kernels, once: from where this system has its packages.
sources() {
    [ ! -e "$root/apt/updated" ] || return 0
    # shellcheck disable=SC2016 # apt's variables
    mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' \
        'Created-By: Packages' | awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }')}
    if [ -z "$mirror" ]; then
        echo "vm: no Debian mirror among apt's sources: set DEBIAN_MIRROR to one's address" >&2
        exit 1
    fi
    cat >"$root/apt/sources/vm.sources" <<END
Types: deb
URIs: $mirror
Suites: bookworm bookworm-backports trixie-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    private apt-get -qq update
    touch "$root/apt/updated"
}

# unpack DIR PACKAGE...: into DIR below target/vm, without installing anything.
unpack() {
    into=$root/$1
    shift
    echo "vm: fetching $*"
    fresh=$root/fresh
    rm -rf "$fresh" && mkdir -p "$fresh"
    (cd "$fresh" && private apt-get -qq -o APT::Sandbox::User=root download "$@")
    for package in "$fresh"/*.deb; do
        dpkg -x "$package" "$into.part"
    done
    rm -rf "$fresh"
    mv "$into.part" "$into"
}

# The packages of the newest kernel of a series that there is. Since 7.2 image and modules are
# two packages.
packages() {
    names=$(private apt-cache pkgnames "linux-")
    newest=$(echo "$names" | sed -n "s/^linux-image-\($1\.[0-9.]*[-+][^ ]*-amd64\)\$/\1/p" |
        grep -v -E 'rt-|cloud-' | sort -V | tail -n 1)
    for part in binary modules; do
        echo "$names" | grep -x "linux-$part-$newest" || true
    done | grep . || echo "linux-image-$newest"
}

for series in $KERNELS; do
    [ ! -d "$root/kernel-$series" ] || continue
    sources
    # shellcheck disable=SC2046 # words
    unpack "kernel-$series" $(packages "$series")
done
if [ ! -d "$root/tools" ]; then
    sources
    unpack tools busybox-static
fi

qemu-system-x86_64 -device help 2>/dev/null | grep -q '"igb"' && exit 0
echo "vm: installing qemu-system-x86"
config=/dev/null suite=
if grep -q bookworm /etc/os-release; then
    # Its own QEMU is 7.2.
    sources
    config=$root/apt/apt.conf suite="-t bookworm-backports"
fi
as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
# shellcheck disable=SC2086 # words, or none
$as_root env APT_CONFIG="$config" DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
    --no-install-recommends $suite qemu-system-x86 >/dev/null
