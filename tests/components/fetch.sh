#!/usr/bin/env bash
# Gets the real components that the live tests run against, into a directory outside the tree:
#   ${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}/bin/{llama-server,prometheus,python,h2load,nghttp,h2spec}
#
#   tests/components/fetch.sh                 all of them
#   tests/components/fetch.sh llama-server    only those named; ollama is got only when it is named
#
# Nothing on the machine is changed: no root is needed, and what is there already is used. One line per component tells
# what was got (`have NAME: VERSION`) or why not (`SKIP NAME: reason`). The exit code is 0 either way.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TOKOMETER_TEST_CACHE:-$HOME/.cache/tokometer-tests}
debian=$cache/debian
mkdir -p "$cache/bin" "$cache/log"

have() { printf 'have %s: %s\n' "$1" "$2"; }
skip() { printf 'SKIP %s: %s\n' "$1" "$2"; }

# Runs a step with its output in a log file; tells the file's name and its last line when the step fails.
logged() {
    local log=$cache/log/$1.log
    shift
    "$@" >"$log" 2>&1 && return 0
    reason="$(tail -n 1 "$log" | cut -c -160) (whole log: $log)"
    return 1
}

# Puts an executable into bin/ in one step, so that a run that was interrupted leaves none that is half written.
install_wrapper() {
    cat >"$cache/bin/.$1.new"
    chmod 755 "$cache/bin/.$1.new"
    mv "$cache/bin/.$1.new" "$cache/bin/$1"
}

# The mirror that the machine itself takes its release from, and the keyring it trusts for it.
debian_mirror() {
    local codename
    codename=$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || return 1
    [ -n "$codename" ] || return 1
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^deb  *\(\[[^]]*\] *\)\{0,1\}//p' |
        awk -v codename="$codename" '$2 == codename && !found { print $1; found = 1 }' | grep . && return 0
    awk -v codename="$codename" '
        FNR == 1 || /^$/ { uri = ""; suites = "" }
        /^URIs:/ { uri = $2 }
        /^Suites:/ { suites = $0 }
        uri && suites ~ "[ \t]" codename "([ \t]|$)" && !found { print uri; found = 1 }
    ' /etc/apt/sources.list.d/*.sources 2>/dev/null | grep .
}

# Unpacks packages of Debian's testing suite, with all they need, into $debian. A private apt root: neither the
# machine's package lists nor its packages are touched.
debian_packages() {
    local mirror=$1
    shift
    mkdir -p "$debian"/{root,state/lists/partial,cache/archives/partial}
    : >"$debian/state/status"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s forky main\n' "$mirror" >"$debian/sources.list"
    cat >"$debian/apt.conf" <<CONF
Dir::Etc::sourcelist "$debian/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$debian/state";
Dir::State::status "$debian/state/status";
Dir::Cache "$debian/cache";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
CONF
    export APT_CONFIG=$debian/apt.conf
    apt-get -q update || return 1
    apt-get -q -y --download-only install "$@" || return 1
    local package
    for package in "$debian"/cache/archives/*.deb; do
        dpkg -x "$package" "$debian/root" || return 1
    done
    rm -f "$debian"/cache/archives/*.deb
}

# The newest code of ggml that this processor runs.
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
        find "$debian/root/usr/lib" -name "libggml-cpu-$kind.so" 2>/dev/null | grep -m 1 . && return 0
    done
    return 1
}

# Debian's newer suite has its own C library: its programs run under that one's loader. Puts a program of it into bin/,
# with these directories of libraries besides, and these lines before it starts.
install_debian_program() {
    local name=$1 more=${2:-} before=${3:-} loader libraries
    loader=$(find "$debian/root/usr/lib" -name 'ld-linux-*.so.*' | head -n 1)
    libraries=$(dirname "$loader")
    install_wrapper "$name" <<WRAPPER
#!/bin/sh
$before
exec '$loader' --library-path '$libraries${more:+:$libraries/$more}$(find "$debian/root/usr/lib" -maxdepth 2 -path '*/llvm-*/lib' -printf ':%p')' '$debian/root/usr/bin/$name' "\$@"
WRAPPER
}

fetch_llama_server() {
    local name=llama-server reason mirror
    if [ ! -x "$cache/bin/$name" ]; then
        if command -v $name >/dev/null; then
            ln -sf "$(command -v $name)" "$cache/bin/$name"
        else
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this is no Debian whose mirror could be asked"; return; }
            [ -x "$debian/root/usr/bin/$name" ] || logged $name debian_packages "$mirror" llama.cpp-tools ||
                { skip $name "$reason"; return; }
            local backend
            backend=$(ggml_backend) || { skip $name "no ggml backend for this processor in the package"; return; }
            install_debian_program $name llama "export GGML_BACKEND_PATH='$backend'"
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(sed -n 's/^version: *//p' "$cache/log/$name-version.log" | head -n 1)"
}

# Clients of HTTP/2 that are not ours: load, and single requests.
fetch_h2load() {
    local name=h2load reason mirror program
    if [ ! -x "$cache/bin/$name" ]; then
        for program in h2load nghttp; do
            if command -v $program >/dev/null; then
                ln -sf "$(command -v $program)" "$cache/bin/$program"
                continue
            fi
            mirror=$(debian_mirror) || { skip $name "not on PATH, and this is no Debian whose mirror could be asked"; return; }
            [ -x "$debian/root/usr/bin/$program" ] || logged $name debian_packages "$mirror" nghttp2-client ||
                { skip $name "$reason"; return; }
            install_debian_program $program
        done
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(tail -n 1 "$cache/log/$name-version.log")"
}

# The conformance tests of HTTP/2.
fetch_h2spec() {
    local name=h2spec reason
    if [ ! -x "$cache/bin/$name" ]; then
        if command -v $name >/dev/null; then
            ln -sf "$(command -v $name)" "$cache/bin/$name"
        else
            command -v go >/dev/null || { skip $name "no Go on PATH"; return; }
            logged $name env GOBIN="$cache/bin" nice -n 10 go install github.com/summerwind/h2spec/cmd/h2spec@latest ||
                { skip $name "go install failed: $reason"; return; }
        fi
    fi
    logged $name-version "$cache/bin/$name" --version || { rm -f "$cache/bin/$name"; skip $name "does not start: $reason"; return; }
    have $name "$(tail -n 1 "$cache/log/$name-version.log")"
}

# The official clients (openai, anthropic, ollama), independent ones of HTTP/2, gRPC and WebSocket, and the strict
# OpenMetrics parser.
fetch_python() {
    local name=python reason wanted=$here/../live/requirements.txt stamp=$cache/venv/requirements.txt
    command -v python3 >/dev/null || { skip $name "no python3 on PATH"; return; }
    if ! cmp -s "$wanted" "$stamp"; then
        [ -x "$cache/venv/bin/python" ] || logged $name-venv python3 -m venv "$cache/venv" || { rm -rf "$cache/venv"; skip $name "no virtual environment: $reason"; return; }
        logged $name-pip "$cache/venv/bin/python" -m pip install -q --no-input -r "$wanted" ||
            { skip $name "packages not to be had: $reason"; return; }
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

# A Prometheus that scrapes and takes OTLP. Debian's own build has no OTLP receiver, so this one is built from its Go
# modules (some minutes the first time); without Go, Debian's serves for all but the comparison of the exporters.
fetch_prometheus() {
    local name=prometheus reason mirror
    if command -v go >/dev/null; then
        if ! cmp -s "$here/prometheus/go.mod" "$cache/prometheus.go.mod" || [ ! -x "$cache/bin/$name" ]; then
            # The module v0.315.0 is the release 3.15.0; a build from modules does not know its own name.
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
        if command -v $name >/dev/null; then
            ln -sf "$(command -v $name)" "$cache/bin/$name"
        else
            mirror=$(debian_mirror) || { skip $name "no Go, not on PATH, and no Debian mirror to ask"; return; }
            [ -x "$debian/root/usr/bin/$name" ] || logged $name debian_packages "$mirror" prometheus ||
                { skip $name "$reason"; return; }
            ln -sf "$debian/root/usr/bin/$name" "$cache/bin/$name"
        fi
    fi
    have $name "$("$cache/bin/$name" --version 2>&1 | sed -n '1s/^prometheus, version \([^ ]*\).*/\1/p'), \
OTLP receiver: $("$cache/bin/$name" --help 2>&1 | grep otlp-receiver >/dev/null && echo yes || echo no)"
}

# A real Ollama, for `make live-ollama` alone: two minutes of compiling. Its module zip lacks headers that its C++ wants.
fetch_ollama() {
    local name=ollama reason mirror headers=$cache/ollama-headers
    if ! cmp -s "$here/ollama/go.mod" "$cache/ollama.go.mod" || [ ! -x "$cache/bin/$name" ]; then
        command -v go >/dev/null || { skip $name "no Go on PATH"; return; }
        [ -x "$cache/venv/bin/python" ] || { skip $name "no Python (component python) to get a header with"; return; }
        mirror=$(debian_mirror) || { skip $name "this is no Debian whose mirror could be asked for headers"; return; }
        [ -d "$debian/root/usr/include/nlohmann" ] || logged $name-headers debian_packages "$mirror" nlohmann-json3-dev libstb-dev ||
            { skip $name "$reason"; return; }
        mkdir -p "$headers/miniaudio"
        ln -sfn "$debian/root/usr/include/nlohmann" "$headers/nlohmann"
        ln -sfn "$debian/root/usr/include/stb" "$headers/stb"
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

[ $# -gt 0 ] || set -- llama-server python prometheus h2load h2spec
for component in "$@"; do
    case $component in
    llama-server) fetch_llama_server ;;
    python) fetch_python ;;
    prometheus) fetch_prometheus ;;
    h2load) fetch_h2load ;;
    h2spec) fetch_h2spec ;;
    ollama) fetch_ollama ;;
    *)
        echo "fetch.sh: no component '$component' (llama-server, python, prometheus, h2load, h2spec, ollama)" >&2
        exit 2
        ;;
    esac
done
