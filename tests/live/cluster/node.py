"""A real Kubernetes node in new namespaces: etcd, API server, controllers, scheduler, containerd and kubelet. This program has PID 1 there.

    unshare --net --mount --pid --fork --kill-child --mount-proc python node.py DIRECTORY BINARIES

Everything that it creates is under DIRECTORY or in the namespaces. It signals readiness by a file `ready`, and runs until it is
stopped or one of its parts exits, which stops all others.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import settings
from api import Api, Refused

# Timeout for each part, long enough for busy machines.
TIMEOUT = 240.0


def run(*argv):
    subprocess.run(argv, check=True)


def isolate_machine_paths(directory):
    """Replaces the paths that these programs write to and that cannot be configured."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for path in ("/var/lib", "/var/log"):
        upper, work = (directory / "over" / path.strip("/") / name for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    for name, value in settings.KERNEL.items():
        file = directory / "over" / name.replace("/", ".")
        file.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(file), f"/proc/sys/{name}")


def make_network():
    """Creates an address for the node, and an unused default route, from which the kubelet finds its address."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "nowhere0")
    run("ip", "address", "add", f"{settings.NODE_IP}/24", "dev", "node0")
    for device in ("node0", "nowhere0"):
        run("ip", "link", "set", device, "up")
    run("ip", "route", "add", "default", "via", settings.GATEWAY, "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def make_control_groups(name):
    """Creates the parent cgroup of all pods in each hierarchy; the process that started this one removes it."""
    root = Path("/sys/fs/cgroup")
    is_unified = (root / "cgroup.controllers").exists()
    for hierarchy in [root] if is_unified else [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        (hierarchy / name).mkdir(exist_ok=True)
    if not is_unified:
        # A cgroup v1 has no processors and no memory nodes until they are set.
        for file in ("cpuset.cpus", "cpuset.mems"):
            (root / "cpuset" / name / file).write_text((root / "cpuset" / file).read_text())


class Parts:
    """The programs, each with a log; the exit of one stops all."""

    def __init__(self, directory):
        self.directory, self.running = directory, {}

    def start(self, name, argv):
        with (self.directory / "log" / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Kept referenced, because `subprocess` would otherwise reap the child itself.
        self.running[child.pid] = name, child

    def reap(self, options=os.WNOHANG):
        """Reaps exited processes, which include orphans: they become children of this process."""
        while True:
            child, status = os.waitpid(-1, options)
            if child == 0:
                return
            if child in self.running:
                name = self.running[child][0]
                log = (self.directory / "log" / f"{name}.log").read_text(errors="replace")
                sys.exit(f"{name} exited with {os.waitstatus_to_exitcode(status)}:\n" + "\n".join(log.splitlines()[-15:]))

    def until(self, condition, expected):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.reap()
            if time.monotonic() > deadline:
                sys.exit(f"not within {TIMEOUT:g} s: {expected}")
            time.sleep(0.2)


def main(directory, binaries):
    directory = Path(directory)
    os.environ["PATH"] = f"{binaries}:{os.environ['PATH']}:/usr/sbin:/sbin"
    (directory / "log").mkdir()
    settings.write(directory, binaries)
    isolate_machine_paths(directory)
    make_network()
    make_control_groups(directory.name)
    run("openssl", "genrsa", "-out", str(directory / "accounts.key"), "2048")
    api = Api(settings.SERVER, settings.token("admin"))
    parts, programs = Parts(directory), settings.programs(directory)

    def get(target):
        try:
            return api.request("GET", target).object
        except (OSError, Refused):
            return None

    def node_is_ready():
        node = get(f"/api/v1/nodes/{settings.NODE}")
        return node and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))

    def containerd_responds():
        return subprocess.run(["ctr", "-a", f"{directory}/containerd.sock", "version"], capture_output=True).returncode == 0

    for name in ("etcd", "containerd", "apiserver"):
        parts.start(name, programs[name])
    parts.until(lambda: get("/readyz"), "the API server is ready")
    for name in ("controllers", "scheduler"):
        parts.start(name, programs[name])
    parts.until(containerd_responds, "containerd responds")
    parts.start("kubelet", programs["kubelet"])
    parts.until(node_is_ready, "the node is ready")
    (directory / "ready").touch()
    parts.reap(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
