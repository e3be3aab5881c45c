"""One real Kubernetes node, as the first process of namespaces of its own: etcd, API server, controllers, scheduler, containerd, kubelet.

    unshare --net --mount --pid --fork --kill-child --mount-proc python node.py DIRECTORY BINARIES

Everything that it makes is under DIRECTORY or in the namespaces. It says that it is ready by a file `ready`, and runs until it is
ended, or until a part of it ends by itself; all the rest ends with it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import settings
from api import Api, Refused

# For each part; machines are slow when others work on them.
PATIENCE = 240.0


def run(*argv):
    subprocess.run(argv, check=True)


def hide_the_machine(directory):
    """Places that cannot be told to these programs: what they write there goes elsewhere."""
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
    """An address for the node, and a way out that leads nowhere, without which the kubelet finds none."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "nowhere0")
    run("ip", "address", "add", f"{settings.NODE_IP}/24", "dev", "node0")
    for device in ("node0", "nowhere0"):
        run("ip", "link", "set", device, "up")
    run("ip", "route", "add", "default", "via", settings.GATEWAY, "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def make_control_groups(name):
    """The group that those of all pods are in, in each hierarchy; who started us takes it away."""
    root = Path("/sys/fs/cgroup")
    whole = (root / "cgroup.controllers").exists()
    for hierarchy in [root] if whole else [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        (hierarchy / name).mkdir(exist_ok=True)
    if not whole:
        # A group of the first version has no processors and no memory until it is told which.
        for file in ("cpuset.cpus", "cpuset.mems"):
            (root / "cpuset" / name / file).write_text((root / "cpuset" / file).read_text())


class Parts:
    """The programs, each with a log; one that ends takes all with it."""

    def __init__(self, directory):
        self.directory, self.running = directory, {}

    def start(self, name, argv):
        with (self.directory / "log" / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # Kept, because the module would take in by itself what nobody holds on to.
        self.running[child.pid] = name, child

    def look(self, options=os.WNOHANG):
        """Takes in what has ended. Whoever loses his parent here becomes a child of ours, so it may be anybody."""
        while True:
            child, status = os.waitpid(-1, options)
            if child == 0:
                return
            if child in self.running:
                name = self.running[child][0]
                log = (self.directory / "log" / f"{name}.log").read_text(errors="replace")
                sys.exit(f"{name} ended with {os.waitstatus_to_exitcode(status)}:\n" + "\n".join(log.splitlines()[-15:]))

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
    parts.until(images_are_taken, "containerd answers")
    parts.start("kubelet", programs["kubelet"])
    parts.until(node_is_ready, "the node is ready")
    (directory / "ready").touch()
    parts.look(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
