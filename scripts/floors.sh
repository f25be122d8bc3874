#!/bin/sh
# Checks that each crate of the workspace depends only on crates that stand before it in the list of
# members (Cargo.toml), as docs/design.md shows its layers.
set -eu
cd "$(dirname "$0")/.."

below=
status=0
for crate in $(sed -n 's/^members = \[\(.*\)\]$/\1/p' Cargo.toml | tr -d '",'); do
    # shellcheck disable=SC2013 # a line is a word
    for dependency in $(sed -n 's/^\(sluicegate[a-z-]*\)\.workspace = true$/\1/p' "$crate/Cargo.toml"); do
        case " $below " in
        *" $dependency "*) ;;
        *)
            echo "floors: $crate depends on $dependency, which is not below it" >&2
            status=1
            ;;
        esac
    done
    below="$below $(sed -n 's/^name = "\(.*\)"$/\1/p' "$crate/Cargo.toml" | head -n 1)"
done
# An empty list would pass whatever the crates do.
case " $below " in
*" sluicegate-base "*" sluicegate-cli "*) ;;
*) echo "floors: no list of members in Cargo.toml" >&2; status=1 ;;
esac
exit $status
