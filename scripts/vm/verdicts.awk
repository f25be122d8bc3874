# awk -f faults.awk -f verdicts.awk -v kernel=K -v driver=D LOG: a line for each test of a guest; fails if
# one failed that is not known to, if one passed that is known to fail, if one has no end, or if the
# guest ran none or did not come to its end.
function died() {
    if (within == "") return
    print "DIED    " within
    bad = 1
}

/^vm: begin / { died(); said = ""; within = $3 " " $4 }
{ said = said $0 "\n" }

is_end($0) && $3 " " $4 == within {
    result = verdict(kernel, driver, within, $5, said)
    if (result !~ /^(ok|skipped|driver)$/) bad = 1
    if (result == "mended") result = "MENDED, so scripts/vm/faults is to forget it:"
    if (result == "failed" || result == "hung") result = toupper(result)
    printf "%-7s %s (%s s)\n", result, within, $6
    within = ""
    ran++
}

/^vm: cannot / { print; bad = 1 }
/^vm: done/ { done = 1 }

END {
    died()
    if (!ran) print "no test ran: look whether there is one by the name of TESTS, and at the log"
    if (!done) print "the guest did not come to its end"
    exit bad || !ran || !done
}
