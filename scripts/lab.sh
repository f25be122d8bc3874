# shellcheck shell=sh
# Sourced by demo.sh and demo-scrub.sh: a lab of its own with a sender in it, removed at any end. The caller sets `name`,
# and `send_cpu`, the sender's CPU, which may be empty.
# shellcheck disable=SC2034 # what is set here is used there

: "${name:?}"
release=${CARGO_TARGET_DIR:-target}/release
sluice=$release/sluice
lab=$name-$$
right=$lab-right
# Nobody's address, as on a mirror port: the host drops the packets early.
nobody=02:00:00:00:00:99
scratch=
sender_pid=

die() {
    echo "$name: $2" >&2
    exit "$1"
}

# Ends what was started here, by its number, and waits for it.
stop() {
    [ -n "$1" ] || return 0
    kill -"${2:-TERM}" "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

clean_up() {
    trap '' INT TERM HUP
    stop "$sender_pid"
    "$sluice" lab down --name "$lab" >/dev/null 2>&1 || true
    [ -z "$scratch" ] || rm -rf "$scratch"
}

lab_up() {
    [ "$(id -u)" -eq 0 ] || die 3 "a lab needs root: run it with sudo"
    [ -x "$sluice" ] || die 1 "there is no $sluice: run make $name"
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # The reader of the output may close it early.
    trap 'exit 141' PIPE
    # Files go to memory where there is room, so that no disk is measured.
    if [ "$(room_mib /dev/shm)" -ge 1024 ]; then
        scratch=$(mktemp -d "/dev/shm/sluice-$lab-XXXXXX")
    else
        scratch=$(mktemp -d)
    fi
    "$sluice" lab up --name "$lab" >"$scratch/picture" || exit $?
}

room_mib() {
    df -Pm "$1" 2>/dev/null | awk 'NR == 2 { room = $4 } END { print room + 0 }'
}

# The CPUs we may use, a word each.
cpus() {
    awk '/^Cpus_allowed_list/ {
        n = split($2, ranges, ",")
        for (i = 1; i <= n; i++) {
            split(ranges[i] "-" ranges[i], ends, "-")
            for (cpu = ends[1]; cpu <= ends[2]; cpu++) printf "%d ", cpu
        }
    }' /proc/self/status
}

# Sets `sender` to generate or trafgen, and `sender_is` to what it is and why.
choose_sender() {
    sender=generate
    sender_is="sluice generate, live frames of 60 bytes, the fastest there is here"
    send 0.05
    if wait "$sender_pid"; then
        sender_pid=
        return
    fi
    sender_pid=
    command -v trafgen >/dev/null || die 3 "$(cat "$scratch/sent"); and there is no trafgen"
    sender=trafgen
    sender_is="trafgen, 60 bytes ($(head -n 1 "$scratch/sent"))"
    trafgen_config >"$scratch/trafgen.cfg"
}

# Frames of 60 bytes for trafgen, to a destination that is nobody's.
trafgen_config() {
    cat <<END
{ eth(da=$nobody, sa=02:00:00:00:00:01), ipv4(saddr=198.18.0.1, daddr=198.18.0.2),
  udp(sp=dinc(1, 65535), dp=9), fill(0, 18) }
END
}

# send SECONDS: sends in the background, from one CPU, each packet from the next source port. Sets
# `sender_pid`; the sender's output goes to $scratch/sent.
send() {
    case $sender in
    generate) set -- "$sluice" generate left0 --method live --duration "$1" --json \
        --dmac "$nobody" --src 198.18.0.1 --dst 198.18.0.2 --sport 1..65535 --dport 9 ;;
    trafgen) set -- timeout -s INT "$1" \
        trafgen --dev left0 --conf "$scratch/trafgen.cfg" --cpus 1 --no-sock-mem ;;
    esac
    [ -z "$send_cpu" ] || set -- taskset -c "$send_cpu" "$@"
    "$sluice" lab exec --name "$lab" left -- "$@" >"$scratch/sent" 2>&1 &
    sender_pid=$!
}

# Packets that left0 has sent so far.
sent() {
    # shellcheck disable=SC2016 # awk's own
    "$sluice" lab exec --name "$lab" left -- awk '$1 == "left0:" { print $11 }' /proc/net/dev
}

# The first number of a name in a result of ours: number NAME FILE.
number() {
    awk -v name="\"$1\":" '{
        at = index($0, name)
        if (at) { print substr($0, at + length(name)) + 0; exit }
    }' "$2"
}
