"""240 mixed requests against a real vLLM: its own metrics compared with tokometer's, counter by counter. Part of
`make live-vllm`; prints a table of docs/concepts/differences.md."""

import asyncio
import json
import time

import httpx2 as httpx
import names
from process import Tokometer, until
from vllm_process import PROGRAM, engine, metric_total

# A front end takes a minute or two to start, more on a busy machine.
MAX_SECONDS = 1200

REQUESTS = 240
# Concurrent clients, and requests that the engine processes at a time: the others wait.
CLIENTS, ENGINE_CONCURRENCY = 24, 8
TOKENS, CANCELLED_TOKENS = 40, 900
# Events that one kind of client reads before it cancels, and seconds after which another kind cancels.
READ_EVENTS, WAIT_SECONDS = 12, 0.5

KINDS = ("chat stream", "completion stream", "chat", "completion", "chat stream without usage", "cancel in mid-stream", "cancel early", "error")


class _Client:
    """Sends the requests, and sums the usage that the engine reported for completed ones."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}/v1"
        self.ended = {kind: 0 for kind in KINDS}
        # Prompt and output tokens of the responses with `usage`.
        self.usage = [0, 0]

    async def send_all(self):
        slots = asyncio.Semaphore(CLIENTS)
        # The server closes a connection that is idle for 5 s, at times just as the client sends its next request.
        limits = httpx.Limits(max_connections=CLIENTS, keepalive_expiry=1)
        async with httpx.AsyncClient(timeout=300, limits=limits) as self.http:

            async def send(number):
                async with slots:
                    kind = KINDS[number % len(KINDS)]
                    await self._send_request(kind, number)
                    self.ended[kind] += 1

            await asyncio.gather(*(send(number) for number in range(REQUESTS)))

    async def _send_request(self, kind, number):
        cancelled = kind.startswith("cancel")
        body = {"model": "tiny", "max_tokens": CANCELLED_TOKENS if cancelled else TOKENS, "ignore_eos": True, "temperature": 1}
        path = "completions" if kind.startswith("completion") else "chat/completions"
        body |= {"prompt": f"Count. {number}"} if path == "completions" else {"messages": [{"role": "user", "content": f"Count. {number}"}]}
        if kind == "error":
            body["model"] = "unknown"
        if "stream" not in kind and not cancelled:
            response = await self.http.post(f"{self.base}/{path}", json=body)
            assert response.status_code == (200 if kind != "error" else response.status_code), response.text
            if kind == "error":
                assert 400 <= response.status_code < 500, response.text
            else:
                self._count(response.json()["usage"])
            return
        body["stream"] = True
        if "without" not in kind:
            body["stream_options"] = {"include_usage": True}
        try:
            limit, timeout = READ_EVENTS if kind == "cancel in mid-stream" else None, WAIT_SECONDS if kind == "cancel early" else 300
            await asyncio.wait_for(self._read(path, body, limit), timeout)
        except TimeoutError:
            assert kind == "cancel early", kind

    async def _read(self, path, body, limit):
        async with self.http.stream("POST", f"{self.base}/{path}", json=body) as response:
            assert response.status_code == 200
            events = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                events += 1
                if limit and events >= limit:
                    return
                if usage := json.loads(line[6:]).get("usage"):
                    self._count(usage)

    def _count(self, usage):
        self.usage[0] += usage["prompt_tokens"]
        self.usage[1] += usage["completion_tokens"]


# vLLM's metric, its label in the table, and tokometer's value.
ROWS = (
    ("vllm:request_success_total", "requests ended", lambda relay: relay.total(names.REQUESTS)),
    ("vllm:prompt_tokens_total", "prompt tokens", lambda relay: relay.total(names.INPUT_TOKENS)),
    ("vllm:generation_tokens_total", "output tokens", lambda relay: relay.total(names.OUTPUT_TOKENS)),
    ("vllm:time_to_first_token_seconds_count", "time-to-first-token observations", lambda relay: relay.total(names.FIRST_TOKEN_COUNT)),
    ("vllm:time_to_first_token_seconds_sum", "their sum, s", lambda relay: relay.total("tokometer_time_to_first_token_seconds_sum")),
    ("vllm:inter_token_latency_seconds_count", "inter-token latency observations", lambda relay: relay.total("tokometer_inter_token_latency_seconds_count")),
    ("vllm:inter_token_latency_seconds_sum", "their sum, s", lambda relay: relay.total("tokometer_inter_token_latency_seconds_sum")),
    ("vllm:e2e_request_latency_seconds_count", "end-to-end time observations", lambda relay: relay.total("gen_ai_server_request_duration_seconds_count")),
    ("vllm:e2e_request_latency_seconds_sum", "their sum, s", lambda relay: relay.total("gen_ai_server_request_duration_seconds_sum")),
    ("vllm:request_queue_time_seconds_count", "queue time observations", lambda relay: relay.total("tokometer_queue_time_seconds_count")),
    ("vllm:request_queue_time_seconds_sum", "their sum, s", lambda relay: relay.total("tokometer_queue_time_seconds_sum")),
)
# Scraped counters, which must equal the metrics page that they are scraped from.
SCRAPED = {
    "vllm:generation_tokens_total": "tokometer_engine_tokens_generated_total",
    "vllm:iteration_tokens_total_count": "tokometer_engine_iterations_total",
    "vllm:num_preemptions_total": "tokometer_engine_preemptions_total",
    "vllm:prefix_cache_queries_total": "tokometer_engine_prefix_cache_queries_total",
    "vllm:request_queue_time_seconds_count": "tokometer_engine_queue_requests_total",
    "vllm:request_queue_time_seconds_sum": "tokometer_engine_queue_time_seconds_total",
}


def _compare(front_end, server):
    """Compares the counters of vLLM and tokometer for one engine."""
    with Tokometer(server.port, scrape={"interval": "1s"}) as relay:
        engine_total = lambda name: metric_total(server.port, name)
        until(lambda: relay.total("tokometer_engine_scrape_attempts_total") >= 2, "the engine's metrics page is scraped", 30)
        before = {name: engine_total(name) for name in [row[0] for row in ROWS] + list(SCRAPED)}
        client, began = _Client(relay.port), time.monotonic()
        asyncio.run(client.send_all())
        elapsed = time.monotonic() - began
        records = relay.wait_for_records(REQUESTS, 60)
        until(lambda: engine_total("vllm:num_requests_running") + engine_total("vllm:num_requests_waiting") == 0, "the engine is idle", 60)

        outcomes = {outcome: sum(record["outcome"] == outcome for record in records) for outcome in sorted({record["outcome"] for record in records})}
        per_kind = REQUESTS // len(KINDS)
        aborted = outcomes.get(names.ABORTED, 0) + outcomes.get(names.ABORTED_EARLY, 0)
        # Requests of both cancelled kinds are recorded as aborted, with or without a first token; no other request is.
        assert (outcomes.get(names.OK), aborted, outcomes.get("http_4xx")) == (5 * per_kind, 2 * per_kind, per_kind), outcomes
        exact = [record for record in records if record["output_tokens_source"] in names.EXACT]
        assert len(exact) == 4 * per_kind, len(exact)
        counted = [sum(record[key] for record in exact) for key in ("input_tokens", "output_tokens")]
        assert counted == client.usage, (counted, client.usage)
        engine_values = {name: engine_total(name) - before[name] for name, _, _ in ROWS}
        reported_tokens = sum(record["output_tokens"] or 0 for record in records)
        assert reported_tokens <= engine_values["vllm:generation_tokens_total"], (reported_tokens, engine_values)

        scraped = lambda: {name: (engine_total(name) - before[name], relay.total(metric)) for name, metric in SCRAPED.items()}
        all_equal = lambda: all(abs(page - recorded) < 1e-6 for page, recorded in scraped().values())
        until(all_equal, lambda: f"the scraped counters equal the page: {scraped()}", 20)

        print(f"    {front_end} front end, {REQUESTS} requests in {elapsed:.0f} s: {outcomes}")
        for name, label, value_of in ROWS:
            print(f"    | {label} | `{name}` | {engine_values[name]:.10g} | {value_of(relay):.10g} |")
        print(f"    output tokens by source: {_by_source(records)}; of requests with usage {client.usage[1]}")
        waited = relay.total("tokometer_wait_without_first_token_seconds_sum")
        print(f"    waited without a first token: {waited:.1f} s; scraped counters equal the page")


def _by_source(records):
    sums = {}
    for record in records:
        if record["output_tokens"] is not None:
            sums[record["output_tokens_source"]] = sums.get(record["output_tokens_source"], 0) + record["output_tokens"]
    return sums


def python_front_end_counters_match_for_mixed_requests():
    with engine("python", "--max-num-seqs", str(ENGINE_CONCURRENCY), "--enable-per-request-metrics") as server:
        _compare("python", server)


def rust_front_end_counters_match_for_mixed_requests():
    # The Rust front end of vLLM 0.32 exits if this flag is set.
    metrics = [] if PROGRAM == "vllm" else ["--enable-per-request-metrics"]
    with engine("rust", "--max-num-seqs", str(ENGINE_CONCURRENCY), *metrics) as server:
        _compare("rust", server)
