# awk -f faults.awk -f table.awk KERNEL-DRIVER.log...: the tables of modes (docs/vm.md) and of tests from
# the logs of guests. With -v unused=FILE, which known faults no test was seen for, into that.
BEGIN { FS = " \\| " }

FNR == 1 {
    run = FILENAME
    sub(/.*\//, "", run)
    sub(/\.log$/, "", run)
    kernel = driver = run
    sub(/-.*/, "", kernel)
    sub(/[^-]*-/, "", driver)
    if (!(kernel in kernels)) { kernels[kernel]; kernel_of[++n_kernels] = kernel }
    if (!(driver in drivers)) { drivers[driver]; driver_of[++n_drivers] = driver }
    runs[run]
}

# The firmware has left the cursor where it pleased.
/vm: kernel / { sub(/.*vm: kernel /, ""); version[kernel] = $0 }
/^vm: begin / {
    split($0, word, " ")
    begun = word[3] " " word[4]
    see(begun, "died")
    words = ""
}
{ words = words $0 "\n" }

is_end($0) {
    split($0, word, " ")
    if (word[3] " " word[4] == begun) see(begun, verdict(kernel, driver, begun, word[5], words))
}

# What a test was seen to do in this run. It has one row, wherever it has moved.
function see(test, result) {
    results[test, run] = result
    if (test in tests) return
    tests[test]
    all_of[plain(test)] = all_of[plain(test)] test "\n"
    if (!(plain(test) in rows)) { rows[plain(test)]; row_of[++n_rows] = plain(test) }
}

# Of those of one name, the one that did worst.
function result_of(row, run,    n, i, all, result, worst) {
    n = split(all_of[row], all, "\n")
    for (i = 1; i < n; i++) {
        result = ((all[i], run) in results) ? results[all[i], run] : ""
        if (worst == "" || rank(result) > rank(worst)) worst = result
    }
    return worst
}

function rank(result) {
    return result == "" ? 0 : result == "ok" ? 1 : result == "skipped" ? 2 : result == "driver" ? 3 : 4
}

# asked | got | came | went | why
/^table: / {
    sub(/^table: /, "", $1)
    cell = $2 == "refused" ? "no" : $2
    if ($2 != "refused") {
        complete = 0
        split($3, came, " of ")
        split($4, went, " of ")
        if (came[1] == came[2] && went[1] == went[2]) complete = 1
        if (!complete) cell = cell ", **" $3 " came, " $4 " went**"
    }
    if ($5 != "") cell = cell " [" note($5) "]"
    mode[$1, run] = cell
}

# Why, without the port's name.
/^left out: / { sub(/^left out: /, ""); remember("left out", substr($0, index($0, ": ") + 2)) }
# How many came to a queue differs from run to run; whether any did, not.
/^seen: / {
    sub(/^seen: /, "")
    at = index($0, "by queue")
    if (at) {
        tail = substr($0, at)
        gsub(/: [1-9][0-9]*/, ": some", tail)
        $0 = substr($0, 1, at - 1) tail
    }
    remember("seen", $0)
}
/^skipped: / { sub(/^skipped: /, ""); remember("skipped", $0) }

function note(text) {
    gsub(/ \(os error [0-9]+\)/, "", text)
    if (!(text in notes)) { notes[text] = ++n_notes; note_of[n_notes] = text }
    return notes[text]
}

function join(one, other) {
    return one == "" || other == "" ? one other : one "; " other
}

# What was said, and in which runs; numbers that differ from run to run are taken out.
function remember(kind, text) {
    sub(/ after [0-9.]+[a-zµ]+$/, "", text)
    gsub(/ \(os error [0-9]+\)/, "", text)
    if (!((kind, text) in said)) { order[kind, ++count[kind]] = text }
    if (index(said[kind, text], run ";") == 0) said[kind, text] = said[kind, text] run ";"
}

function list(kind, title,    i, text, where) {
    if (count[kind] == 0) return
    printf "\n%s\n\n", title
    for (i = 1; i <= count[kind]; i++) {
        text = order[kind, i]
        where = said[kind, text]
        sub(/;$/, "", where)
        gsub(/;/, ", ", where)
        printf "- `%s` (%s)\n", text, where
    }
}

END {
    printf "Kernels:"
    for (i = 1; i <= n_kernels; i++) printf "%s %s", (i > 1 ? "," : ""), version[kernel_of[i]]
    print "\n\n| kernel | driver | no mode named | zero-copy | copy | native | skb |"
    print "| --- | --- | --- | --- | --- | --- | --- |"
    split("(none) zero-copy copy native skb", modes, " ")
    for (i = 1; i <= n_kernels; i++)
        for (j = 1; j <= n_drivers; j++) {
            run = kernel_of[i] "-" driver_of[j]
            if (!(run in runs)) continue
            printf "| %s | %s |", kernel_of[i], driver_of[j]
            for (m = 1; m <= 5; m++) printf " %s |", ((modes[m], run) in mode) ? mode[modes[m], run] : "?"
            print ""
        }
    print ""
    for (i = 1; i <= n_notes; i++) printf "%d. %s\n", i, note_of[i]
    n_said = n_notes

    printf "\n| test |"
    for (j = 1; j <= n_drivers; j++) printf " %s |", driver_of[j]
    printf "\n| --- |"
    for (j = 1; j <= n_drivers; j++) printf " --- |"
    print ""
    for (t = 1; t <= n_rows; t++) {
        printf "| %s |", row_of[t]
        for (j = 1; j <= n_drivers; j++) {
            good = bad = known = left = ""
            n_good = n_left = 0
            for (i = 1; i <= n_kernels; i++) {
                result = result_of(row_of[t], kernel_of[i] "-" driver_of[j])
                if (result == "ok") good = good (n_good++ ? ", " : "") kernel_of[i]
                else if (result == "skipped") left = left (n_left++ ? ", " : "") kernel_of[i]
                else if (result == "driver") {
                    why = why_it_fails(kernel_of[i], driver_of[j], row_of[t])
                    known = known (known ? ", " : "") kernel_of[i] " driver [" note(why) "]"
                } else if (result != "") bad = bad (bad ? ", " : "") kernel_of[i] " " result
            }
            # Not each guest has run each test.
            if (n_good == n_kernels) good = "ok"
            else if (n_good > 0) good = "ok " good
            if (n_left > 0) left = "skipped" (n_left == n_kernels ? "" : " " left)
            bad = bad ? "**" bad "**" : ""
            printf " %s |", join(join(join(bad, known), good), left)
        }
        print ""
    }
    if (n_notes > n_said) print "\n`driver`: it fails by a known fault of the driver, proven without Sluice.\n"
    for (i = n_said + 1; i <= n_notes; i++) printf "%d. %s\n", i, note_of[i]
    list("skipped", "Skipped:")
    list("left out", "Left out, as the driver or the kernel refused:")
    list("seen", "Seen:")
    if (unused) print_unused_faults(unused)
}
