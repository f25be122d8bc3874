#!/bin/sh
# Runs the conformance suite and the tests of XDP on drivers in QEMU: on other kernels, with the drivers of
# emulated cards, and on veth, which also has the tests of generated programs and of ports on the host's
# side. Several guests run side by side, without a network of the host's. Writes target/vm/table.md, of
# all guests that have run; KEEP=1 puts its first table, the modes, into docs/vm.md.
#
#     KERNELS="6.1 6.12 7.2"  DRIVERS="igb e1000e vmxnet3 virtio_net virtio_net:2 virtio_net:4
#     veth"  TESTS=REGEX  JOBS=GUESTS_AT_ONCE
#
# virtio_net:2 and virtio_net:4 have two and four queue pairs. Linux uses two, one for each CPU; native XDP
# uses the other two as well. The wire of virtio_net consists of TAP devices, which need root or user
# namespaces.
set -eu
cd "$(dirname "$0")/.."

whole=
[ -n "${KERNELS:-}${DRIVERS:-}${TESTS:-}" ] || whole=yes
KERNELS=${KERNELS:-6.1 6.12 7.2}
DRIVERS=${DRIVERS:-igb e1000e vmxnet3 virtio_net virtio_net:2 virtio_net:4 veth}
# A guest waits half of its time, for its own timers.
JOBS=${JOBS:-$(($(nproc) + 1))}
case $JOBS in
'' | *[!0-9]* | 0*)
    echo "vm-test: JOBS=$JOBS: how many guests are to run at once, at least 1" >&2
    exit 2
    ;;
esac
# Seconds that one test may take, and one guest.
TEST_SECONDS=${TEST_SECONDS:-300}
GUEST_SECONDS=${GUEST_SECONDS:-2400}
# Seconds until a guest that says nothing is started again, once: an emulated clock may stop for ever.
BOOT_SECONDS=${BOOT_SECONDS:-240}

# Whether the list is whole, before anything takes its time.
awk -f scripts/vm/faults.awk

export KERNELS
scripts/setup.sh --vm
vm=$(cd "${CARGO_TARGET_DIR:-target}/vm" && pwd)
logs=$vm/logs
# Each guest's own files lie in runs/KERNEL-DRIVER.
runs=$vm/runs
rm -rf "$vm/tests" "$runs"
mkdir -p "$logs" "$vm/tests" "$runs"

# The tests are built here and run in the guests, which see this machine's files. They are copied, because
# another build would change them under a guest.
programs=
cargo test --package sluicegate --test wire --test xdp --test live --test host --test tap \
    --package sluicegate-traffic --test spec --test analyse --no-run \
    --message-format=json-render-diagnostics >"$vm/built"
built=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$vm/built")
for program in $built; do
    cp "$program" "$vm/tests"
    programs="$programs $vm/tests/$(basename "$program")"
done
for kernel in $KERNELS; do
    scripts/vm/initramfs.sh "$vm/kernel-$kernel" >"$runs/image-$kernel"
done

# How many queue pairs the cards of a driver have on a wire of TAP devices; nothing where the wire is
# one of QEMU's: that has one queue, and lets packets overtake others that wait for virtio_net's buffers.
pairs() {
    case $1 in
    *:*) echo "${1#*:}" ;;
    virtio_net) echo 1 ;;
    esac
}

# The cards of a driver, two on one wire.
devices() {
    case $1 in
    veth) return ;;
    # Zero-copy takes a card that goes by the kernel's DMA interface.
    virtio_net*) device=virtio-net-pci,disable-legacy=on,iommu_platform=on ;;
    *) device=$1 ;;
    esac
    wire=hubport,hubid=1
    pairs=$(pairs "$1")
    [ "${pairs:-1}" = 1 ] || device=$device,mq=on,vectors=$((2 * pairs + 2))
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

# comes_up CONSOLE: succeeds once the guest has reached its tests, or has ended.
comes_up() {
    for _ in $(seq "$BOOT_SECONDS"); do
        ! grep -aq "vm: kernel" "$1" || return 0
        kill -0 "$guest" 2>/dev/null || return 0
        sleep 1
    done
    return 1
}

# boot KERNEL DRIVER: one guest, its console into a file. The machine stays usable meanwhile.
boot() {
    run=$runs/$1-$2
    cat >"$run/job" <<END
driver=$2
hangs='$(hangs "$1" "$2")'
tests='${TESTS:-.}'
seconds=$TEST_SECONDS
programs='$programs'
END
    wire=
    [ -z "$(pairs "$2")" ] || wire="scripts/vm/wire.sh $(pairs "$2")"
    for _ in first second; do
        # The file exists before the guest writes to it: comes_up reads it.
        : >"$run/raw"
        # In the background, because a shell that waits for a foreground process hears no signal.
        # shellcheck disable=SC2046,SC2086 # words, or none
        timeout "$GUEST_SECONDS" nice $wire qemu-system-x86_64 \
            -machine q35 -accel tcg -cpu max -smp 2 -m 3G \
            -nographic -no-reboot -nic none \
            -kernel "$(cat "$runs/image-$1")" -initrd "$vm/kernel-$1/initramfs" \
            -append "console=ttyS0 quiet panic=-1 vm_modules=${2%:*} vm_job=$run/job vm_run=$PWD/scripts/vm/guest.sh" \
            -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
            $(devices "$2") </dev/null >"$run/raw" 2>&1 &
        guest=$!
        comes_up "$run/raw" && break
        echo "vm-test: the guest has said nothing for $BOOT_SECONDS s, and is started again"
        kill "$guest"
        wait "$guest" || true
    done
    wait "$guest" || echo "vm-test: the guest did not end well"
    guest=
    tr -d '\r\000' <"$run/raw" >"$logs/$1-$2.log"
}

# try KERNEL DRIVER: one guest, and a line for each of its tests; whether all is well.
try() {
    echo "== Linux $1, $2"
    if [ -n "$(pairs "$2")" ] && ! scripts/vm/wire.sh 1 true; then
        echo "vm-test: skipped: no wire of TAP devices, which takes root, or user namespaces"
        return
    fi
    boot "$1" "$2"
    awk -f scripts/vm/faults.awk -f scripts/vm/verdicts.awk -v kernel="$1" -v driver="$2" \
        "$logs/$1-$2.log"
}

# One guest after the other, of those that no other worker has taken: who makes a guest's folder
# has it. What is to be said of it is said when it ends, in one piece.
work() {
    guest=
    # After ^C too no guest goes on; its wire ends with it.
    trap '[ -z "$guest" ] || { kill "$guest" && wait "$guest" || true; }' EXIT
    trap 'exit 130' INT TERM HUP
    for kernel in $KERNELS; do
        for driver in $DRIVERS; do
            run=$runs/$kernel-$driver
            if ! mkdir "$run" 2>/dev/null; then
                [ -d "$run" ] && continue
                echo "vm-test: cannot make $run" >&2
                exit 1
            fi
            try "$kernel" "$driver" >"$run/said" 2>&1 || touch "$run/failed"
            flock "$runs/lock" cat "$run/said"
        done
    done
}

workers=
# shellcheck disable=SC2086 # words, or none
trap '[ -z "$workers" ] || { kill $workers 2>/dev/null || true; wait; }' EXIT
trap 'exit 130' INT TERM HUP
for _ in $(seq "$JOBS"); do
    work &
    workers="$workers $!"
done
# shellcheck disable=SC2086 # words
for worker in $workers; do
    wait "$worker"
done
workers=

# Of all guests that have run, now or before.
awk -v unused="${whole:+$vm/unused}" -f scripts/vm/faults.awk -f scripts/vm/table.awk \
    "$logs"/*-*.log >"$vm/table.md"
echo "== $vm/table.md"
if [ -n "$whole" ]; then
    sed 's/^/scripts\/vm\/faults: /' "$vm/unused"
fi
if [ -n "${KEEP:-}" ]; then
    # The table of modes; that of tests stays in table.md.
    awk -v table="$vm/table.md" '
        /^<!-- end/ { within = 0 }
        !within { print }
        /^<!-- tables/ {
            within = 1
            print ""
            while ((getline line < table) > 0 && line !~ /^[|] test [|]/) print line
        }
    ' docs/vm.md >"$vm/page"
    cat "$vm/page" >docs/vm.md
fi
failed=$(find "$runs" -name failed | wc -l)
[ "$failed" -eq 0 ] || { echo "vm-test: tests failed in $failed guests" >&2 && exit 1; }
