# faults.awk, beside another program or alone: what the end of a test means, by the list of known
# faults. A row of that list that is not whole ends the program.
BEGIN { read_faults(faults ? faults : "scripts/vm/faults") }

# A test without its modules: it may move to another.
function plain(test) {
    sub(/ .*::/, " ", test)
    return test
}

function why_it_fails(kernel, driver, test) {
    return fault_why[kernel, driver, plain(test)]
}

function read_faults(file,    line, row, field, kernels, drivers, n, m, i, j, key) {
    while ((getline line < file) > 0) {
        row++
        if (line ~ /^(#|$)/) continue
        if (!is_whole(split(line, field, / \| /), field)) {
            print file ":" row ": six fields are wanted, and a known way to fail: " line >"/dev/stderr"
            exit 2
        }
        n = split(field[1], kernels, " ")
        m = split(field[2], drivers, " ")
        for (i = 1; i <= n; i++)
            for (j = 1; j <= m; j++) {
                key = kernels[i] SUBSEP drivers[j] SUBSEP field[3]
                fault_how[key] = field[4]
                fault_sign[key] = field[5]
                fault_why[key] = field[6]
            }
    }
    close(file)
}

function is_whole(n, field,    i) {
    for (i = 1; i <= n; i++) if (field[i] ~ /^ *$/) return 0
    return n == 6 && field[4] ~ /^(fails|may fail|hangs)$/
}

# Which rows no test has ended for, into a file.
function print_unused_faults(file,    key, part) {
    printf "" >file
    for (key in fault_how) {
        if (key in fault_used) continue
        split(key, part, SUBSEP)
        print "a known fault of no test that ran: " part[1] " | " part[2] " | " part[3] >file
    }
    close(file)
}

# The end of a test, or nothing; in a line that something else was written into it is none.
function is_end(line) {
    return line ~ /^vm: end [^ ]+ [^ ]+ [0-9]+ [0-9]+$/
}

# "ok", "skipped", "failed", "hung"; "driver" for what is known and fails as it is known to; "mended"
# for what passes though it is listed. `said` is what the test said.
function verdict(kernel, driver, test, status, said,    key, result) {
    result = status == 0 ? "ok" : status == 137 ? "hung" : "failed"
    key = kernel SUBSEP driver SUBSEP plain(test)
    if (key in fault_how) fault_used[key]
    if (result == "ok" && said ~ /\nskipped: /) return "skipped"
    if (!(key in fault_how)) return result
    if (result == "ok") return fault_how[key] == "may fail" ? "ok" : "mended"
    if ((result == "hung") == (fault_how[key] == "hangs") && said ~ fault_sign[key]) return "driver"
    return result
}
