#!/bin/sh
# A lab, a web server, a flood at it, and the scrubber before it: what reaches the host, and how long a page takes.
# Takes about 30 s, leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
name=demo-scrub
. scripts/lab.sh

files=docs/scrub-tutorial
server=
flood=
scrubber=

end() {
    trap '' INT TERM HUP
    stop "$flood" INT
    stop "$scrubber" INT
    stop "$server"
    clean_up
}

on() {
    "$sluice" lab exec --name "$lab" "$@"
}

# IP packets that the host `right` has received.
received() {
    # shellcheck disable=SC2016 # awk's own
    on right -- awk '/^Ip: [0-9]/ { print $4 }' /proc/net/snmp
}

# show TITLE: measures for 2 s what reaches the host, and fetches a page.
show() {
    begin=$(date +%s%N)
    before=$(received)
    sleep 2
    reached=$((($(received) - before) * 1000000000 / ($(date +%s%N) - begin)))
    page=$(on left -- curl -s -o /dev/null -m 5 -w '%{http_code} in %{time_total} s' \
        http://198.18.0.2:8000/policy.toml) || page="no answer"
    printf '  %-24s %10s packets/s   page: %s\n' "$1" "$reached" "$page"
}

command -v curl >/dev/null || die 3 "there is no curl"
lab_up
trap end EXIT
on right -- python3 -m http.server 8000 --directory "$files" >/dev/null 2>&1 &
server=$!
on left -- curl -s -o /dev/null --retry 20 --retry-delay 1 --retry-connrefused http://198.18.0.2:8000/ ||
    die 1 "the web server does not answer"

echo
echo "What reaches the host right:"
echo
show "in peace"
timeout 40 "$sluice" generate left0 --netns "$lab-left" --spec "$files/flood.toml" --rate 50kpps \
    --duration 30s >"$scratch/flood" 2>&1 &
flood=$!
sleep 1
kill -0 "$flood" 2>/dev/null || die 1 "$(cat "$scratch/flood")"
show "under a flood"
"$sluice" scrub run right0 --netns "$right" --policy "$files/policy.toml" --name "$lab" \
    >"$scratch/scrub" 2>&1 &
scrubber=$!
until "$sluice" scrub status --name "$lab" >/dev/null 2>&1; do
    kill -0 "$scrubber" 2>/dev/null || die 1 "$(cat "$scratch/scrub")"
    sleep 0.2
done
sleep 1
show "with sluice scrub"
show "the same client again"
echo
echo "  \$ sluice scrub status"
echo
"$sluice" scrub status --name "$lab" | sed 's/^/  /'
echo
echo "The lab is removed. Step by step: docs/scrub-tutorial.md"
