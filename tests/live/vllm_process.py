"""A real vLLM with either of its front ends, its processes and its metrics."""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

from process import Process, Skip, free_port, get

START_SECONDS = 600

CACHE = Path(os.environ.get("TOKOMETER_TEST_CACHE", Path.home() / ".cache/tokometer-tests"))
# The component that is tested: `vllm`, or `vllm-next` for a newer version.
PROGRAM = os.environ.get("TOKOMETER_TEST_VLLM", "vllm")
# The model's files, written by tests/components/vllm/model.py.
MODEL = CACHE / "vllm-model"


@contextlib.contextmanager
def engine(front_end, *flags):
    program = shutil.which(PROGRAM)
    if not program:
        raise Skip(f"no {PROGRAM}; `make live-vllm` installs it")
    port = free_port()
    # Read by vLLM and by its wrapper script (tests/components/fetch.sh). The cache directory is kept: without it, vLLM
    # starts another Python process to inspect the model, which takes as long as the rest of the start.
    rust = "1" if front_end == "rust" else "0"
    # vLLM's processes poll with sched_yield(), which on two CPUs and Linux 6.18 keeps all other processes waiting for
    # seconds. Tokometer and the clients get real-time priority if that is permitted, because on a machine with a GPU,
    # CPUs would be free for them.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    argv = ["chrt", "--other", "0", "env", f"VLLM_USE_RUST_FRONTEND={rust}", f"VLLM_CACHE_ROOT={CACHE / PROGRAM}-cache", program]
    with Process(f"vllm-{front_end}", [*argv, "--host", "127.0.0.1", "--port", str(port), *flags], group=True) as server:
        server.port = port
        began = time.monotonic()
        server.ready(f"http://127.0.0.1:{port}/health", START_SECONDS)
        version = json.loads(get(f"http://127.0.0.1:{port}/version")[1])["version"]
        print(f"    vLLM {version}, {front_end} front end: ready after {time.monotonic() - began:.0f} s", flush=True)
        yield server


def engine_cores(server):
    """The processes that run the model, one per data-parallel rank, in the order of their start: children of the API server."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == server.child.pid and b"EngineCore" in (stat.parent / "cmdline").read_bytes():
                processes.append((int(fields[19]), int(stat.parent.name)))
    assert processes, "no engine process"
    return [pid for _, pid in sorted(processes)]


def engine_health(relay):
    status, body = get(f"http://127.0.0.1:{relay.admin}/engine/healthz")
    return status, json.loads(body)["listeners"][0]


def metric_total(port, name):
    """The sum of the engine's samples of this name."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(get(f"http://127.0.0.1:{port}/metrics")[1])
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)
