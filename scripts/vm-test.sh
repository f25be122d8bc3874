#!/bin/sh
# Runs the conformance suite and the tests of XDP on drivers in QEMU, on other kernels and with
# the drivers of cards that it emulates: one guest after the other, without a network of the
# host's. The result is target/vm/table.md, of all guests that have run; KEEP=1 puts it into
# docs/vm.md.
#
#     KERNELS="6.1 6.12 7.2"  DRIVERS="igb e1000e vmxnet3 virtio_net virtio_net:2 virtio_net:4
#     veth"  TESTS=REGEX
#
# virtio_net:2 and virtio_net:4 have so many queue pairs, for which QEMU needs TAP devices: root, or
# user namespaces. Two are in use, as there are two CPUs; with four there is one for each CPU besides,
# and native XDP uses these too.
set -eu
cd "$(dirname "$0")/.."

KERNELS=${KERNELS:-6.1 6.12 7.2}
DRIVERS=${DRIVERS:-igb e1000e vmxnet3 virtio_net virtio_net:2 virtio_net:4 veth}
# Seconds that one test may take, and one guest.
TEST_SECONDS=${TEST_SECONDS:-180}
GUEST_SECONDS=${GUEST_SECONDS:-1200}

export KERNELS
scripts/setup.sh --vm
vm=$(cd "${CARGO_TARGET_DIR:-target}/vm" && pwd)
logs=$vm/logs
mkdir -p "$logs"

# The tests are built here and run there: the guests see this machine's files. Copies, for who
# builds meanwhile would change them under a guest.
programs=
rm -rf "$vm/tests" && mkdir "$vm/tests"
cargo test --package sluicegate --test wire --test xdp --no-run \
    --message-format=json-render-diagnostics >"$vm/built"
built=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$vm/built")
for program in $built; do
    cp "$program" "$vm/tests"
    programs="$programs $vm/tests/$(basename "$program")"
done

# How many queue pairs the cards of a driver are asked to have; nothing where QEMU decides.
pairs() {
    case $1 in
    *:*) echo "${1#*:}" ;;
    esac
}

# The cards of a driver, two on one wire: one of QEMU's, which has one queue, or TAP devices.
devices() {
    case $1 in
    veth) return ;;
    # Zero-copy takes a card that goes by the kernel's DMA interface.
    virtio_net*) device=virtio-net-pci,disable-legacy=on,iommu_platform=on ;;
    *) device=$1 ;;
    esac
    wire=hubport,hubid=1
    pairs=$(pairs "$1")
    [ -z "$pairs" ] || device=$device,mq=on,vectors=$((2 * pairs + 2))
    for n in 1 2; do
        [ -z "$pairs" ] ||
            wire=tap,queues=$pairs,ifname=tap$n,script=no,downscript=no,vhost=off
        echo "-netdev $wire,id=n$n -device pcie-root-port,id=port$n,slot=$n,chassis=$n"
        echo "-device $device,netdev=n$n,bus=port$n"
    done
}

# hangs KERNEL DRIVER: tests that are known to take the guest's interface away for ever.
hangs() {
    awk -F ' [|] ' -v kernel=" $1 " -v driver=" $2 " \
        '$4 == "hangs" && index(" " $1 " ", kernel) && index(" " $2 " ", driver) { print $3 }' \
        scripts/vm/faults
}

# boot KERNEL DRIVER: one guest, its console into a file.
boot() {
    image=$(scripts/vm/initramfs.sh "$vm/kernel-$1")
    cat >"$vm/job" <<END
driver=$2
hangs='$(hangs "$1" "$2")'
tests='${TESTS:-.}'
seconds=$TEST_SECONDS
programs='$programs'
END
    wire=
    [ -z "$(pairs "$2")" ] || wire=scripts/vm/wire.sh
    # In the background, for a shell that waits for what is in front hears no signal.
    # shellcheck disable=SC2046,SC2086 # words, or none
    timeout "$GUEST_SECONDS" $wire qemu-system-x86_64 -machine q35 -accel tcg -cpu max -smp 2 -m 3G \
        -nographic -no-reboot -nic none -kernel "$image" -initrd "$vm/kernel-$1/initramfs" \
        -append "console=ttyS0 quiet panic=-1 vm_modules=${2%:*} vm_job=$vm/job vm_run=$PWD/scripts/vm/guest.sh" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        $(devices "$2") </dev/null >"$logs/raw" 2>&1 &
    guest=$!
    wait $guest || echo "vm-test: the guest did not end well"
    guest=
    tr -d '\r\000' <"$logs/raw" >"$logs/$1-$2.log"
}

# After ^C too no guest goes on; its wire ends with it.
guest=
trap '[ -z "$guest" ] || { kill "$guest" && wait "$guest" || true; }' EXIT
trap 'exit 130' INT TERM HUP

failed=0
for kernel in $KERNELS; do
    for driver in $DRIVERS; do
        echo "== Linux $kernel, $driver"
        if [ -n "$(pairs "$driver")" ] && ! scripts/vm/wire.sh true; then
            echo "vm-test: skipped: no TAP devices in a network namespace of their own: run as root"
            continue
        fi
        boot "$kernel" "$driver"
        awk -f scripts/vm/faults.awk -f scripts/vm/verdicts.awk -v kernel="$kernel" \
            -v driver="$driver" "$logs/$kernel-$driver.log" || failed=$((failed + 1))
    done
done
# Of all guests that have run, now or before.
awk -f scripts/vm/faults.awk -f scripts/vm/table.awk "$logs"/*-*.log >"$vm/table.md"
echo "== $vm/table.md"
if [ -n "${KEEP:-}" ]; then
    awk -v table="$vm/table.md" '
        /^<!-- end/ { within = 0 }
        !within { print }
        /^<!-- tables/ { within = 1; print ""; while ((getline line < table) > 0) print line; print "" }
    ' docs/vm.md >"$vm/page"
    cat "$vm/page" >docs/vm.md
fi
[ "$failed" -eq 0 ] || { echo "vm-test: tests failed in $failed guests" >&2 && exit 1; }
