"""A real llama-server with one slot and more requests than slots: measured times match the implied schedule."""

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import names
from collector import Collector
from process import Tokometer, start_llama_server
from span_trees import spans

REQUESTS = 8
# A few tenths of a second of slot time each.
TOKENS = 1500

# The slot is free shortly before the client has read the end of the response, and occupied again shortly after; in
# between, one of the two cores may be busy with other work. Limits for the sum of all waits, and for a single wait
# relative to the total run time.
SUM_SHARE = 0.03
ONE_SHARE = 0.05
# Maximum difference between phases and spans; the log's rounding to microseconds is far below.
PHASES_SHARE = 0.01


class _Client:
    """One streamed response, with the times of its request, start and end on the client's clock, in seconds."""

    def __init__(self, port, number, together):
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"Loop {number}."}], "stream": True}
        body |= {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.connect()
        together.wait()
        headers = {"content-type": "application/json", "x-request-id": f"waits-{number}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.id, self.sent = f"waits-{number}", time.monotonic()
        response = connection.getresponse()
        self.began = time.monotonic()
        assert response.status == 200, response.status
        response.read()
        self.ended = time.monotonic()
        connection.close()


def _phases(record):
    return {name: ms for name, ms in record.items() if name.startswith("phase_") and ms is not None}


def eight_requests_wait_as_the_single_slot_schedule_implies():
    with Collector() as collector, start_llama_server(slots=1) as server:
        with Tokometer(server.port, otlp=collector.url) as relay:
            together = threading.Barrier(REQUESTS)
            with ThreadPoolExecutor(REQUESTS) as pool:
                clients = list(pool.map(lambda number: _Client(relay.port, number, together), range(REQUESTS)))
            records = {record["request_id"]: record for record in relay.wait_for_records(REQUESTS)}
            metrics = relay.total(names.PHASE_SUM)
            relay.terminate()
            assert relay.wait(10) == 0

    # With one slot, each request starts when the previous one has ended.
    clients.sort(key=lambda client: client.began)
    run = clients[-1].ended - min(client.sent for client in clients)
    free, waits = 0.0, []
    for client in clients:
        record = records[client.id]
        assert (record["queue_time_source"], record["outcome"]) == ("header_timing", names.OK), record
        implied = max(0.0, free - client.sent) * 1e3
        waits.append((record["queue_time_ms"], implied))
        free = client.ended
    measured, implied = (sum(column) for column in zip(*waits))
    worst = max(abs(wait - expected) for wait, expected in waits)
    print(f"    {REQUESTS} requests, one slot, {run:.2f} s: waited " + " ".join(f"{wait:.0f}" for wait, _ in waits) + " ms")
    print(f"    together {measured:.1f} ms, the schedule implies {implied:.1f} ms; worst single difference {worst:.1f} ms")
    assert abs(measured - implied) <= SUM_SHARE * implied, waits
    assert worst <= ONE_SHARE * run * 1e3, waits

    off = 0.0
    for record in records.values():
        phases = _phases(record)
        assert {"phase_request_ms", "phase_queue_ms", "phase_prefill_ms", "phase_decode_ms", "phase_finish_ms"} <= phases.keys(), phases
        assert phases["phase_queue_ms"] == record["queue_time_ms"], record
        off = max(off, abs(sum(phases.values()) / record["duration_ms"] - 1))
    total = sum(record["duration_ms"] for record in records.values()) / 1e3
    print(f"    phases add up to the duration within {off:.2e} in the log, {abs(metrics / total - 1):.2e} in the metrics")
    assert off <= PHASES_SHARE and abs(metrics / total - 1) <= PHASES_SHARE, (metrics, total)
    _traces_tile([body for _, path, body in collector.pushes if path == "/v1/traces"])


def _traces_tile(pushes):
    """Checks that in every trace the children of the single root are contiguous, from its start to its end."""
    traces = {}
    for span in (span for body in pushes for span in spans(body)):
        traces.setdefault(span["trace"], []).append(span)
    assert len(traces) == REQUESTS, f"{len(traces)} traces"
    for trace in traces.values():
        (root,) = [span for span in trace if not span["parent"]]
        children = sorted((span for span in trace if span["parent"] == root["id"]), key=lambda span: span["from"])
        phases = [span for span in children if span["name"] != "delivery_blocked"]
        # If a prefill is so short that one read contains headers and first token, it has no duration and no span.
        assert len(children) == len(trace) - 1 and {"queue", "decode"} <= {span["name"] for span in phases}, children
        edges = [root["from"], *(span["to"] for span in phases)]
        assert edges[:-1] == [span["from"] for span in phases] and edges[-1] == root["to"], (root, phases)
