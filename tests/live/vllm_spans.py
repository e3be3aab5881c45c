"""Queue times from the spans of a real vLLM: part of `make live-vllm`."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import names
from collector import Collector
from process import Process, Skip, Tokometer, free_port, until
from vllm_process import PROGRAM

# Start-up takes a minute or two, more on a busy machine.
MAX_SECONDS = 1200


def _send_request(port, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()


def _send_requests(port, count, usage):
    body = {"model": "tiny", "stream": True, "max_tokens": 12, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Say hello."}]
    if usage:
        body["stream_options"] = {"include_usage": True}
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda _: _send_request(port, body), range(count)))


def queue_times_match_vllm_responses():
    receiver, port = f"127.0.0.1:{free_port()}", free_port()
    argv = [PROGRAM, "--host", "127.0.0.1", "--port", str(port), "--otlp-traces-endpoint", f"http://{receiver}"]
    argv += ["--max-num-seqs", "4", "--enable-per-request-metrics"]
    try:
        vllm = Process("vllm", argv, group=True)
    except FileNotFoundError:
        raise Skip(f"no {PROGRAM} (tests/components/fetch.sh {PROGRAM})") from None
    with vllm, Collector() as collector, Tokometer(port, otlp=collector.url, otlp_receiver=receiver) as proxy:
        # The health check goes through tokometer, whose listener opens only after the server listens.
        vllm.ready(f"http://127.0.0.1:{proxy.port}/health", 900)
        _check_queue_times(proxy, collector)


def _check_queue_times(proxy, collector):
    def spans_received():
        return sum(body.count(b"llm_request") for body in collector.traces())

    def joins(result):
        return proxy.total(names.SPAN_JOINS, result=result)

    # With usage, each response reports its own queue time, which must equal that of its span.
    _send_requests(proxy.port, 100, usage=True)
    until(lambda: joins("confirmed") + joins("differs") >= 100, lambda: f"100 comparisons, got {joins('confirmed'):g}", 60)
    assert joins("differs") == 0
    # Without usage, only the span reports the queue time.
    _send_requests(proxy.port, 100, usage=False)
    records = proxy.wait_for_records(200, 60)
    joined = [record for record in records if record["queue_time_source"] == "engine_span"]
    assert len(joined) >= 100, f"{len(joined)} of 100 queue times were joined"
    assert max(record["queue_time_ms"] for record in joined) > 1, "some request waited"
    assert all(record["output_tokens"] == 12 for record in joined)
    until(lambda: spans_received() >= 200, lambda: f"200 spans at the collector, got {spans_received()}", 60)
    assert spans_received() == 200
    assert proxy.total(names.ENGINE_SPANS_RECEIVED) == proxy.total(names.ENGINE_SPANS_FORWARDED)
