# awk -f faults.awk -f verdicts.awk -v kernel=K -v driver=D LOG: a line for each test of a guest; fails if
# one failed that is not known to, if one passed that is known to fail, or if the guest did not end.
/^vm: begin / { said = ""; within = $3 " " $4 }
{ said = said $0 "\n" }

/^vm: end / {
    result = verdict(kernel, driver, $3 " " $4, $5, said)
    if (result != "ok" && result != "driver") bad = 1
    if (result == "mended") result = "MENDED, so scripts/vm/faults is to forget it:"
    if (result == "failed" || result == "hung") result = toupper(result)
    printf "%-7s %s %s (%s s)\n", result, $3, $4, $6
    within = ""
}

/^vm: done/ { done = 1 }

END {
    if (within) print "DIED    " within
    if (!done) print "the guest did not come to its end"
    exit bad || !done
}
