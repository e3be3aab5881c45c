"""A real llama-server measured by the proxy and by `tokometer tap` at once: their records are equal field by field."""

import contextlib
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx

import names
from process import BINARY, Process, Skip, Tokometer, free_port, metrics, start_llama_server, total, until

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
PROMPTS = ("Say hello.", "Count.", "Emoji please.", "Loop.", "Think about it.")
STREAMS = 20

# Values that may differ: connection and listener numbers, and values that depend on times (whether a pause was a stall).
MAY_DIFFER = {"time", "connection", "listener", "stalls", "ttft_network_share"}
# A tap on the server's side may capture one more event than the proxy read before the client disconnected.
MAY_BE_UNREAD = {"output_tokens", "events", "chunks", "response_bytes", "retransmits", "error_type"}

# Maximum median difference between the two records of a time, in milliseconds; holds on a busy machine too.
MAX_DIFFERENCE_MS = 5.0


def _body(path, prompt, stream, **more):
    prompt_field = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": "tiny", "temperature": 0, "stream": stream, "n_predict" if path == NATIVE else "max_tokens": 60} | prompt_field | more


def _requests():
    """Requests of every kind."""
    usage = {"stream_options": {"include_usage": True}}
    yield "usage", CHAT, _body(CHAT, "Count.", True, **usage)
    yield "no-usage", CHAT, _body(CHAT, "Say hello.", True)
    yield "embedding", "/v1/embeddings", {"model": "tiny", "input": "hello"}
    yield "native-not-streamed", NATIVE, _body(NATIVE, "Once", False)
    yield "not-streamed", CHAT, _body(CHAT, "Emoji please.", False)
    yield "two-choices", CHAT, _body(CHAT, "Think about it.", True, n=2, **usage)
    yield "text", TEXT, _body(TEXT, "Once", True, **usage)
    yield "native", NATIVE, _body(NATIVE, "Once", True)
    yield "prompt", CHAT, _body(CHAT, "The quick brown fox. " * 200, True, **usage)
    yield "invalid", CHAT, _body(CHAT, "hi", True, grammar="root ::= [")
    yield "unknown", "/v1/unknown", {}


def _send(client, url, name, path, body):
    return client.post(url + path, json=body, headers={"x-request-id": name}).status_code


def _abort(url):
    """Disconnects in the middle of a stream."""
    body = _body(CHAT, "Loop.", True, max_tokens=3000, ignore_eos=True)
    with httpx.Client(timeout=60) as client:
        with client.stream("POST", url + CHAT, json=body, headers={"x-request-id": "aborted"}) as response:
            events = (line for line in response.iter_lines() if line.startswith("data: "))
            for _ in range(5):
                next(events)


def _send_concurrent_streams(url):
    def send_stream(number):
        with httpx.Client(timeout=60) as client:
            body = _body(CHAT, PROMPTS[number % len(PROMPTS)], True, max_tokens=100 + 7 * number, stream_options={"include_usage": True})
            _send(client, url, f"stream-{number}", CHAT, body)

    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(send_stream, range(STREAMS)))


@contextlib.contextmanager
def _tap(relay, server):
    """A tap of the proxy's port (listener 0) and of the server's (listener 1)."""
    admin, log = free_port(), Path(relay.directory.name) / "tap.jsonl"
    argv = [BINARY, "tap", "--port", str(relay.port), "--port", str(server.port), "--interface", "lo", "--admin", f"127.0.0.1:{admin}"]
    argv += ["--set=access_log.enabled=true", f"--set=access_log.path={log}", "--set=access_log.format=json", "--set=scrape.enabled=false"]
    with Process("tap", argv) as tap:
        until(lambda: "The admin server is listening" in tap.output() or not tap.alive(), lambda: tap.output())
        if not tap.alive():
            assert "NET_RAW" in tap.output(), tap.output()
            raise Skip("no capability NET_RAW")
        tap.records = lambda: [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()]
        tap.page = f"http://127.0.0.1:{admin}/metrics"
        yield tap


def _compare(proxied, captured, side, times):
    for key, value in proxied.items():
        other = captured[key]
        if key in MAY_DIFFER or key.startswith("decode_tokens_per_second"):
            assert (value is None) == (other is None), (side, key, value, other, proxied)
        elif key.endswith("_ms"):
            # A time may exist on one side only: only the proxy has a client, and only a stalled client blocks.
            if value is not None and other is not None:
                times.setdefault(key, []).append(abs(value - other))
        elif not (side == 1 and key in MAY_BE_UNREAD and proxied["outcome"] == names.ABORTED):
            assert value == other, (side, key, value, other, proxied)


def proxy_and_tap_records_are_equal():
    with start_llama_server() as server, Tokometer(server.port) as relay, _tap(relay, server) as tap:
        url = f"http://127.0.0.1:{relay.port}"
        client = httpx.Client(timeout=60)
        for name, path, body in _requests():
            status = _send(client, url, name, path, body)
            if body.get("stream") or status != 200:
                # The server closes some connections afterwards, perhaps while the next request is in transit.
                client.close()
                client = httpx.Client(timeout=60)
        client.close()
        _abort(url)
        _send_concurrent_streams(url)
        count = 11 + 1 + STREAMS
        proxied = {record["request_id"]: record for record in relay.wait_for_records(count)}
        assert len(proxied) == count, sorted(proxied)
        until(lambda: len(tap.records()) >= 2 * count, lambda: f"{2 * count} records of the tap, got {len(tap.records())}")
        for side in (0, 1):
            captured = {record["request_id"]: record for record in tap.records() if record["listener"] == side}
            assert captured.keys() == proxied.keys(), (side, captured.keys() ^ proxied.keys())
            times = {}
            for name, record in proxied.items():
                assert record.keys() == captured[name].keys(), record.keys() ^ captured[name].keys()
                _compare(record, captured[name], side, times)
            for key in ("time_to_first_token_ms", "longest_gap_ms", "ended_ms"):
                median, worst = statistics.median(times[key]), max(times[key])
                print(f"    {('client', 'server')[side]}'s side, {key}: median {median * 1000:.0f} us, worst {worst * 1000:.0f} us of {len(times[key])}")
                assert median < MAX_DIFFERENCE_MS, (side, key, sorted(times[key]))
        print(f"    {count} requests: {sorted({record['outcome'] for record in proxied.values()})}")
        samples = metrics(tap.page)
        for name in ("packets_lost", "gaps", "packets_unread"):
            assert total(samples, f"tokometer_capture_{name}_total") == 0, name
