# Sourced by fetch.sh: the component `cluster`.
# shellcheck shell=bash disable=SC2154 # $cache, $here and the fetch functions are fetch.sh's

# A complete Kubernetes node, only for `make test-cluster`: ten minutes to compile. A module is rebuilt when its files
# change.
fetch_cluster() {
    local name=cluster reason bin=$cache/cluster/bin kubernetes
    kubernetes=$(cluster_version kubernetes k8s.io/kubernetes)
    [ "$(id -u)" = 0 ] || { skip $name "a node of Kubernetes needs root"; return; }
    logged $name-namespaces unshare --net --mount --pid --fork --mount-proc true || { skip $name "namespaces are not allowed here: $reason"; return; }
    mkdir -p "$bin"
    fetch_runc || { skip $name "$reason"; return; }
    cluster_programs programs "" ./pause ./vllm &&
        cluster_programs network "" github.com/containernetworking/plugins/plugins/{main/bridge,main/loopback,ipam/host-local} &&
        cluster_programs etcd "" etcd=go.etcd.io/etcd/server/v3 &&
        cluster_programs helm "" helm.sh/helm/v4/cmd/helm &&
        cluster_programs containerd "" github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} &&
        cluster_programs kubernetes "$(printf -- '-X k8s.io/component-base/version.git%s ' "Version=v$kubernetes" "Major=${kubernetes%%.*}" "Minor=$(cut -d. -f2 <<<"$kubernetes")")" \
            k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kubectl} ||
        { skip $name "$reason"; return; }
    have $name "Kubernetes $kubernetes, containerd $(cluster_version containerd github.com/containerd/containerd/v2), \
etcd $(cluster_version etcd go.etcd.io/etcd/server/v3), Helm $(cluster_version helm helm.sh/helm/v4), $("$bin/runc" --version | sed -n '1s/version //p')"
}

# Version of a dependency of one of the cluster's modules.
cluster_version() { sed -n "s#.*[[:space:]]$2 v\([0-9.]*\).*#\1#p" "$here/cluster/$1/go.mod" | head -n 1; }

# Builds packages of one of the cluster's modules with these linker flags; `NAME=PACKAGE` sets the program's name.
cluster_programs() {
    local module=$1 flags=$2 directory=$here/cluster/$1 new=$cache/cluster/new stamp package
    shift 2
    stamp=$(find "$directory" -type f | sort | xargs cat | cksum)
    [ "$(cat "$cache/cluster/bin/.$module.stamp" 2>/dev/null)" != "$stamp" ] || return 0
    command -v go >/dev/null || { reason="no Go on PATH"; return 1; }
    rm -rf "$new"
    mkdir "$new"
    local out=$new/
    [[ $1 != *=* ]] || { out=$new/${1%%=*}; set -- "${1#*=}"; }
    logged "cluster-$module" env GOFLAGS="-mod=readonly -trimpath -buildvcs=false" CGO_ENABLED=0 nice -n 10 \
        go -C "$directory" build -ldflags "-s -w $flags" -o "$out" "$@" || { reason="go build of $module failed: $reason"; return 1; }
    mv "$new"/* "$cache/cluster/bin/"
    printf '%s\n' "$stamp" >"$cache/cluster/bin/.$module.stamp"
}

# The container runtime. It re-executes its own file, so it must run without a separate loader: the package is from the
# machine's own release.
fetch_runc() {
    local program=$cache/cluster/bin/runc mirror
    [ ! -x "$program" ] || return 0
    if command -v runc >/dev/null; then
        ln -sf "$(command -v runc)" "$program"
        return
    fi
    mirror=$(debian_mirror) || { reason="no runc on PATH, and this machine has no Debian mirror"; return 1; }
    logged runc release_package "$mirror" runc usr/sbin/runc "$program" || { reason="no runc: $reason"; return 1; }
    logged runc-version "$program" --version || { rm -f "$program"; reason="runc does not start: $reason"; return 1; }
}
