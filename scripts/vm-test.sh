#!/bin/sh
# Runs the conformance suite and the tests of XDP on drivers in QEMU: on other kernels, with the drivers of
# emulated cards, and on veth, which also has the tests of generated programs, of ports on the host's
# side, and of the scrubber. Several guests run side by side, without a network of the host's. Writes
# target/vm/table.md, of all guests that have run; KEEP=1 puts its first table, the modes, into docs/vm.md.
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
# A guest uses a CPU half of the time, so one more than there are CPUs.
JOBS=${JOBS:-$(($(nproc) + 1))}
case $JOBS in
'' | *[!0-9]* | 0*)
    echo "vm-test: JOBS=$JOBS: give the number of guests that run at once, at least 1" >&2
    exit 2
    ;;
esac
# Time limits of one test and of one guest.
TEST_SECONDS=${TEST_SECONDS:-300}
GUEST_SECONDS=${GUEST_SECONDS:-2400}
# A guest that prints nothing for this time is restarted, once, because an emulated clock may stop.
BOOT_SECONDS=${BOOT_SECONDS:-240}

# Checks the list of known faults first, because the rest takes long.
awk -f scripts/vm/faults.awk

export KERNELS
scripts/setup.sh --vm
vm=$(cd "${CARGO_TARGET_DIR:-target}/vm" && pwd)
# Lists of words and the kernel's command line contain these paths.
case $vm$PWD in
*[!A-Za-z0-9/._+-]*)
    echo "vm-test: $vm and $PWD: use paths of letters, digits and . _ + - (see CARGO_TARGET_DIR)" >&2
    exit 2
    ;;
esac
logs=$vm/logs
# Each guest has a folder runs/KERNEL-DRIVER.
runs=$vm/runs
rm -rf "$vm/tests" "$runs"
mkdir -p "$logs" "$vm/tests" "$runs"

# The tests are built here and run in the guests, which see this machine's files. They are copied, because
# another build would change them under a guest.
programs=
cargo test --package sluicegate --test wire --test xdp --test live --test host --test tap \
    --package sluicegate-traffic --test spec --test analyse \
    --package sluicegate-scrub --test differential --test limits --test marks --test reloads \
    --test return_path --test tcp --test traffic --test udp --no-run \
    --message-format=json-render-diagnostics >"$vm/built"
built=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$vm/built")
for program in $built; do
    cp "$program" "$vm/tests"
    programs="$programs $vm/tests/$(basename "$program")"
done
for kernel in $KERNELS; do
    scripts/vm/initramfs.sh "$vm/kernel-$kernel" >"$runs/image-$kernel"
done

# pairs DRIVER: prints the number of queue pairs of each card on a wire of TAP devices; nothing if the wire
# is QEMU's own hub. The hub has one queue, and reorders packets when virtio_net lacks buffers.
pairs() {
    case $1 in
    *:*) echo "${1#*:}" ;;
    virtio_net) echo 1 ;;
    esac
}

# devices DRIVER: prints QEMU's flags for two cards on one wire.
devices() {
    case $1 in
    veth) return ;;
    # Zero-copy needs a card that uses the kernel's DMA interface.
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

# hangs KERNEL DRIVER: prints the tests that are known to block the guest's interface permanently.
hangs() {
    awk -F ' [|] ' -v kernel=" $1 " -v driver=" $2 " \
        '$4 == "hangs" && index(" " $1 " ", kernel) && index(" " $2 " ", driver) { print $3 }' \
        scripts/vm/faults
}

# comes_up CONSOLE: waits until the guest runs its tests or has ended; fails after BOOT_SECONDS.
comes_up() {
    for _ in $(seq "$BOOT_SECONDS"); do
        ! grep -aq "vm: kernel" "$1" || return 0
        kill -0 "$guest" 2>/dev/null || return 0
        sleep 1
    done
    return 1
}

# boot KERNEL DRIVER: runs one guest until its end, and writes its console to a log.
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
    for _ in 1 2; do
        # The file exists before the guest writes to it: comes_up reads it.
        : >"$run/raw"
        # In the background, because a shell handles no signal while it waits for a foreground process.
        # shellcheck disable=SC2046,SC2086 # words, or none
        timeout "$GUEST_SECONDS" nice $wire qemu-system-x86_64 \
            -machine q35 -accel tcg -cpu max -smp 2 -m 3G \
            -nographic -no-reboot -nic none \
            -kernel "$(cat "$runs/image-$1")" -initrd "$vm/kernel-$1/initramfs" \
            -append "console=ttyS0 quiet panic=-1 no_timer_check vm_modules=${2%:*} vm_job=$run/job vm_run=$PWD/scripts/vm/guest.sh" \
            -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
            $(devices "$2") </dev/null >"$run/raw" 2>&1 &
        guest=$!
        comes_up "$run/raw" && break
        echo "vm-test: the guest printed nothing for $BOOT_SECONDS s; restarting it"
        kill "$guest"
        wait "$guest" || true
    done
    wait "$guest" || echo "vm-test: QEMU failed with status $?"
    guest=
    tr -d '\r\000' <"$run/raw" >"$logs/$1-$2.log"
}

# test_guest KERNEL DRIVER: runs one guest and prints a line for each test; fails if one failed.
test_guest() {
    echo "== Linux $1, $2"
    if [ -n "$(pairs "$2")" ] && ! scripts/vm/wire.sh 1 true; then
        echo "vm-test: skipped: a wire of TAP devices needs root or user namespaces"
        return
    fi
    boot "$1" "$2"
    awk -f scripts/vm/faults.awk -f scripts/vm/verdicts.awk -v kernel="$1" -v driver="$2" \
        "$logs/$1-$2.log"
}

# Runs guests one after the other. A worker takes a guest by making its folder, so that no other worker
# runs it, and prints the guest's results in one piece.
work() {
    guest=
    # Ends the guest after ^C too.
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
            test_guest "$kernel" "$driver" >"$run/said" 2>&1 || touch "$run/failed"
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

# The tables of all guests that have run, now or earlier.
awk -v unused="${whole:+$vm/unused}" -f scripts/vm/faults.awk -f scripts/vm/table.awk \
    "$logs"/*-*.log >"$vm/table.md"
echo "== $vm/table.md"
if [ -n "$whole" ]; then
    sed 's/^/scripts\/vm\/faults: /' "$vm/unused"
fi
if [ -n "${KEEP:-}" ]; then
    # Only the first table, of modes.
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
