"""The cluster shared by the tests: started by the first test that needs it, stopped with the process that started it."""

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helm_chart import CACHE
from process import Process, Skip, until

from cluster import describe, images, settings
from cluster.api import Api, Refused, path

BUILT = CACHE / "cluster" / "bin"
# Linked statically, so that it runs in an empty image (the stage test-cluster builds it).
STATIC = Path(os.environ.get("TOKOMETER_STATIC", ""))
PREFIX = "tokometer-cluster-"
CLONE_NEWNET = 0x40000000  # <sched.h>
# Timeout from the start until the node accepts pods, which takes less than a minute on an idle machine.
START_SECONDS = 400.0
# Programs that the node needs and that are not built with it.
PROGRAMS = ("unshare", "setpriv", "mount", "ip", "openssl")


@functools.cache
def _started():
    node = Cluster()
    atexit.register(node.stop)
    try:
        node.start()
    except Exception as error:  # noqa: BLE001 raised again for each test
        return node, error
    return node, None


def cluster():
    """The cluster of this process. All tests share it, so each works in its own namespace. It is started once: a start that failed
    for the first test is not retried for the next one."""
    node, error = _started()
    if error:
        raise error
    return node


class Cluster:
    def __init__(self):
        self.process = None
        self.directory = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
        self.environment = dict(os.environ, PATH=f"{BUILT}:{os.environ['PATH']}:/usr/sbin:/sbin", KUBECONFIG=str(self.directory / "admin.conf"), HOME=str(self.directory))
        self.api = Api(settings.SERVER, settings.token("admin"))

    def start(self):
        self._check_can_run()
        _remove_leftovers()
        self.directory.mkdir(mode=0o711)
        began = time.monotonic()
        node = Path(__file__).parent / "node.py"
        isolated = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # The kernel kills the node when this process exits for any reason.
        self.process = Process("node", ["setpriv", "--pdeathsig", "KILL", *isolated, sys.executable, str(node), str(self.directory), str(BUILT)])

        def ready():
            assert self.process.alive(), f"the node exited before it was ready: {self.process.output()[-3000:]}"
            return (self.directory / "ready").exists()

        until(ready, lambda: f"the node is ready: {self.process.output()[-1000:]}", START_SECONDS)
        self._join_node_network()
        for name, files, config in self._images():
            self._import_image(name, files, config)
        print(f"    the node is ready after {time.monotonic() - began:.0f} s", flush=True)

    def _check_can_run(self):
        if os.geteuid() != 0:
            raise Skip("a node of Kubernetes needs root")
        if not (BUILT / "kubelet").exists():
            raise Skip("Kubernetes is not built (tests/components/fetch.sh cluster)")
        for program in PROGRAMS:
            if not shutil.which(program, path=self.environment["PATH"]):
                raise Skip(f"no {program}")
        probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
        if probe.returncode != 0:
            raise Skip(f"namespaces are not allowed here: {probe.stderr.strip()}")

    def _join_node_network(self):
        """Moves this process and its future children into the node's network, so that pods are reachable by their addresses."""
        with open(f"/proc/{self.process.child.pid}/ns/net") as network:
            library = ctypes.CDLL(None, use_errno=True)
            assert library.setns(network.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    def _images(self):
        yield settings.PAUSE, *images.pause(BUILT)
        context = self.directory / "context"
        (context / images.ARCHITECTURE).mkdir(parents=True)
        binary = context / images.ARCHITECTURE / "tokometer"
        shutil.copy(STATIC, binary)
        yield images.TOKOMETER, *images.tokometer(context)
        yield images.VLLM, *images.vllm(binary, BUILT)

    def _import_image(self, name, files, config):
        archive = self.directory / "image.tar"
        images.write_archive(archive, name, files, config)
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "images", "import", str(archive))
        archive.unlink()

    def import_llama_server(self):
        self._import_image(images.LLAMA, *images.llama_server(CACHE / "bin" / "llama-server"))

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.log.close()
        until(lambda: _remove(self.directory), f"the node is removed from {self.directory}", 60)

    def command(self, program):
        """The command prefix for one of the cluster's programs."""
        return ["env", *(f"{name}={self.environment[name]}" for name in ("KUBECONFIG", "HOME")), str(BUILT / program)]

    def run(self, *argv, check=True, stdin=None, seconds=300, cwd=None):
        """Runs a command as a user would, with the cluster's programs and its KUBECONFIG."""
        result = subprocess.run(argv, env=self.environment, input=stdin, capture_output=True, text=True, timeout=seconds, cwd=cwd)
        # Helm logs the symlinks in the chart verbosely.
        output = "\n".join(line for line in (result.stderr or result.stdout).splitlines() if not line.startswith("level=INFO"))
        assert not check or result.returncode == 0, f"{' '.join(argv)} exited with {result.returncode}: {output}"
        return result

    def kubectl(self, *arguments, **options):
        return self.run("kubectl", *arguments, **options).stdout

    def helm(self, *arguments, **options):
        return self.run("helm", *arguments, **options).stdout

    def rename_image(self, name, other):
        """Adds another name to an image."""
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "images", "tag", name, other)

    def kill_container(self, pod, name, signal="SIGKILL"):
        """Sends a signal to the container's process. For the kubelet, this is a crash."""
        statuses = pod["status"].get("initContainerStatuses", []) + pod["status"]["containerStatuses"]
        identity = next(status["containerID"] for status in statuses if status["name"] == name).rpartition("/")[2]
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", signal, identity)

    @contextlib.contextmanager
    def namespace(self, name, labels=None):
        """A namespace for one test. If the test fails, the state of its pods is printed; then they are deleted immediately."""
        create = lambda name: self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})  # noqa: E731
        try:
            create(name)
        except Refused:
            # A failed test is tried again, and namespaces are not deleted.
            name += "-again"
            create(name)
        # Pods cannot start in a namespace before these exist.
        until(lambda: "default" in self._names(name, "serviceaccounts"), f"an account in {name}", 120)
        until(lambda: "kube-root-ca.crt" in self._names(name, "configmaps"), f"the certificate of the API server in {name}", 120)
        try:
            yield name
        except BaseException as error:
            if not isinstance(error, Skip):
                describe.explain(self, name, error)
            raise
        finally:
            for kind in ("Deployment", "StatefulSet"):
                self.api.request("DELETE", path(kind, name), {"propagationPolicy": "Background"})
            for pod in self.api.get("Pod", name):
                with contextlib.suppress(Refused):
                    self.api.delete("Pod", name, pod["metadata"]["name"], gracePeriodSeconds=1)

    def _names(self, namespace, plural):
        found = self.api.request("GET", f"/api/v1/namespaces/{namespace}/{plural}").object["items"]
        return {item["metadata"]["name"] for item in found}


def _remove_leftovers():
    """Removes the files and the control groups of nodes whose process was killed."""
    for parent in [Path(tempfile.gettempdir()), *_hierarchies()]:
        for directory in parent.glob(f"{PREFIX}*"):
            if not _runs(directory.name.removeprefix(PREFIX)):
                _remove(Path(tempfile.gettempdir()) / directory.name)


def _runs(process):
    """Whether this process runs; an exited process that was not reaped has no command line."""
    try:
        return bool(Path("/proc", process, "cmdline").read_bytes())
    except OSError:
        return False


def _hierarchies():
    root = Path("/sys/fs/cgroup")
    return [root, *(entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink())]


def _remove(directory):
    """Removes a node's files and control groups; true when nothing is left."""
    shutil.rmtree(directory, ignore_errors=True)
    groups = [hierarchy / directory.name for hierarchy in _hierarchies()]
    for group in groups:
        for inner, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(inner)
    return not directory.exists() and not any(group.exists() for group in groups)
