#!/usr/bin/env bash
# Runs the tests that draw their cases at random for SECONDS, each time with another seed: tests/explore.sh SECONDS
#
# `make test` draws the same cases in every run (tests/stages.sh), so that it judges a change by what the change does. What it would
# find once in a thousand runs is looked for here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:?usage: tests/explore.sh SECONDS}
# The modules in which such tests stand, from the names of their files.
mapfile -t modules < <(grep -rl 'proptest! {' --include='*.rs' crates src tests/it \
    | sed -e 's,^crates/[a-z]*/src/,,' -e 's,^src/,,' -e 's,^tests/it/,,' -e 's,\(/mod\)\?\.rs$,,' -e 's,/,::,g')
[ ${#modules[@]} -gt 0 ] || { echo "no test draws its cases at random"; exit 1; }
cargo test --locked --workspace --lib --test it --no-run

end=$((SECONDS + seconds)) rounds=0
while [ $SECONDS -lt $end ]; do
    PROPTEST_RNG_SEED=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    export PROPTEST_RNG_SEED
    log=$(mktemp)
    cargo test --quiet --locked --workspace --lib --test it -- "${modules[@]}" >"$log" 2>&1 \
        || { tests/excerpt.sh "$log"; echo "found something; draw it again with PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"; exit 1; }
    rm -f "$log"
    rounds=$((rounds + 1))
done
echo "explored: ${#modules[@]} modules, $rounds seeds, nothing found"
