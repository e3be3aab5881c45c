"""Servers that stop during requests: the engine's health endpoint reports them as wedged within the bound, and recovers
immediately."""

import json
import signal
import socket
import subprocess
import threading
import time

import httpx2 as httpx

import names
from process import BINARY, Tokometer, get, start_llama_server, start_sim, until

# The silence bounds of these tests in seconds, far below the defaults.
DECODE, PREFILL = 2, 3
BOUNDS = {"decode": f"{DECODE}s", "prefill": f"{PREFILL}s"}
# Maximum delay of the health status on a busy machine.
MAX_DELAY = 1.5


class _StreamClient(threading.Thread):
    """One streamed chat, read to its end by a thread."""

    def __init__(self, port, prompt, max_tokens=3000, fault=None):
        super().__init__(daemon=True)
        self.url, self.chunks, self.done = f"http://127.0.0.1:{port}/v1/chat/completions", 0, False
        self.body = {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
        self.body["messages"] = [{"role": "user", "content": prompt}]
        self.headers = {names.SIM_FAULT: fault} if fault else {}
        self.start()

    def run(self):
        with httpx.stream("POST", self.url, json=self.body, headers=self.headers, timeout=150.0) as response:
            assert response.status_code == 200, response.status_code
            for line in response.iter_lines():
                self.chunks += line.startswith("data: {")
                self.done |= line == "data: [DONE]"


def _health(relay):
    status, body = get(f"http://127.0.0.1:{relay.admin}/engine/healthz")
    assert status in (200, 503), (status, body)
    return status, json.loads(body)["listeners"][0]


def _open_requests(relay):
    return json.loads(get(f"http://127.0.0.1:{relay.admin}/requests")[1])["open"]


def _wait_status(relay, status, seconds):
    """Waits for this status; returns how long that took, and the body."""
    began = time.monotonic()
    listener_if_status = lambda: (lambda health: health[0] == status and health[1])(_health(relay))
    listener = until(listener_if_status, lambda: f"{status}: {_health(relay)}", seconds)
    return time.monotonic() - began, listener


def _check_stopped_server(server, relay, rule, bound, clients):
    """Checks that a stopped server is reported as wedged within the bound, and that the next token after SIGCONT clears it."""
    assert _health(relay)[0] == 200
    detected_after, listener = _wait_status(relay, 503, bound + MAX_DELAY)
    assert (listener["state"], listener["rule"]) == ("wedged", rule), listener
    assert bound - 0.2 < detected_after, f"reported {detected_after:.2f} s after the stop, before the bound of {bound:.2f} s"
    assert relay.total("tokometer_engine_wedged") == 1
    assert relay.total("tokometer_engine_silence_seconds") > listener["bound_secs"]
    server.child.send_signal(signal.SIGCONT)
    recovered_after, _ = _wait_status(relay, 200, 10.0)
    for client in clients:
        client.join(60)
        assert client.done, "the response was completed"
    detected = f"503 after {detected_after:.2f} s (bound {listener['bound_secs']:.2f} s)"
    print(f"    {rule}: {detected}, 200 again {recovered_after * 1000:.0f} ms after SIGCONT")
    until(lambda: _health(relay)[1]["state"] == "idle", "no request is pending at the end")
    assert relay.total("tokometer_engine_wedged") == 0


def server_stopped_during_decode_is_wedged():
    with start_llama_server() as server, Tokometer(server.port, wedge=BOUNDS) as relay:
        clients = [_StreamClient(relay.port, "Loop.") for _ in range(3)]
        until(lambda: all(client.chunks > 5 for client in clients), "every stream decodes")
        server.child.send_signal(signal.SIGSTOP)
        # Tokens that the server sent before the stop may still be in transit.
        assert all(request["doing"] == "decode" for request in _open_requests(relay)), _open_requests(relay)
        _check_stopped_server(server, relay, "decode", DECODE, clients)
        requests = json.loads(get(f"http://127.0.0.1:{relay.admin}/requests")[1])
        slowest = requests["longest_gap"][0]
        points = slowest["timeline"]["points"]
        assert slowest["longest_gap_ms"] > 2000 and len(points) <= 48, slowest
        assert max(point[2] for point in points) > 0.998 * slowest["longest_gap_ms"], slowest
        assert points[-1][0] <= slowest["last_token_ms"] + 0.01, slowest


def server_stopped_during_prefill_is_wedged():
    with start_llama_server() as server, Tokometer(server.port, wedge=BOUNDS) as relay:
        for attempt in range(10):
            # The longest prompt that fits in the model's context of 2,048 tokens.
            prompt = f"{attempt} " + "The quick brown fox jumps over the lazy dog. " * 95
            client = _StreamClient(relay.port, prompt, max_tokens=20)
            until(lambda: _open_requests(relay) or client.done, "the request is in flight")
            server.child.send_signal(signal.SIGSTOP)
            doing = [request["doing"] for request in _open_requests(relay)]
            if doing == ["prefill"]:
                break
            print(f"    the prompt was processed before the stop ({doing}): retrying")
            server.child.send_signal(signal.SIGCONT)
            client.join(60)
        assert doing == ["prefill"], doing
        prompt_seconds = _open_requests(relay)[0]["request_bytes"] / 4 / 200
        _check_stopped_server(server, relay, "prefill", PREFILL + prompt_seconds, [client])


def engine_frozen_behind_a_healthy_api_server_is_wedged():
    with start_sim(*names.SIM_QUICK, "--model", "tiny") as server, Tokometer(server.port, wedge=BOUNDS) as relay:
        client = _StreamClient(relay.port, "hi", max_tokens=20, fault="hang:6")
        took, listener = _wait_status(relay, 503, PREFILL + MAX_DELAY)
        assert get(f"http://127.0.0.1:{server.port}/health")[0] == 200, "the server's own health check passes"
        assert get(f"http://127.0.0.1:{relay.admin}/livez")[0] == 200, "tokometer itself is live"
        client.join(60)
        assert client.done and _wait_status(relay, 200, 5.0), "its response arrived"
        print(f"    503 after {took:.2f} s, while the server's /health returns 200")


def one_minute_prefill_is_not_wedged_by_default():
    with start_sim("--ttft-ms", "60000", "--model", "tiny", "--tokens", "20") as slow, Tokometer(slow.port) as relay:
        long = _StreamClient(relay.port, "The quick brown fox jumps over the lazy dog. " * 300, max_tokens=20)
        with start_sim(*names.SIM_QUICK, "--model", "tiny") as quick, Tokometer(quick.port) as second:
            # Alongside, a stream waits equally long for its next token.
            stalled = _StreamClient(second.port, "hi", max_tokens=20, fault="stall:61")
            _StreamClient(second.port, "The quick brown fox jumps over the lazy dog. " * 300, max_tokens=20, fault="hang:61")
            until(lambda: {request["doing"] for request in _open_requests(second)} == {"prefill", "decode"}, "both are in flight")
            probes, worst = 0, 0.0
            while not (long.done and stalled.done):
                for proxy in (relay, second):
                    began = time.monotonic()
                    status, listener = _health(proxy)
                    assert status == 200, listener
                    probes, worst = probes + 1, max(worst, time.monotonic() - began)
                time.sleep(0.05)
        assert relay.records()[0]["time_to_first_token_ms"] > 59_000, relay.records()
        print(f"    {probes} probes, all 200; the slowest took {worst * 1000:.0f} ms")


def server_blocked_on_its_client_is_not_wedged():
    with start_sim(*names.SIM_UNPACED, "--model", "tiny", "--tokens", "30000") as server, Tokometer(server.port, wedge=BOUNDS) as relay:
        body = json.dumps({"model": "tiny", "stream": True, "max_tokens": 30000, "messages": [{"role": "user", "content": "hi"}]})
        with socket.create_connection(("127.0.0.1", relay.port)) as client:
            client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: _health(relay)[1]["blocked"] == 1, "the stream is blocked on the client")
            began = time.monotonic()
            while time.monotonic() - began < 2 * DECODE:
                status, listener = _health(relay)
                assert status == 200, listener
            assert relay.total("tokometer_in_flight_blocked") == 1


def probe_responds_promptly_during_five_hundred_streams():
    with start_sim("--rate", "20", "--model", "tiny", "--tokens", "200", "--max-concurrency", "600") as server, Tokometer(server.port) as relay:
        argv = [BINARY, "load", "--url", f"http://127.0.0.1:{relay.port}", "--model", "tiny", "--concurrency", "500", "--for", "30s", "--max-tokens", "200"]
        load = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(lambda: _health(relay)[1]["in_flight"] >= 400, lambda: f"streams run: {_health(relay)}", 30)
            times = []
            while len(times) < 200:
                began = time.monotonic()
                status, listener = _health(relay)
                times.append(time.monotonic() - began)
                assert status == 200, listener
        finally:
            load.terminate()
            load.wait()
        times.sort()
        print(f"    {listener['in_flight']} in flight: median {times[100] * 1000:.1f} ms, worst {times[-1] * 1000:.1f} ms of 200 probes")
        assert times[-1] < 2.0, "a liveness probe of Kubernetes waits for a second or two"
