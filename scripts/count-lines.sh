#!/bin/sh
# Counts lines of code outside tests, Rust and C, and the files they are in: of a commit, or of the working
# tree. Blank lines, comments, tests, examples and fuzz targets do not count.
#
#   scripts/count-lines.sh [COMMIT]
set -eu
cd "$(dirname "$0")/.."

commit=${1:-}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM HUP
if [ -n "$commit" ]; then
    git archive "$commit" | tar -x -C "$tree"
else
    git ls-files -z --cached --others --exclude-standard | xargs -0 -r ls -d 2>/dev/null |
        tar -c -T - | tar -x -C "$tree"
fi
cd "$tree"
find . \( -name '*.rs' -o -name '*.c' -o -name '*.h' \) ! -path '*/tests/*' ! -name tests.rs \
    ! -path './fuzz/*' ! -path '*/examples/*' -print0 | sort -z | xargs -0 awk '
    FNR == 1 { files++; skip = 0 }
    # An item for tests: up to its end in the first column, or a module elsewhere in one line.
    /^#\[cfg\((all\()?test/ { skip = 1 }
    !skip && !/^[ \t]*(\/\/|$)/ { lines++ }
    skip && (/^}/ || /;$/ && /^(pub(\([a-z]+\))? )?(mod|use) /) { skip = 0 }
    END { printf "%d lines in %d files\n", lines, files }'
