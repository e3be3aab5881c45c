#!/usr/bin/env bash
# Runs every fuzz target in fuzz/ for SECONDS each: tests/fuzz.sh SECONDS [TARGET...]
#
# With FUZZ_SEED a target starts from the seeds in the repository only, and uses this number as its random seed. Without
# it, a target continues from the corpus of earlier runs with a new random seed.
#
# The flags are those of cargo-fuzz, which need not be installed. They are unstable: they work with a nightly toolchain,
# or with a stable one and RUSTC_BOOTSTRAP=1. A C++ compiler is required to build libFuzzer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:?usage: tests/fuzz.sh SECONDS [TARGET...]}
shift
[ -f fuzz/Cargo.toml ] || { echo "fuzz/Cargo.toml not found"; exit 77; }
command -v g++ >/dev/null || command -v c++ >/dev/null || { echo "no C++ compiler for libFuzzer"; exit 77; }
compgen -G "$(rustc --print target-libdir)/librustc*_rt.asan.*" >/dev/null \
    || { echo "this Rust toolchain has no AddressSanitizer"; exit 77; }
host=$(rustc -vV | sed -n 's/^host: //p')

export RUSTC_BOOTSTRAP=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_odr_violation=0}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address \
-Cdebug-assertions=on -Coverflow-checks=on"
cargo build --locked --release --manifest-path fuzz/Cargo.toml --target "$host" --bins

[ $# -gt 0 ] || set -- $(sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml)
for target in "$@"; do
    corpus=fuzz/corpus/$target
    options=()
    [ -z "${FUZZ_SEED:-}" ] || { corpus=$(mktemp -d); options+=("-seed=$FUZZ_SEED"); }
    mkdir -p "$corpus" "fuzz/artifacts/$target"
    log=$(mktemp)
    [ ! -d "fuzz/seeds/$target" ] || options+=("fuzz/seeds/$target")
    [ ! -f "fuzz/$target.dict" ] || options+=("-dict=fuzz/$target.dict")
    "$CARGO_TARGET_DIR/$host/release/$target" "$corpus" "${options[@]}" -max_len=4096 \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 \
        >"$log" 2>&1 || { tail -n 60 "$log"; echo "fuzz target $target found a failure (input in fuzz/artifacts/$target)"; exit 1; }
    echo "$target: $(grep 'cov: ' "$log" | tail -n 1 | tr -s '\t ' ' ')"
    echo "$target: $(tail -n 1 "$log")"
    rm -f "$log"
    [ -z "${FUZZ_SEED:-}" ] || rm -rf "$corpus"
done
