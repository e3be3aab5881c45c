"""One real Kubernetes node in new namespaces, with this as the first process: etcd, API server, controllers, scheduler, containerd, kubelet.

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

# Timeout for each part, generous for busy machines.
PATIENCE = 240.0


def run(*argv):
    subprocess.run(argv, check=True)


def hide_the_machine(directory):
    """Redirects paths that these programs write to and that cannot be configured."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for place in ("/var/lib", "/var/log"):
        upper, work = (directory / "over" / place.strip("/") / name for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    for name, value in settings.KERNEL.items():
        file = directory / "over" / name.replace("/", ".")
        file.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(file), f"/proc/sys/{name}")


def make_network():
    """Creates an address for the node, and a default route to nowhere, which the kubelet requires to find its address."""
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
    whole = (root / "cgroup.controllers").exists()
    for hierarchy in [root] if whole else [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        (hierarchy / name).mkdir(exist_ok=True)
    if not whole:
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

    def look(self, options=os.WNOHANG):
        """Reaps exited processes. Orphans become children of this process, so it may be any process."""
        while True:
            child, status = os.waitpid(-1, options)
            if child == 0:
                return
            if child in self.running:
                name = self.running[child][0]
                log = (self.directory / "log" / f"{name}.log").read_text(errors="replace")
                sys.exit(f"{name} exited with {os.waitstatus_to_exitcode(status)}:\n" + "\n".join(log.splitlines()[-15:]))

    def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.look()
            if time.monotonic() > deadline:
                sys.exit(f"not within {PATIENCE:g} s: {what}")
            time.sleep(0.2)


def main(directory, binaries):
    directory = Path(directory)
    os.environ["PATH"] = f"{binaries}:{os.environ['PATH']}:/usr/sbin:/sbin"
    (directory / "log").mkdir()
    settings.write(directory, binaries)
    hide_the_machine(directory)
    make_network()
    make_control_groups(directory.name)
    run("openssl", "genrsa", "-out", str(directory / "accounts.key"), "2048")
    api = Api(settings.SERVER, settings.token("admin"))
    parts, programs = Parts(directory), settings.programs(directory)

    def asked(target):
        try:
            return api.ask("GET", target).object
        except (OSError, Refused):
            return None

    def node_is_ready():
        node = asked(f"/api/v1/nodes/{settings.NODE}")
        return node and any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))

    def images_are_taken():
        return subprocess.run(["ctr", "-a", f"{directory}/containerd.sock", "version"], capture_output=True).returncode == 0

    for name in ("etcd", "containerd", "apiserver"):
        parts.start(name, programs[name])
    parts.until(lambda: asked("/readyz"), "the API server is ready")
    for name in ("controllers", "scheduler"):
        parts.start(name, programs[name])
    parts.until(images_are_taken, "containerd responds")
    parts.start("kubelet", programs["kubelet"])
    parts.until(node_is_ready, "the node is ready")
    (directory / "ready").touch()
    parts.look(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
