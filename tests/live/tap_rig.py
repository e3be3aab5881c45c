"""Two network namespaces with a link between them, and taps in them."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from process import BINARY, Process, Skip, until

POD_IP, CLIENT_IP = "10.231.9.2", "10.231.9.1"
POD_IP6, CLIENT_IP6 = "fd00:231:9::2", "fd00:231:9::1"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"


def _add_namespace(name):
    try:
        ip("netns", "add", name)
    except (OSError, AssertionError) as reason:
        raise Skip(f"no network namespaces here: {reason}") from None


class Network:
    """Two namespaces, one for a pod and one for its clients, each with the interface `link0`. `with` stops everything in them."""

    mtu = 1500

    def __enter__(self):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        self.stack = contextlib.ExitStack()
        self.pod, self.client = f"tokometer-tap-pod-{os.getpid()}", f"tokometer-tap-client-{os.getpid()}"
        try:
            for namespace in (self.pod, self.client):
                _add_namespace(namespace)
                self.stack.callback(ip, "netns", "del", namespace)
                ip("-n", namespace, "link", "set", "lo", "up")
            self.connect()
            for namespace, address, address6 in ((self.pod, POD_IP, POD_IP6), (self.client, CLIENT_IP, CLIENT_IP6)):
                ip("-n", namespace, "address", "add", f"{address}/24", "dev", "link0")
                # IPv6 needs an MTU of at least 1280 bytes (RFC 8200, section 5).
                if self.mtu >= 1280:
                    ip("-n", namespace, "address", "add", f"{address6}/64", "dev", "link0", "nodad")
            self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tokometer-tap-")))
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def connect(self):
        """Connects the namespaces by a veth pair."""
        ip("-n", self.pod, "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", self.client)
        for namespace in (self.pod, self.client):
            ip("-n", namespace, "link", "set", "link0", "up")

    def start(self, namespace, name, *argv):
        return self.stack.enter_context(Process(name, ["ip", "netns", "exec", namespace, *argv]))

    def sim(self, listen, *flags):
        sim = self.start(self.pod, "sim", BINARY, "sim", "--listen", listen, *(flags or ("--rate", "200", "--ttft-ms", "20")))
        until(lambda: "on http://" in sim.output(), lambda: f"the simulator runs: {sim.output()}")

    def run(self, namespace, *argv, seconds=120):
        done = subprocess.run(["ip", "netns", "exec", namespace, *argv], capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_script(self, namespace, script, data):
        """Runs a Python script with this input."""
        argv = ["ip", "netns", "exec", namespace, sys.executable, "-c", script]
        done = subprocess.run(argv, input=data, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def load(self, namespace, url, requests, tokens, *flags):
        argv = [BINARY, "load", "--url", url, "--requests", str(requests), "--max-tokens", str(tokens), "--json", *flags]
        summary = json.loads(self.run(namespace, *argv))
        assert summary["requests"] == requests and summary["tokens_from_usage"] > 0, summary
        return summary

    def tap(self, namespace, name, *flags):
        """Starts a tap of this name, and waits until it captures."""
        log = ["--set=access_log.enabled=true", f"--set=access_log.path={self.directory / name}", "--set=access_log.format=json"]
        argv = [BINARY, "tap", "--admin=127.0.0.1:9464", "--set=scrape.enabled=false", *log, *flags]
        tap = self.start(namespace, name, *argv)
        until(lambda: "The admin server is listening" in tap.output(), lambda: f"{name} runs: {tap.output()}")
        return tap

    def records(self, name, count):
        """The records in the access log of a tap, once there are this many; fails if there are more."""
        log = self.directory / name
        lines = lambda: log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
        until(lambda: len(lines()) >= count, lambda: f"{count} records, got {len(lines())} ({name})", 30)
        assert len(lines()) == count, (name, len(lines()), count)
        return [json.loads(line) for line in lines()]

    def page(self, namespace):
        return self.run(namespace, "curl", "-s", "http://127.0.0.1:9464/metrics")


class BadNetwork(Network):
    """The link loses, repeats, delays and swaps packets."""

    def __init__(self, mtu, seed):
        self.mtu, self.seed = mtu, seed

    def connect(self):
        if not os.path.exists("/dev/net/tun"):
            raise Skip("the link needs /dev/net/tun")
        script = Path(__file__).with_name("lossy_link.py")
        argv = [sys._base_executable, str(script), self.pod, self.client, str(self.mtu), str(self.seed)]
        link = self.stack.enter_context(Process("link", argv))
        has_link = lambda namespace: subprocess.run(["ip", "-n", namespace, "link", "show", "link0"], capture_output=True).returncode == 0
        for namespace in (self.pod, self.client):
            until(lambda: has_link(namespace), lambda: f"{namespace} has the link: {link.output()}")


def metric_sum(page, name, labels=""):
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name) and labels in line]
    return sum(map(float, values))


def check_complete(page):
    """Checks that all packets were captured and parsed."""
    for name in ("packets_lost", "gaps", "packets_unread"):
        assert metric_sum(page, f"tokometer_capture_{name}_total") == 0, page
