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
MARK = "tokometer-cluster-"
NETWORK_OF_A_PROCESS = 0x40000000  # CLONE_NEWNET of <sched.h>.
# Timeout from the start until the node accepts pods. It takes less than a minute on an idle machine.
START_SECONDS = 400.0
# Programs that the node needs and that are not built with it.
PROGRAMS = ("unshare", "setpriv", "mount", "ip", "openssl")


@functools.cache
def _started():
    node = Cluster()
    atexit.register(node.stop)
    try:
        node.start()
    except Exception as why:  # noqa: BLE001 raised again for each test
        return node, why
    return node, None


def cluster():
    """The cluster of this process. All tests share it, so each works in its own namespace. It is started once: a node that did
    not start for the first test is not retried for the next one."""
    node, why = _started()
    if why:
        raise why
    return node


class Cluster:
    def __init__(self):
        self.process = None
        self.directory = Path(tempfile.gettempdir()) / f"{MARK}{os.getpid()}"
        self.environment = dict(os.environ, PATH=f"{BUILT}:{os.environ['PATH']}:/usr/sbin:/sbin", KUBECONFIG=str(self.directory / "admin.conf"), HOME=str(self.directory))
        self.api = Api(settings.SERVER, settings.token("admin"))

    def start(self):
        self._look_whether_it_can_run()
        _sweep()
        self.directory.mkdir(mode=0o711)
        began = time.monotonic()
        node = Path(__file__).parent / "node.py"
        alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # The kernel kills it when this process exits for any reason.
        self.process = Process("node", ["setpriv", "--pdeathsig", "KILL", *alone, sys.executable, str(node), str(self.directory), str(BUILT)])

        def ready():
            assert self.process.alive(), f"the node exited before it was ready: {self.process.output()[-3000:]}"
            return (self.directory / "ready").exists()

        until(ready, lambda: f"the node is ready: {self.process.output()[-1000:]}", START_SECONDS)
        self._join_its_network()
        for name, files, config in self._images():
            self._take(name, files, config)
        print(f"    the node is ready after {time.monotonic() - began:.0f} s", flush=True)

    def _look_whether_it_can_run(self):
        if os.geteuid() != 0:
            raise Skip("a node of Kubernetes needs root")
        if not (BUILT / "kubelet").exists():
            raise Skip("Kubernetes is not built (tests/components/fetch.sh cluster)")
        for program in PROGRAMS:
            if not shutil.which(program, path=self.environment["PATH"]):
                raise Skip(f"no {program}")
        tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
        if tried.returncode != 0:
            raise Skip(f"namespaces are not allowed here: {tried.stderr.strip()}")

    def _join_its_network(self):
        """Moves this process and its future children into the node's network, so that pods are reachable by their addresses."""
        with open(f"/proc/{self.process.child.pid}/ns/net") as network:
            library = ctypes.CDLL(None, use_errno=True)
            assert library.setns(network.fileno(), NETWORK_OF_A_PROCESS) == 0, os.strerror(ctypes.get_errno())

    def _images(self):
        yield settings.PAUSE, *images.pause(BUILT)
        context = self.directory / "context"
        (context / images.ARCHITECTURE).mkdir(parents=True)
        binary = context / images.ARCHITECTURE / "tokometer"
        shutil.copy(STATIC, binary)
        yield images.TOKOMETER, *images.tokometer(context)
        yield images.VLLM, *images.vllm(binary, BUILT)

    def _take(self, name, files, config):
        archive = self.directory / "image.tar"
        images.write_archive(archive, name, files, config)
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "images", "import", str(archive))
        archive.unlink()

    def take_llama_server(self):
        self._take(images.LLAMA, *images.llama_server(CACHE / "bin" / "llama-server"))

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
        done = subprocess.run(argv, env=self.environment, input=stdin, capture_output=True, text=True, timeout=seconds, cwd=cwd)
        # Helm logs the symlinks in the chart verbosely.
        output = "\n".join(line for line in (done.stderr or done.stdout).splitlines() if not line.startswith("level=INFO"))
        assert not check or done.returncode == 0, f"{' '.join(argv)} exited with {done.returncode}: {output}"
        return done

    def kubectl(self, *arguments, **how):
        return self.run("kubectl", *arguments, **how).stdout

    def helm(self, *arguments, **how):
        return self.run("helm", *arguments, **how).stdout

    def rename_image(self, name, other):
        """Adds another name to an image."""
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "images", "tag", name, other)

    def kill_container(self, pod, name, signal="SIGKILL"):
        """A crash from the kubelet's point of view: a process of the container is killed."""
        statuses = pod["status"].get("initContainerStatuses", []) + pod["status"]["containerStatuses"]
        identity = next(status["containerID"] for status in statuses if status["name"] == name).rpartition("/")[2]
        self.run("ctr", "-a", f"{self.directory}/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", signal, identity)

    @contextlib.contextmanager
    def namespace(self, name, labels=None):
        """A namespace for one test. If the test fails, the state of its pods is printed; then they are deleted immediately."""
        self.api.make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
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
                self.api.ask("DELETE", path(kind, name), {"propagationPolicy": "Background"})
            for pod in self.api.get("Pod", name):
                with contextlib.suppress(Refused):
                    self.api.remove("Pod", name, pod["metadata"]["name"], gracePeriodSeconds=1)

    def _names(self, namespace, plural):
        found = self.api.ask("GET", f"/api/v1/namespaces/{namespace}/{plural}").object["items"]
        return {one["metadata"]["name"] for one in found}


def _sweep():
    """Removes the remains of killed processes."""
    for place in [Path(tempfile.gettempdir()), *_hierarchies()]:
        for left in place.glob(f"{MARK}*"):
            if not _runs(left.name.removeprefix(MARK)):
                _remove(Path(tempfile.gettempdir()) / left.name)


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
