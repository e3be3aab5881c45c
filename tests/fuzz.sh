#!/usr/bin/env bash
# Runs every fuzz target in fuzz/ for SECONDS each: tests/fuzz.sh SECONDS [TARGET...]
#
# Needs neither cargo-fuzz nor a nightly compiler, only a C++ compiler for libFuzzer: our own crate alone is compiled with
# coverage, which stable flags do, and everything else is what `make test` has built already. There is no address
# sanitizer, because there is no unsafe code to watch; overflow checks and debug assertions are on.
set -euo pipefail

# Cargo calls this script in place of rustc: `fuzz.sh RUSTC ARGUMENTS...`.
if [ "${FUZZ_AS_RUSTC:-}" = yes ]; then
    if [[ " $FUZZ_CRATES " == *" $(sed -n 's/.*--crate-name \([^ ]*\).*/\1/p' <<<"$*") "* ]]; then
        exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing
    fi
    exec "$@"
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:?usage: tests/fuzz.sh SECONDS [TARGET...]}
shift
[ -f fuzz/Cargo.toml ] || { echo "there is no fuzz/Cargo.toml"; exit 77; }
command -v c++ >/dev/null || { echo "no C++ compiler for libFuzzer"; exit 77; }
all=$(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml | paste -sd ' ')

# Where the stage `build` has the same dependencies.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/rust-and-gcc
RUSTC_WRAPPER=$PWD/tests/fuzz.sh FUZZ_AS_RUSTC=yes FUZZ_CRATES="tokometer ${all//-/_}" \
    cargo build --manifest-path fuzz/Cargo.toml --bins \
    --config 'profile.dev.debug="line-tables-only"' --config 'profile.dev.package."*".debug=false' \
    --config 'profile.dev.package.tokometer.opt-level=3' --config 'profile.dev.package.tokometer-fuzz.opt-level=3'

[ $# -gt 0 ] || set -- $all
for target in "$@"; do
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    log=$(mktemp)
    options=()
    [ ! -d "fuzz/seeds/$target" ] || options+=("fuzz/seeds/$target")
    [ ! -f "fuzz/$target.dict" ] || options+=("-dict=fuzz/$target.dict")
    "$CARGO_TARGET_DIR/debug/$target" "fuzz/corpus/$target" "${options[@]}" -max_len=4096 \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        >"$log" 2>&1 || { tail -n 60 "$log"; echo "fuzz target $target found something (input in fuzz/artifacts/$target)"; exit 1; }
    echo "$target: $(grep -E '^Done|DONE' "$log" | paste -sd ' ')"
    rm -f "$log"
done
