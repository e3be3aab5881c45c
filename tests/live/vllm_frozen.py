"""A real vLLM whose engine process is stopped, and one that is killed, with the default settings (`make live-vllm`)."""

import contextlib
import os
import signal
import threading
import time

import httpx2 as httpx
from process import Tokometer, get, until
from vllm_process import engine, engine_cores, engine_health

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
        until(lambda: engine_health(relay)[1]["decoding"] == 4, lambda: f"four streams decode: {engine_health(relay)}", 60)
        until(lambda: relay.total("tokometer_engine_iterations_total") > 100, "vLLM's iterations are scraped", 60)
        (core,), began = engine_cores(server), time.monotonic()
        os.kill(core, signal.SIGSTOP)
        try:
            wedged = lambda: (lambda health: health[0] == 503 and health[1])(engine_health(relay))
            verdict = until(wedged, lambda: f"wedged: {engine_health(relay)}", 30)
            detected_after = time.monotonic() - began
            health = get(f"http://127.0.0.1:{server.port}/health")[0]
            time.sleep(max(0, 30 - (time.monotonic() - began)))
            assert engine_health(relay)[0] == 503, engine_health(relay)
        finally:
            os.kill(core, signal.SIGCONT)
        assert verdict["state"] == "wedged" and verdict["rule"] == "decode" and 19 < detected_after < 27, (detected_after, verdict)
        until(lambda: engine_health(relay)[0] == 200, lambda: f"the engine recovers: {engine_health(relay)}", 20)
        print(f"    503 after {detected_after:.1f} s, while vLLM's /health returned {health}")
        stop.set()
        server.kill()
        began = time.monotonic()
        until(lambda: engine_health(relay)[1]["state"] == "unreachable", lambda: f"unreachable: {engine_health(relay)}", 20)
        assert engine_health(relay)[0] == 503
        print(f"    killed: unreachable after {time.monotonic() - began:.1f} s")


def default_settings_detect_a_frozen_and_a_killed_engine():
    with engine("python") as server:
        _freeze_and_kill(server)


def default_settings_detect_a_frozen_engine_behind_the_rust_front_end():
    with engine("rust") as server:
        _freeze_and_kill(server)
