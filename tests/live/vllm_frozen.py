"""A real vLLM whose engine process is stopped, and one that is killed, with the default settings (`make live-vllm`)."""

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx2 as httpx
from process import Tokometer, get, until
from vllm_process import engine

# vLLM takes a minute or two to start.
MOST_SECONDS = 900


def _engine_core(server):
    """The process that runs the model, a child of the API server."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            group = int(stat.read_text().rpartition(")")[2].split()[2])
            if group == server.child.pid and b"EngineCore" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
    raise AssertionError("no engine process")


def _state(relay):
    status, body = get(f"http://127.0.0.1:{relay.admin}/engine/healthz")
    return status, json.loads(body)["listeners"][0]


def freeze_and_kill(server):
    """Stops the engine's process for 30 s, and kills the server after that."""
    with Tokometer(server.port) as relay:
        url, stop = f"http://127.0.0.1:{relay.port}/v1/completions", threading.Event()

        def client():
            body = {"model": "tiny", "prompt": "Once", "stream": True, "max_tokens": 900, "ignore_eos": True}
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError), httpx.stream("POST", url, json=body, timeout=120) as answer:
                    for _ in answer.iter_lines():
                        if stop.is_set():
                            break

        clients = [threading.Thread(target=client, daemon=True) for _ in range(4)]
        for thread in clients:
            thread.start()
        until(lambda: _state(relay)[1]["decoding"] == 4, lambda: f"four streams decode: {_state(relay)}", 60)
        until(lambda: relay.total("tokometer_engine_iterations_total") > 100, "its iterations are read", 60)
        core, began = _engine_core(server), time.monotonic()
        os.kill(core, signal.SIGSTOP)
        try:
            state = until(lambda: (lambda said: said[0] == 503 and said[1])(_state(relay)), lambda: f"wedged: {_state(relay)}", 30)
            took = time.monotonic() - began
            health = get(f"http://127.0.0.1:{server.port}/health")[0]
            time.sleep(max(0, 30 - (time.monotonic() - began)))
            assert _state(relay)[0] == 503, _state(relay)
        finally:
            os.kill(core, signal.SIGCONT)
        assert state["state"] == "wedged" and state["rule"] == "decode" and 19 < took < 27, (took, state)
        until(lambda: _state(relay)[0] == 200, lambda: f"it recovers: {_state(relay)}", 20)
        print(f"    503 after {took:.1f} s, while vLLM's /health said {health}")
        stop.set()
        server.kill()
        began = time.monotonic()
        until(lambda: _state(relay)[1]["state"] == "unreachable", lambda: f"unreachable: {_state(relay)}", 10)
        assert _state(relay)[0] == 503
        print(f"    killed: unreachable after {time.monotonic() - began:.1f} s")


def an_engine_frozen_for_30_s_is_noticed_by_default_and_a_killed_one_is_unreachable():
    with engine("python") as server:
        freeze_and_kill(server)


def the_same_is_noticed_behind_the_rust_front_end():
    with engine("rust") as server:
        freeze_and_kill(server)
