"""Processes under test: started on free ports, polled until ready, and always stopped."""

import contextlib
import json
import os
import random
import resource
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import names

BINARY = os.environ["TOKOMETER_BIN"]
MODEL = Path(__file__).resolve().parent.parent / "fixtures" / "models" / "tiny-chat.gguf"


class Skip(Exception):
    """This machine cannot run the test; the message is the reason."""


# Ports that `free_port` has returned. They are not returned again, because a server may start on its port later.
_used_ports = set()


def free_port():
    """A port below the kernel's ephemeral range, different each time."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _used_ports:
            _used_ports.add(port)
            return port


def until(condition, description, seconds=15.0):
    """Polls until the condition holds and returns its value. Fails after `seconds`, and reports `description`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {description() if callable(description) else description}"
        time.sleep(0.01)


def get(url, accept=None, timeout=5.0):
    """Status and body of a GET; (0, "") without a response."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(url):
    """Samples of a metrics page: (name, labels) -> value."""
    from prometheus_client.parser import text_string_to_metric_families

    status, page = get(url)
    assert status == 200, f"{url} returned {status}"
    families = text_string_to_metric_families(page)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def total(samples, name, **labels):
    """Sum over the series of this name that have these labels."""
    expected = set(labels.items())
    return sum(value for (n, sample_labels), value in samples.items() if n == name and expected <= set(sample_labels))


class Process:
    """A child process with its output in a file. `with` stops it, and with `group` also the children that it started."""

    def __init__(self, name, argv, fd_limit=None, group=False, variables=None):
        self.name, self.group = name, group
        self.log = tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log")
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (fd_limit, fd_limit))) if fd_limit else None
        # Environment variables of the tests or of other programs must not affect the process under test.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TOKOMETER_", "OTEL_"))}
        environment |= variables or {}
        self.child = subprocess.Popen(argv, stdout=self.log, stderr=self.log, preexec_fn=limit, env=environment, start_new_session=group)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and kind is not Skip:
            print(f"    last lines of {self.name}:", *self.output().splitlines()[-12:], sep="\n      ")
        self.kill()
        self.log.close()

    def output(self):
        return Path(self.log.name).read_text(errors="replace")

    def alive(self):
        return self.child.poll() is None

    def ready(self, url, seconds=30.0):
        def responds():
            assert self.alive(), f"{self.name} exited with {self.child.returncode} before it was ready: {self.output()[-600:]}"
            return get(url)[0] == 200

        until(responds, f"{self.name} responds to {url}", seconds)
        return self

    def terminate(self):
        self.child.send_signal(signal.SIGTERM)

    def wait(self, seconds):
        return self.child.wait(seconds)

    def kill(self):
        if self.group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
        if self.alive():
            self.child.kill()
        self.child.wait()

    def rss_bytes(self):
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def fds(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Tokometer(Process):
    """`tokometer run` in front of a server on loopback, with its access log and its metrics."""

    def __init__(self, upstream_port, fd_limit=None, **settings):
        self.directory = tempfile.TemporaryDirectory(prefix="tokometer-")
        self.access_log = Path(self.directory.name) / "access.jsonl"
        file = Path(self.directory.name) / "tokometer.yaml"
        file.write_text(names.config(access_log=self.access_log, **settings))
        self.port, self.admin = free_port(), free_port()
        argv = [BINARY, "run", "--listen", f"127.0.0.1:{self.port}", "--upstream", f"127.0.0.1:{upstream_port}"]
        argv += ["--admin", f"127.0.0.1:{self.admin}", "--config", str(file)]
        # Spans are exported twice a second.
        super().__init__("tokometer", argv, fd_limit, variables={"OTEL_BSP_SCHEDULE_DELAY": "500"})
        self.ready(f"http://127.0.0.1:{self.admin}/readyz")

    def __exit__(self, *error):
        super().__exit__(*error)
        self.directory.cleanup()

    def records(self):
        """The access log so far: one dictionary per finished request."""
        if not self.access_log.exists():
            return []
        complete_lines = self.access_log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in complete_lines.splitlines()]

    def wait_for_records(self, count, seconds=15.0):
        until(lambda: len(self.records()) >= count, lambda: f"{count} requests in the access log, got {len(self.records())}", seconds)
        records = self.records()
        assert len(records) == count, f"{len(records)} requests in the access log, expected {count}"
        return records

    def metrics(self):
        return metrics(f"http://127.0.0.1:{self.admin}/metrics")

    def total(self, name, **labels):
        return total(self.metrics(), name, **labels)


def start_sim(*flags, port=None):
    """The simulated server; `port` is the port it listens on."""
    port = port or free_port()
    sim = Process("sim", [BINARY, "sim", "--listen", f"127.0.0.1:{port}", *flags])
    sim.port = port
    return sim.ready(f"http://127.0.0.1:{port}/health")


def start_llama_server(*flags, slots=8, prefix=""):
    """A real llama-server with the tiny chat model, with this many slots and this prefix of all paths."""
    port = free_port()
    argv = ["llama-server", "-m", str(MODEL), "--host", "127.0.0.1", "--port", str(port), "-c", "32768", "-np", str(slots)]
    argv += ["-t", "1", "--metrics", "--slots", "--jinja", "--no-webui", "--api-prefix", prefix, *flags]
    try:
        server = Process("llama-server", argv)
    except FileNotFoundError:
        raise Skip("no llama-server") from None
    server.port = port
    return server.ready(f"http://127.0.0.1:{port}{prefix}/health")
