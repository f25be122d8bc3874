# Medians and spreads of one table's results, as Markdown. A result is a line with tabs between: table,
# what, Mpps, and where it receives also lost in percent and ns of CPU a packet. A ratio is to the
# reference in the same round, for the machine's moods last longer than a round.
#
#   awk -f table.awk -v table=NAME -v reference=WHAT RESULTS

BEGIN { FS = "\t" }

$1 == table {
    if (!runs[$2]++) names[++count] = $2
    if (NF > columns) columns = NF
    for (column = 3; column <= NF; column++) value[column, $2, runs[$2]] = $column
}

END {
    receives = columns > 3
    print "| | Mpps | min–max |" (receives ? " lost % | ns of CPU a packet |" : "") \
        " rate, to " reference " |"
    print "| --- | ---: | ---: |" (receives ? " ---: | ---: |" : "") " ---: |"
    for (i = 1; i <= count; i++) {
        what = names[i]
        line = sprintf("| %s | %.2f |", what, middle(3, what))
        line = line sprintf(" %.2f–%.2f |", least, most)
        if (receives) line = line sprintf(" %.1f | %.0f |", middle(4, what), middle(5, what))
        ratio = runs[reference] == runs[what] ? sprintf("%.2f", middle(3, what, reference)) : "–"
        print line " " ratio " |"
    }
}

# The median of a column, divided by that of `to` in each round; sets `least` and `most`.
function middle(column, what, to,   i, n, by, v) {
    n = runs[what]
    for (i = 1; i <= n; i++) {
        by = to == "" ? 1 : value[column, to, i]
        v[i] = by ? value[column, what, i] / by : 0
    }
    sort(v, n)
    least = v[1]
    most = v[n]
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

function sort(values, n,   i, j, x) {
    for (i = 2; i <= n; i++) {
        x = values[i]
        for (j = i - 1; j > 0 && values[j] > x; j--) values[j + 1] = values[j]
        values[j + 1] = x
    }
}
