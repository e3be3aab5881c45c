#!/usr/bin/env bash
# Runs the tests with random cases for SECONDS, each time with a different seed: tests/explore.sh SECONDS
#
# `make test` uses the same cases in every run (tests/stages.sh), so that its result depends only on the change under
# test. This script searches for failures that would occur once in a thousand runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:?usage: tests/explore.sh SECONDS}
# The modules with random cases, from their file names.
mapfile -t modules < <(grep -rl 'proptest! {' --include='*.rs' src tests/it \
    | sed -e 's,^src/,,' -e 's,^tests/it/,,' -e 's,\(/mod\)\?\.rs$,,' -e 's,/,::,g')
[ ${#modules[@]} -gt 0 ] || { echo "no test has random cases"; exit 1; }
cargo test --locked --lib --test it --no-run

end=$((SECONDS + seconds)) rounds=0
while [ $SECONDS -lt $end ]; do
    PROPTEST_RNG_SEED=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    export PROPTEST_RNG_SEED
    log=$(mktemp)
    cargo test --quiet --locked --lib --test it -- "${modules[@]}" >"$log" 2>&1 \
        || { tests/excerpt.sh "$log"; echo "found a failure; reproduce it with PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"; exit 1; }
    rm -f "$log"
    rounds=$((rounds + 1))
done
echo "explored: ${#modules[@]} modules, $rounds seeds, nothing found"
