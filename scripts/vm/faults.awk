# faults.awk, beside another program: what the end of a test means, by the list of known faults.
BEGIN { read_faults(faults ? faults : "scripts/vm/faults") }

function why_it_fails(kernel, driver, test) {
    sub(/ .*::/, " ", test)
    return fault_why[kernel, driver, test]
}

function read_faults(file,    line, field, kernels, drivers, n, m, i, j, key) {
    while ((getline line < file) > 0) {
        if (line ~ /^(#|$)/) continue
        split(line, field, / \| /)
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

# "ok", "failed", "hung"; "driver" for what is known and fails as it is known to; "mended" for what
# passes though it is listed. `said` is what the test said. The list has tests without their modules.
function verdict(kernel, driver, test, status, said,    key, result) {
    sub(/ .*::/, " ", test)
    result = status == 0 ? "ok" : status == 137 ? "hung" : "failed"
    key = kernel SUBSEP driver SUBSEP test
    if (!(key in fault_how)) return result
    if (result == "ok" && (fault_how[key] == "may fail" || said ~ /\nskipped: /)) return "ok"
    if (result == "ok") return "mended"
    if ((result == "hung") == (fault_how[key] == "hangs") && said ~ fault_sign[key]) return "driver"
    return result
}
