"""A real vLLM whose engine process is stopped, and one that is killed, with the default settings (`make live-vllm`)."""

import contextlib
import os
import signal
import threading
import time

import httpx2 as httpx
from process import Tokometer, get, until
from vllm_process import engine, engine_cores, state

# vLLM takes a minute or two to start.
MAX_SECONDS = 900


def _freeze_and_kill(server):
    """Stops the engine's process for 30 s, and kills the server after that."""
    with Tokometer(server.port) as relay:
        url, stop = f"http://127.0.0.1:{relay.port}/v1/completions", threading.Event()

        def client():
            body = {"model": "tiny", "prompt": "Once", "stream": True, "max_tokens": 900, "ignore_eos": True}
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError), httpx.stream("POST", url, json=body, timeout=120) as response:
                    for _ in response.iter_lines():
                        if stop.is_set():
                            break

        clients = [threading.Thread(target=client, daemon=True) for _ in range(4)]
        for thread in clients:
            thread.start()
        until(lambda: state(relay)[1]["decoding"] == 4, lambda: f"four streams decode: {state(relay)}", 60)
        until(lambda: relay.total("tokometer_engine_iterations_total") > 100, "its iterations are read", 60)
        (core,), began = engine_cores(server), time.monotonic()
        os.kill(core, signal.SIGSTOP)
        try:
            verdict = until(lambda: (lambda said: said[0] == 503 and said[1])(state(relay)), lambda: f"wedged: {state(relay)}", 30)
            took = time.monotonic() - began
            health = get(f"http://127.0.0.1:{server.port}/health")[0]
            time.sleep(max(0, 30 - (time.monotonic() - began)))
            assert state(relay)[0] == 503, state(relay)
        finally:
            os.kill(core, signal.SIGCONT)
        assert verdict["state"] == "wedged" and verdict["rule"] == "decode" and 19 < took < 27, (took, verdict)
        until(lambda: state(relay)[0] == 200, lambda: f"it recovers: {state(relay)}", 20)
        print(f"    503 after {took:.1f} s, while vLLM's /health said {health}")
        stop.set()
        server.kill()
        began = time.monotonic()
        until(lambda: state(relay)[1]["state"] == "unreachable", lambda: f"unreachable: {state(relay)}", 10)
        assert state(relay)[0] == 503
        print(f"    killed: unreachable after {time.monotonic() - began:.1f} s")


def default_settings_detect_a_frozen_and_a_killed_engine():
    with engine("python") as server:
        _freeze_and_kill(server)


def default_settings_detect_a_frozen_engine_behind_the_rust_front_end():
    with engine("rust") as server:
        _freeze_and_kill(server)
