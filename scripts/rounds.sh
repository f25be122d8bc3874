# shellcheck shell=sh
# For bench.sh and bench-send.sh, which read it in after lab.sh: rounds in which everybody has a turn,
# and tables of their medians. RUNS is how many, SECONDS how long each sends.
# shellcheck disable=SC2034,SC2154 # what is set here is used there, and the other way round

runs=${RUNS:-5}
# shellcheck disable=SC3028 # where it is the shell's own clock it stands at 0 here
seconds=${SECONDS:-3}
[ "$seconds" != 0 ] || seconds=3
for value in "$runs" "$seconds"; do
    case $value in '' | *[!0-9]* | 0* | ????*) die 2 "RUNS and SECONDS are numbers, 1 to 999" ;; esac
done
# shellcheck disable=SC2046 # a list of words
set -- $(cpus)
[ $# -gt 1 ] || die 1 "two CPUs are needed: one sends, one receives"
send_cpu=$1
receive_cpu=$2

rounds() {
    turn=1
    while [ "$turn" -le "$runs" ]; do
        echo "$name: round $turn of $runs" >&2
        round
        turn=$((turn + 1))
    done
}

# table NAME TITLE REFERENCE: a table of the results whose lines begin with its name.
table() {
    grep -q "^$1	" "$results" || return 0
    printf '\n### %s\n\n' "$2"
    awk -f scripts/table.awk -v table="$1" -v reference="$3" "$results"
}

about_machine() {
    model=$(awk -F ': ' '/^model name/ { print $2; exit }' /proc/cpuinfo)
    cat <<END
- machine: $(nproc) CPUs, ${model:-$(uname -m)}, $(systemd-detect-virt 2>/dev/null || true)
- kernel: $(uname -sr)
- date: $(date +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)
END
}
