#!/usr/bin/env bash
# The stages of `make test`, `make test-all` and others: tests/stages.sh [fast|slow|NAME...]
#
# A stage passes, fails, or is skipped if this machine cannot run it (`SKIP name: reason`). A skipped stage never counts
# as passed. With CI=true it counts as failed, because a CI machine can have all requirements, except namespaces that
# need root (test-cluster) and a memory cgroup (hostile-cgroup).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

readonly SKIPPED=77 # The exit code of a skipped stage; its last line is the reason.
cache=${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}
# The binary for the live stages and the attacks.
export TOKOMETER_BIN=${TOKOMETER_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/tokometer}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}
# Random numbers are the same in every run, so that results depend only on the change under test. `make explore` and
# `make fuzz` use new ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20260101}
mkdir -p "$cache"
# Tests of the stage integration that print a table for human readers: `make tables`.
readonly tables=(
    recognition::engine_is_detected_correctly_or_not_at_all
    slo::run::recordings_match_the_reference
    truth::counts::counts_match_engine_counters_or_are_lower_bounds
    truth::outcomes::outcomes_match_recorder_facts
    truth::queue::queue_times_match_engines_and_their_page
)
readonly features=(--locked --features tokenizer)

# Prints a PATH with every program of this machine, except the build tools that a fresh machine lacks. Every cargo stage
# runs with it, so that one target directory serves all.
bare_path() {
    local dir=$1 directory program name
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
    cargo clippy "${features[@]}" --workspace --all-targets -- -D warnings || return
    local long
    long=$(find src crates tests benches fuzz -name '*.rs' -not -path '*/target/*' -print0 | xargs -0 wc -l | awk '$1 > 600 && $2 != "total"')
    [ -z "$long" ] || { printf 'files of more than 600 lines:\n%s\n' "$long"; return 1; }
}

stage_build() {
    local hidden
    for hidden in cmake go protoc clang; do
        ! command -v "$hidden" >/dev/null || { echo "$hidden is still on PATH"; return 1; }
    done
    echo "cmake, go, protoc and clang are hidden; $(cargo --version), $(gcc --version | head -n 1)"
    # Building the tests also builds the program. Building the program separately would select other features of shared
    # crates, and compile them again.
    cargo test "${features[@]}" --workspace --no-run
}

stage_unit() { cargo test "${features[@]}" --workspace --lib --bins; }

# The output of passing tests is hidden, so that failures are easy to find. This stage also compares the generated
# files.
stage_integration() { cargo test "${features[@]}" --test it && cargo test --locked -p tokometer-steps --test '*'; }

stage_tables() {
    local shown
    shown=$(cargo test "${features[@]}" --test it -- --show-output --exact "${tables[@]}")
    local code=$?
    printf '%s\n' "$shown"
    [ $code = 0 ] || return $code
    # A filter that matches no test passes, too.
    [[ $shown == *" ${#tables[@]} passed;"* ]] || { echo "error: \`tables\` in tests/stages.sh contains an unknown test"; return 1; }
}

# Attacks on the binary as a process.
hostile() { cargo test "${features[@]}" --test hostile -- "$@"; }

stage_hostile() { hostile; }

# The same on a release build, whose CPU limits are narrower.
stage_hostile_release() {
    cargo build "${features[@]}" --release --bin tokometer || return
    TOKOMETER_BIN=${CARGO_TARGET_DIR:-$PWD/target}/release/tokometer hostile "$@"
}

# The same attacks on listeners in rewrite mode, with a release build: in a debug build, pingora is not optimized.
stage_hostile_rewrite() { stage_hostile_release --rewrite; }

stage_hostile_cgroup() {
    local code
    stage_hostile_release --cgroup 64MiB
    code=$?
    [ $code != $SKIPPED ] || echo "cannot create a memory cgroup (needs root)"
    return $code
}

stage_doc() { cargo test --locked --workspace --doc && RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps; }

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

# Runs several suites; the next suites run even if a test is skipped.
live_all() {
    local suite skipped=
    for suite; do
        live "$suite" || { [ $? = $SKIPPED ] && skipped+=" $suite"; } || return
    done
    [ -z "$skipped" ] || { echo "tests of$skipped (see the reasons above)"; return $SKIPPED; }
}

stage_live_engine() { live engine; }
stage_live_queueing() { live queueing; }
stage_live_routes() { live_all routes routes_targets odd_requests; }
stage_live_clients() { live clients; }
stage_live_rewrite() { live rewrite; }
stage_live_http2() { live http2; }
stage_live_websocket() { live websocket; }
stage_live_ollama() { live ollama_server; }
stage_live_vllm() {
    local skipped=
    local -x TOKOMETER_TEST_VLLM
    for TOKOMETER_TEST_VLLM in vllm vllm-next; do
        live_all vllm_{server,targets,spans,cancelled,frozen,mixed,aiperf,interval} || { [ $? = $SKIPPED ] && skipped+=" $TOKOMETER_TEST_VLLM"; } || return
    done
    [ -z "$skipped" ] || { echo "tests with$skipped (see the reasons above)"; return $SKIPPED; }
}
stage_live_exporters() { live exporters; }
stage_live_rules() { live_all rules dashboard_promql; }
stage_live_dashboards() { live dashboards; }
stage_live_alerts() { live alerts; }
stage_live_chart() { live_all chart policy; }
stage_live_spans() { live spans; }
stage_live_wedge() { live wedge; }
stage_live_verify() { live verify; }
stage_live_reliability() { live reliability; }
stage_live_netns() { live netns; }
stage_live_tap() { live_all tap tap_links tap_attacks tap_engine; }
stage_live_kustomize() { live kustomize; }
stage_live_guide() { live_all guide guide_values; }
stage_live_lifecycle() { live lifecycle; }
# The documentation as a book, with its links.
stage_book() {
    tests/components/fetch.sh mdbook
    [ -x "$cache/bin/mdbook" ] || { echo "no mdbook (see the output of tests/components/fetch.sh mdbook)"; return $SKIPPED; }
    "$cache/bin/mdbook" build docs && python3 tests/book.py check target/book
}

stage_image() { tests/image.sh; }
stage_workflows() { PATH=$cache/bin:$PATH tests/workflows.sh; }
stage_soak() { live soak; }
stage_picture_trace() { live picture_trace; }
stage_picture_dashboards() { live picture_dashboards; }

stage_check_dashboards() {
    command -v node >/dev/null || { echo "no node on PATH"; return $SKIPPED; }
    [ -d "$cache/dashboards/node_modules/typescript" ] || { echo "no Grafana libraries (tests/components/fetch.sh dashboards)"; return $SKIPPED; }
    node "$cache/dashboards/check-types.mjs" "$PWD"/dashboards/*.json
}

# Tests in a real cluster. The binary is static, because it runs in images without other files.
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
    case $2 in
    format | lint | build | unit | integration | tables | hostile* | doc | fuzz) PATH=$BARE_PATH ;;
    esac
    unset CMAKE PROTOC CLANG_PATH LIBCLANG_PATH LLVM_CONFIG_PATH
    "stage_${2//-/_}"
    exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Each stage is a separate process group, so that a hanging stage can be killed with all its children.
trap 'kill $(cat "$work"/*.pid); exit 130' INT TERM
BARE_PATH=$(bare_path "$work/bin")
export BARE_PATH
limit=$((20 * 60 + ${CHAOS_SECONDS:-0} + ${SOAK_SECONDS:-0} + 2 * ${RELIABILITY_SECONDS:-0}))

# Runs a stage once; its output is also written to $work/NAME.log.
attempt() {
    local name=$1 log=$work/$1.log limit=$limit
    # vLLM starts 26 times, and each start takes minutes.
    [ "$name" != live-vllm ] || limit=$((10 * limit))
    # About 50 tests on one node, and a second attempt at those that fail.
    [ "$name" != test-cluster ] || limit=$((limit * 3 / 2))
    {
        timeout --kill-after=10 $limit tests/stages.sh --stage "$name" &
        echo $! >"$work/$name.pid"
        wait $!
        echo $? >"$work/$name.code"
    } 2>&1 | tee "$log" &
    wait $!
    code=$(cat "$work/$name.code")
    rm -f "$work/$name.pid"
    [ "$code" != 124 ] || echo "timed out after $limit s" | tee -a "$log"
}

# The relevant part of a stage's log after a failure.
excerpt() { printf '\n--- of the log of %s\n%s\n' "$2" "$(tests/excerpt.sh "$work/$1.log")" >>"$work/excerpts"; }

# True if the stage that just ended with $code is to be retried.
should_retry() {
    case $1 in
    live-* | hostile* | integration) [ "$code" != 0 ] && [ "$code" != $SKIPPED ] ;;
    components) [ "$code" != 0 ] && [ "${CI:-}" = true ] ;;
    *) false ;;
    esac
}

# Runs a stage and adds its result to $work/summary.
run_stage() {
    local name=$1 started=$SECONDS seconds code retried="" reason
    printf '\n=== %s\n' "$name"
    attempt "$name"
    # The retried stages use real programs, real clocks and downloads on a shared machine: they fail only if the second
    # attempt fails too. The other stages are deterministic and fail every time.
    if should_retry "$name"; then
        printf -- '--- %s failed (exit code %d); retrying\n' "$name" "$code"
        excerpt "$name" "$name, first attempt"
        retried=", at the second attempt"
        attempt "$name"
        # A skipped retry still counts as failed.
        [ "$code" != $SKIPPED ] || [ "$name" = components ] || code=1
    fi
    seconds=$((SECONDS - started))
    if [ "$code" = 0 ]; then
        printf -- '--- %s passed in %d s%s\n' "$name" "$seconds" "$retried"
        echo "  pass $name ($seconds s$retried)" >>"$work/summary"
        return
    fi
    if [ "$code" = $SKIPPED ]; then
        reason=$(tail -n 1 "$work/$name.log")
        if [ "${CI:-}" != true ] || [ "$name" = test-cluster ] || [ "$name" = hostile-cgroup ]; then
            printf 'SKIP %s: %s\n' "$name" "$reason"
            echo "  SKIP $name: $reason" >>"$work/summary"
            return
        fi
        reason="skipped, which CI does not allow: $reason"
    else
        reason="exit code $code after $seconds s"
        excerpt "$name" "$name"
    fi
    printf -- '--- %s FAILED (%s)\n' "$name" "$reason"
    echo "  FAIL $name ($reason)" >>"$work/summary"
}

# Runs two groups of stages in parallel. The stages of a group run one after the other. The first group prints its whole
# output, the second only the results.
run_both() {
    local stage
    for stage in $2; do
        run_stage "$stage" >"$work/$stage.out" 2>&1
        grep -E '^(---|SKIP|FAIL) ' "$work/$stage.out"
    done &
    local waiting=$!
    for stage in $1; do run_stage "$stage"; done
    wait $waiting
}

# live-ollama, live-vllm, check-dashboards, live-page, live-top, live-netns, live-tap, live-kustomize, image,
# test-cluster and the pictures run only when named (`make live-ollama`): their requirements take minutes to
# install, or are not part of a build machine (node, a browser, tmux, root, kubectl).
#
# Live stages that take seconds, and the slow ones.
live_fast="live-engine live-queueing live-routes live-clients live-rewrite live-http2 live-websocket live-exporters live-spans live-verify live-chart live-guide"
live_slow="live-dashboards live-rules live-alerts live-wedge live-reliability live-lifecycle"
left="" right="" last=""
case ${1:-fast} in
fast) stages="format lint build components workflows" left="unit integration" right=$live_fast last="hostile" ;;
slow) stages="build components" left="doc book fuzz" right=$live_slow last="hostile-release hostile-rewrite hostile-cgroup" ;;
live) stages="build components $live_fast $live_slow" ;;
soak) stages="build components soak" ;;
live-ollama | live-vllm | live-page | live-top | live-netns | live-tap | live-kustomize | picture-trace | picture-dashboards) stages="build $1" ;;
reliability) stages="build components live-reliability" ;;
*) stages=$* ;;
esac

for stage in $stages; do
    declare -F "stage_${stage//-/_}" >/dev/null || { echo "unknown stage: $stage" >&2; exit 2; }
done
for stage in $stages; do run_stage "$stage"; done
[ -z "$left" ] || run_both "$left" "$right"
for stage in $last; do run_stage "$stage"; done

# The number of stages with this result.
results() { grep -c "^  $1 " "$work/summary"; }
printf '\n=== summary (%d s)\n%s\n%s\n%d passed, %d failed, %d skipped\n' \
    "$SECONDS" "$(cat "$work/summary")" "$(cat "$work/excerpts" 2>/dev/null)" "$(results pass)" "$(results FAIL)" "$(results SKIP)"
[ "$(results FAIL)" = 0 ]
