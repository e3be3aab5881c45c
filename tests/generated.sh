#!/usr/bin/env bash
# The files in the tree that the program itself writes: `check` compares them, `write` writes them anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in check | write) action=$1 ;; *) echo "usage: tests/generated.sh check|write" >&2; exit 2 ;; esac

# File, then the arguments of tokometer that print it.
table() {
    cat <<TABLE
config/default.yaml config --print-default
config/schema.json config --schema
docs/CONFIG.md config --reference
docs/METRICS.md metrics
TABLE
}

cargo build --locked --quiet --bin tokometer
binary=${CARGO_TARGET_DIR:-target}/debug/tokometer
stale=0
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
while read -r file arguments; do
    mkdir -p "$fresh/$(dirname "$file")"
    # shellcheck disable=SC2086 # The arguments are words.
    "$binary" $arguments >"$fresh/$file"
    if [ "$action" = write ]; then
        mkdir -p "$(dirname "$file")"
        cp "$fresh/$file" "$file"
        echo "wrote $file"
    elif diff -u "$file" "$fresh/$file" >"$fresh/diff" 2>&1; then
        echo "$file is what 'tokometer $arguments' prints"
    else
        head -n 40 "$fresh/diff"
        echo "$file is stale: run 'make docs'"
        stale=1
    fi
done < <(table)
exit $stale
