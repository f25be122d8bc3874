#!/bin/sh
# Finds wordings that hide the actor or that a newcomer cannot grep or guess, in comments, documents,
# help and errors. Prints each with the rule; exits with 1 if it finds one.
#
#   scripts/language.sh [FILE | FOLDER]...
set -eu
cd "$(dirname "$0")/.."
# A name that matches nothing is an error, not a pass.
[ $# -eq 0 ] || git ls-files --error-unmatch -- "$@" >/dev/null

# ls leaves out files that are in the index but were deleted.
# shellcheck disable=SC2016 # a program of awk
git ls-files -z --cached --others --exclude-standard -- "$@" |
    grep -zE '(\.(rs|c|h|md|sh|toml)|Makefile)$' | grep -zvE '^(CHANGELOG\.md|scripts/language\.sh)$' |
    xargs -0 -r ls -d 2>/dev/null | xargs -r -d '\n' awk '
    function found(rule) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, $0
        status = 1
    }
    FNR == 1 { in_comment = 0 }
    # A line of code wraps into the next, so words are looked for in each line alone.
    /(^|[^a-zA-Z])[Ss]o many([^a-zA-Z]|$)/ { found("\"so many\": give the number") }
    /[Ii]n vain/ { found("\"in vain\": without success") }
    /[^a-zA-Z]for good[^a-zA-Z]/ { found("\"for good\": permanently") }
    /said aloud/ { found("\"said aloud\": printed, reported") }
    /([Tt]hat|[Ww]hat) cannot be([^ a-zA-Z]|$)/ { found("\"that cannot be\": invalid") }
    /(^|[^a-zA-Z])(is|are|was|were) there([^a-zA-Z]|$)/ { found("\"is there\": exists") }
    /(^|[^a-zA-Z])gone([^a-zA-Z]|$)/ { found("\"gone\": removed, exited, closed") }
    /(^|[^a-zA-Z])[Ww]hoever([^a-zA-Z]|$)/ { found("\"whoever\": name the actor") }
    /([.;:] |^ *|\/\/[\/!]? |\| )Whos?e? / { found("\"Who\" as a subject: name the actor") }
    /(of|for|from|to|by|beside|with|than|and|or|behind|but|as|so|that|what|tells?|says?|looks?|asks?|knows?)[,]? whos?e? / { found("\"who\" as a subject: name the actor") }
    /(has|have|had) (the|a|an|it|them|all|its|each)( [a-z]+)? (do|start|begin|take|wait|look|send|ask|go|enter|run|use|get|be)([^a-z]|$)/ {
        found("\"has X do Y\": makes X do Y")
    }
    /unless it be/ { found("\"unless it be\": if not") }
    {
        comment = /^[ \t]*\/\/[\/!]/
        # The first line of a doc comment says on its own what the item is or does.
        if (comment && !in_comment && /^[ \t]*\/\/[\/!] (The same|Of (the|a|an|these|those|all|which|two)|What|Whos?e?|Whether|Like)([^a-zA-Z]|$)/)
            found("first line: say what the item is or does")
        in_comment = comment
    }
    END { exit status }' || exit 1
