"""Settings of the node's parts: addresses, permissions, and a file or a list of arguments for each."""

import json

NODE = "node-1"
# Addresses of a network without a route to the outside. The node and all pods can reach the addresses of pods.
NODE_IP, GATEWAY, PODS, SERVICES = "10.99.0.1", "10.99.0.2", "10.244.0.0/16", "10.96.0.0/16"
SERVER = f"https://{NODE_IP}:6443"
ETCD = "http://127.0.0.1:2379"
PAUSE = "localhost/pause:1"
# Name -> the user and the groups of its token.
USERS = {
    "admin": ("admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", "system:masters"),
}
# Kernel settings that the kubelet would change on the whole machine. Files with the expected values are mounted over them.
KERNEL = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def token(user):
    """Only the node can reach its API server, so this is not a secret."""
    return f"{user}-token"


def write(directory, plugins):
    """Writes the files into the node's directory; `plugins` is the directory of the network plugins."""
    lines = (f'{token(user)},{name},{user},"{groups}"\n' for user, (name, groups) in USERS.items())
    (directory / "tokens.csv").write_text("".join(lines))
    for user in USERS:
        (directory / f"{user}.conf").write_text(json.dumps(_kubeconfig(user)))
    (directory / "kubelet.json").write_text(json.dumps(_kubelet(directory)))
    (directory / "network").mkdir()
    (directory / "network" / "10-pods.conflist").write_text(json.dumps(_network()))
    (directory / "containerd.toml").write_text(_containerd(directory, plugins))


def programs(directory):
    """Name -> command of each part, in start order."""
    kubeconfig = lambda user: f"--kubeconfig={directory / user}.conf"  # noqa: E731
    key = directory / "accounts.key"
    return {
        "etcd": [
            "etcd", f"--data-dir={directory / 'etcd'}", f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync",
        ],
        "containerd": ["containerd", "--config", str(directory / "containerd.toml")],
        "apiserver": [
            "kube-apiserver", f"--etcd-servers={ETCD}", f"--cert-dir={directory / 'certificates'}", f"--advertise-address={NODE_IP}",
            f"--bind-address={NODE_IP}", "--secure-port=6443", f"--token-auth-file={directory / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://cluster.invalid", f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range={SERVICES}", "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
        ],
        "controllers": [
            "kube-controller-manager", kubeconfig("controllers"), f"--service-account-private-key-file={key}", "--leader-elect=false",
            "--use-service-account-credentials=false",
        ],
        "scheduler": ["kube-scheduler", kubeconfig("scheduler"), "--leader-elect=false"],
        "kubelet": [
            "kubelet", f"--config={directory / 'kubelet.json'}", kubeconfig("kubelet"), f"--hostname-override={NODE}", f"--node-ip={NODE_IP}",
            f"--root-dir={directory / 'kubelet'}", f"--cert-dir={directory / 'kubelet' / 'pki'}",
        ],
    }


def _kubeconfig(user):
    return {
        "apiVersion": "v1",
        "kind": "Config",
        # The API server creates a new self-signed certificate at each start.
        "clusters": [{"name": "cluster", "cluster": {"server": SERVER, "insecure-skip-tls-verify": True}}],
        "users": [{"name": user, "user": {"token": token(user)}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": user}}],
        "current-context": "cluster",
    }


def _kubelet(directory):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{directory.name}",
        "enforceNodeAllocatable": [],
        # Some machines still have cgroup v1, some have swap, and some little free disk space.
        "failCgroupV1": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "podLogsDir": str(directory / "podlogs"),
        "volumePluginDir": str(directory / "volume-plugins"),
        "clusterDomain": "cluster.local",
        "resolvConf": "",
    }


def _network():
    ranges = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": ranges}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def _containerd(directory, plugins):
    return f"""
version = 3
root = "{directory}/containerd"
state = "{directory}/containerd-state"
# Both would create directories at fixed paths.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{directory}/containerd.sock"
[ttrpc]
  address = "{directory}/containerd.sock.ttrpc"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{directory}/network"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
