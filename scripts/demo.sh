#!/bin/sh
# A lab, traffic through it, and captures at work: rates by method, then a file and its ledger.
# Takes about 10 s, leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
name=demo
. scripts/lab.sh

seconds=1

# shellcheck disable=SC2046 # a list of words
set -- $(cpus)
count=$#
if [ "$count" -gt 1 ]; then
    send_cpu=$1
    receive_cpu=$2
    shift
    # A fanout has one thread for each CPU except the sender's: two to four.
    threads=$(($# < 2 ? 2 : $# > 4 ? 4 : $#))
    fanout_cpus=$(echo "$@" | cut -d ' ' -f "1-$threads" | tr ' ' ,)
    where="on CPU $send_cpu; receivers on CPU $receive_cpu"
else
    send_cpu=
    threads=2
    where="on the CPU that the receivers have too"
fi

lab_up
choose_sender

model=$(awk -F ': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
echo
echo "Linux $(uname -r), ${model:-$(uname -m)}, $count CPU$([ "$count" -eq 1 ] || echo s)"
echo
sed -n '/┌/,/└/p' "$scratch/picture"
echo
echo "  sender     $sender_is"
echo "             $where"
echo
printf '  %-22s %10s %8s\n' "right0, received by" "Mpps" "lost"

# row NAME PPS LOST_PERCENT: prints a line with a bar. 32 characters are the rate without a receiver.
row() {
    awk -v what="$1" -v pps="$2" -v lost="$3" -v full="$unwatched" 'BEGIN {
        split("▏ ▎ ▍ ▌ ▋ ▊ ▉", part, " ")
        eighths = int(pps / full * 32 * 8 + 0.5)
        if (eighths > 40 * 8) eighths = 40 * 8
        for (; eighths >= 8; eighths -= 8) bar = bar "█"
        bar = bar part[eighths]
        if (lost != "") lost = sprintf(lost > 0 && lost < 0.05 ? "<0.1 %%" : "%.1f %%", lost)
        printf "  %-22s %10.2f %8s  %s\n", what, pps / 1e6, lost, bar
    }'
}

# Indents the output of a command, and names files as typed, without their folder.
shown() {
    awk -v folder="$scratch/" '{
        at = index($0, folder)
        if (at) $0 = substr($0, 1, at - 1) substr($0, at + length(folder))
        print "  " $0
    }'
}

# receive NAME PORT [FLAG…]: measures one method and prints its row.
receive() {
    what=$1
    shift
    send $((seconds + 5))
    sleep 0.2
    "$sluice" count --netns "$right" --duration "${seconds}s" --json "$@" \
        >"$scratch/count.json" 2>"$scratch/count.err" || {
        cat "$scratch/count.err" >&2
        die 1 "$what failed"
    }
    stop "$sender_pid"
    sender_pid=
    lost=$(awk -v whole="$(number in "$scratch/count.json")" \
        -v got="$(number out "$scratch/count.json")" \
        'BEGIN { print whole ? (whole - got) / whole * 100 : 0 }')
    row "$what" "$(number pps "$scratch/count.json")" "$lost"
}

before=$(sent)
send "$seconds"
wait "$sender_pid" || true
sender_pid=
unwatched=$(awk -v n="$(($(sent) - before))" -v s="$seconds" 'BEGIN { print n / s }')
awk -v pps="$unwatched" 'BEGIN { exit pps > 0 }' && die 1 "nothing was sent: $(cat "$scratch/sent")"
row "nobody" "$unwatched" ""

set -- ${receive_cpu:+--cpus "$receive_cpu"}
receive "recv" "packet:right0?method=recv" "$@"
receive "recvmmsg" "packet:right0?method=recvmmsg" "$@"
receive "ring" "packet:right0?method=ring" "$@"
receive "ring, fanout of $threads" "packet:right0?method=ring&fanout=hash" \
    --threads "$threads" ${fanout_cpus:+--cpus "$fanout_cpus"}
[ "$count" -gt 2 ] || echo "  (a fanout pays where the receivers have more than one CPU)"

file=$scratch/demo.pcapng
# A packet takes less than 100 bytes of the file. 5000 packets per MiB use half of the free space.
most=$(($(room_mib "$scratch") * 5000))
most=$((most > 5000000 ? 5000000 : most))
echo
echo "  \$ sluice capture right0 --duration ${seconds}s --count $most -w demo.pcapng"
echo
send $((seconds + 5))
sleep 0.2
"$sluice" capture right0 --netns "$right" --duration "${seconds}s" --count "$most" -w "$file" \
    ${receive_cpu:+--cpus "$receive_cpu"} >"$scratch/report" 2>"$scratch/capture.err" || {
    cat "$scratch/capture.err" >&2
    die 1 "the capture failed"
}
stop "$sender_pid"
sender_pid=
shown <"$scratch/report"
echo
echo "  \$ sluice capture pcap:demo.pcapng --count 3"
echo
"$sluice" capture "pcap:$file" --count 3 2>/dev/null | shown
if command -v capinfos >/dev/null; then
    echo
    echo "  \$ capinfos -cM demo.pcapng"
    echo
    capinfos -cM "$file" | shown
fi
echo
echo "The lab and the file are removed. Make a lab of your own, from this directory:"
echo "${SUDO_USER:+sudo }$sluice lab up"
