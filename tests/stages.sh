#!/usr/bin/env bash
# The stages of `make test`. Without arguments all of them run; with names only those (`tests/stages.sh live`).
#
# A stage passes, fails, or is skipped if this machine cannot run it (`SKIP name: reason`). A skipped stage never counts
# as passed. With CI=true it counts as failed, because a CI machine can have all requirements, except for root's
# namespaces (test-cluster) and a memory cgroup (hostile-cgroup).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

readonly SKIPPED=77 # The exit code of a skipped stage; its last line is the reason.
cache=${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}
# A separate directory, so that artifacts compiled with other tools on PATH are not reused.
bare_target=${CARGO_TARGET_DIR:-$PWD/target}/rust-and-gcc
# The binary for the live stages.
export TOKOMETER_BIN=${TOKOMETER_BIN:-$bare_target/debug/tokometer}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
# Random numbers are the same in every run, so that results depend only on the change under test. `make explore` and
# `make fuzz` use new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
mkdir -p "$cache"
# Tests of the stage integration that print a table for human readers: `make tables`.
readonly tables=(
    recognition::an_engine_is_named_right_or_not_at_all
    slo::run::recordings_match_the_reference
    truth::counts::counts_equal_the_engines_own_counters_or_are_marked_as_lower_bounds
    truth::outcomes::every_recording_ends_in_the_outcome_that_its_recorder_saw
    truth::queue::queue_times_are_the_engines_own_and_queue_time_md_says_so
)

# Prints a PATH with every program of this machine, except the build tools that a fresh machine lacks.
bare_path() {
    local dir=$1 directory program name
    rm -rf "$dir"
    mkdir -p "$dir"
    local IFS=:
    for directory in $PATH; do
        for program in "${directory:-.}"/*; do
            name=${program##*/}
            case $name in
            cmake* | ccmake* | ctest* | cpack* | go | gofmt | protoc* | buf | clang* | llvm-config* | nasm | ninja) continue ;;
            esac
            [ -x "$program" ] && [ -f "$program" ] && [ ! -e "$dir/$name" ] && ln -s "$program" "$dir/$name"
        done
    done
    printf '%s' "$dir"
}

stage_format() { cargo fmt --check; }

stage_lint() {
    cargo clippy --locked --workspace --all-targets -- -D warnings || return
    local long
    long=$(find src crates tests benches fuzz -name '*.rs' -not -path '*/target/*' -print0 | xargs -0 wc -l | awk '$1 > 600 && $2 != "total"')
    [ -z "$long" ] || { printf 'files of more than 600 lines:\n%s\n' "$long"; return 1; }
}

stage_build() {
    local bare lock hidden
    lock=$(cat Cargo.toml crates/*/Cargo.toml Cargo.lock | cat - $(find vendor -type f | sort) | cksum)
    if [ "$(cat "$bare_target/lock" 2>/dev/null)" != "$lock" ]; then
        rm -rf "$bare_target"
        mkdir -p "$bare_target"
        printf '%s\n' "$lock" >"$bare_target/lock"
    fi
    bare=$(mktemp -d)
    (
        PATH=$(bare_path "$bare/bin")
        export PATH
        unset CMAKE PROTOC CLANG_PATH LIBCLANG_PATH LLVM_CONFIG_PATH
        for hidden in cmake go protoc clang; do
            if command -v "$hidden" >/dev/null; then
                echo "$hidden is still on PATH"
                exit 1
            fi
        done
        echo "cmake, go, protoc and clang are hidden; $(cargo --version), $(gcc --version | head -n 1)"
        cargo build --locked --bin tokometer --target-dir "$bare_target"
    )
    local code=$?
    rm -rf "$bare"
    return $code
}

stage_unit() { cargo test --locked --workspace --lib --bins; }

# The output of passing tests is left out, so that a failure is easy to find.
stage_integration() { cargo test --locked --test it; }

stage_tables() {
    local shown
    shown=$(cargo test --locked --test it -- --show-output --exact "${tables[@]}")
    local code=$?
    printf '%s\n' "$shown"
    [ $code = 0 ] || return $code
    # A name without a test passes, too.
    [[ $shown == *" ${#tables[@]} passed;"* ]] || { echo "error: \`tables\` in tests/stages.sh contains an unknown test"; return 1; }
}

# Attacks on an optimised binary, because CPU time is asserted.
hostile() {
    cargo build --locked --profile quick --bin tokometer || return
    TOKOMETER_BIN=${CARGO_TARGET_DIR:-$PWD/target}/quick/tokometer cargo test --locked --test hostile -- "$@"
}

stage_hostile() { hostile; }

stage_hostile_cgroup() {
    local code
    hostile --cgroup 64MiB
    code=$?
    [ $code != $SKIPPED ] || echo "cannot create a memory cgroup (needs root)"
    return $code
}

stage_doc() { cargo test --locked --workspace --doc && RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps; }

stage_generated() { tests/generated.sh check; }

stage_fuzz() { FUZZ_SEED=${FUZZ_SEED:-20260101} tests/fuzz.sh "${FUZZ_SECONDS:-10}"; }

stage_components() {
    tests/components/fetch.sh | tee "$cache/last-fetch"
    local missing
    missing=$(sed -n 's/^SKIP //p' "$cache/last-fetch" | paste -sd ';')
    [ -z "$missing" ] || { echo "$missing"; return $SKIPPED; }
}

live() {
    [ -x "$cache/bin/python" ] || { echo "no Python with the official clients (see the stage components)"; return $SKIPPED; }
    [ -x "$TOKOMETER_BIN" ] || { echo "no binary at $TOKOMETER_BIN (built by the stage build)"; return $SKIPPED; }
    PYTHONDONTWRITEBYTECODE=1 PATH=$cache/bin:$PATH "$cache/bin/python" tests/live "$@"
}

stage_live_engine() { live engine; }
stage_live_queueing() { live queueing; }
stage_live_routes() { live routes; }
stage_live_clients() { live clients; }
stage_live_http2() { live http2; }
stage_live_websocket() { live websocket; }
stage_live_ollama() { live ollama_server; }
stage_live_vllm() { live vllm_server && live vllm_spans; }
stage_live_exporters() { live exporters; }
stage_live_rules() { live rules && live board_queries; }
stage_live_dashboards() { live dashboards; }
stage_live_alerts() { live alerts; }
stage_live_chart() { live chart && live policy; }
stage_live_spans() { live spans; }
stage_live_wedge() { live wedge; }
stage_live_verify() { live verify; }
stage_live_reliability() { live reliability; }
stage_live_netns() { live netns; }
stage_live_kustomize() { live kustomize; }
stage_live_guide() { live guide && live guide_values; }
stage_live_lifecycle() { live lifecycle; }
stage_image() { tests/image.sh; }
stage_soak() { live soak; }
stage_picture_trace() { live picture_trace; }
stage_picture_boards() { live picture_boards; }

stage_check_boards() {
    command -v node >/dev/null || { echo "no node on PATH"; return $SKIPPED; }
    [ -d "$cache/boards/node_modules/typescript" ] || { echo "no Grafana libraries (tests/components/fetch.sh boards)"; return $SKIPPED; }
    node "$cache/boards/check-types.mjs" "$PWD"/dashboards/*.json
}

# A real cluster. Its build is static, because it runs in images without other files.
stage_test_cluster() {
    local binary=${CARGO_TARGET_DIR:-$PWD/target}/cluster/tokometer
    [ -x "$cache/cluster/bin/kubelet" ] || { echo "no Kubernetes (see the output of tests/components/fetch.sh cluster)"; return $SKIPPED; }
    STATIC_PROFILE=dev image/static.sh "$(dirname "$binary")" || return
    # shellcheck disable=SC2086 # names of tests, with spaces between
    TOKOMETER_BIN=$binary TOKOMETER_STATIC=$binary live cluster ${CLUSTER_TESTS:-}
}

stage_live_page() { live live_page; }
stage_live_top() { live top; }

# Runs one stage as a new process of this script; the caller uses its output and exit code.
if [ "${1:-}" = --stage ]; then
    "stage_${2//-/_}"
    exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A stage is a separate process group, so that a hanging one can be killed with all its children.
trap 'kill "$(cat "$work/pid")"; exit 130' INT TERM
limit=$((20 * 60 + ${SOAK_SECONDS:-0} + 2 * ${RELIABILITY_SECONDS:-0}))
passed=0 failed=0 skipped=0 summary="" excerpts=""

# Runs a stage once; its output is also written to $work/log.
attempt() {
    local name=$1
    {
        timeout --kill-after=10 $limit tests/stages.sh --stage "$name" &
        echo $! >"$work/pid"
        wait $!
        echo $? >"$work/code"
    } 2>&1 | tee "$work/log" &
    wait $!
    code=$(cat "$work/code")
    [ "$code" != 124 ] || echo "timed out after $limit s" | tee -a "$work/log"
}

# The relevant part of a stage's log after a failure.
excerpt() { excerpts+=$'\n'"--- of the log of $1"$'\n'$(tests/excerpt.sh "$work/log")$'\n'; }

# True if the stage that just ended with $code is to be retried.
may_pass_later() {
    case $1 in
    live-* | hostile* | integration) [ "$code" != 0 ] && [ "$code" != $SKIPPED ] ;;
    components) [ "$code" != 0 ] && [ "${CI:-}" = true ] ;;
    *) false ;;
    esac
}

run_stage() {
    local name=$1 started=$SECONDS seconds code again=""
    printf '\n=== %s\n' "$name"
    attempt "$name"
    # The retried stages use real programs, real clocks and downloads on a shared machine: they fail only if the second try
    # fails too. The other stages are deterministic and fail every time.
    if may_pass_later "$name"; then
        printf -- '--- %s failed (exit code %d); retrying\n' "$name" "$code"
        excerpt "$name, first try"
        again=", at the second try"
        attempt "$name"
        # A skipped retry still counts as failed.
        [ "$code" != $SKIPPED ] || [ "$name" = components ] || code=1
    fi
    seconds=$((SECONDS - started))
    if [ "$code" = $SKIPPED ] && [ "${CI:-}" = true ] && [ "$name" != test-cluster ] && [ "$name" != hostile-cgroup ]; then
        printf 'FAIL %s: skipped, which CI does not allow: %s\n' "$name" "$(tail -n 1 "$work/log")"
        failed=$((failed + 1)) summary+="  FAIL $name (skipped in CI: $(tail -n 1 "$work/log"))"$'\n'
    elif [ "$code" = $SKIPPED ]; then
        printf 'SKIP %s: %s\n' "$name" "$(tail -n 1 "$work/log")"
        skipped=$((skipped + 1)) summary+="  SKIP $name: $(tail -n 1 "$work/log")"$'\n'
    elif [ "$code" = 0 ]; then
        printf -- '--- %s passed in %d s%s\n' "$name" "$seconds" "$again"
        passed=$((passed + 1)) summary+="  pass $name (${seconds} s$again)"$'\n'
    else
        printf -- '--- %s FAILED (exit code %d) after %d s\n' "$name" "$code" "$seconds"
        failed=$((failed + 1)) summary+="  FAIL $name (exit code $code after $seconds s)"$'\n'
        excerpt "$name"
    fi
}

# live-ollama, live-vllm, check-boards, live-page, live-top, live-netns, live-kustomize, image, test-cluster and the
# pictures run only when named (`make live-ollama`): their requirements take minutes to install, or are not part of a
# build machine (node, a browser, tmux, root, kubectl).
live_stages=(
    live-engine live-queueing live-routes live-clients live-http2 live-websocket live-exporters live-rules live-dashboards
    live-alerts live-chart live-guide live-spans live-wedge live-verify live-reliability live-lifecycle
)
case ${1:-all} in
all) stages=(format lint build unit integration hostile hostile-cgroup doc generated fuzz components "${live_stages[@]}") ;;
live) stages=(build components "${live_stages[@]}") ;;
soak) stages=(build components soak) ;;
live-ollama | live-vllm | live-page | live-top | live-netns | live-kustomize | picture-trace | picture-boards) stages=(build "$1") ;;
reliability) stages=(build components live-reliability) ;;
*) stages=("$@") ;;
esac

for stage in "${stages[@]}"; do
    declare -F "stage_${stage//-/_}" >/dev/null || { echo "unknown stage: $stage" >&2; exit 2; }
    run_stage "$stage"
done

printf '\n=== summary (%d s)\n%s%s\n%d passed, %d failed, %d skipped\n' "$SECONDS" "$summary" "$excerpts" "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
