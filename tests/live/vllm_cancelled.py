"""Metrics of cancelled requests: vLLM's own compared with tokometer's. Part of `make live-vllm`.

Prints the tables of docs/concepts/differences.md. A front end may count more in a later version: the test asserts only
tokometer's own values."""

import asyncio

import names
from process import Tokometer, until
from stream import Stream
from vllm_process import engine, metric_total

MAX_SECONDS = 1200

REQUESTS = 64
# Requests that the engine processes at a time: so few that most requests wait, and many are cancelled before their first token.
ENGINE_CONCURRENCY = 8
# Events that a client reads before it disconnects; the others disconnect after WAIT_SECONDS.
READ_EVENTS, WAIT_SECONDS = 12, 1.0

# Totals of vLLM's histograms and counters.
ENGINE_METRICS = {
    "requests ended": "vllm:request_success_total",
    "time-to-first-token observations": "vllm:time_to_first_token_seconds_count",
    "end-to-end time observations": "vllm:e2e_request_latency_seconds_count",
    "queue time observations": "vllm:request_queue_time_seconds_count",
    "prompt tokens": "vllm:prompt_tokens_total",
    "output tokens": "vllm:generation_tokens_total",
}


async def _cancel_all(port):
    """Half of the clients read some events, half give up after a while; all disconnect early."""

    async def send_and_cancel(number):
        stream = await Stream.open(port, model="tiny", prompt=f"Count. {number}", tokens=900)
        if number % 2:
            await stream.read_events(READ_EVENTS)
        else:
            try:
                await asyncio.wait_for(stream.read_events(900), WAIT_SECONDS)
            except TimeoutError:
                pass
        await stream.close()

    await asyncio.gather(*(send_and_cancel(number) for number in range(REQUESTS)))


def _compare(front_end):
    with engine(front_end, "--max-num-seqs", str(ENGINE_CONCURRENCY)) as server, Tokometer(server.port) as relay:
        engine_total = lambda name: metric_total(server.port, name)
        before = {name: engine_total(name) for name in ENGINE_METRICS.values()}
        asyncio.run(_cancel_all(relay.port))
        records = relay.wait_for_records(REQUESTS, 120)
        until(lambda: engine_total("vllm:num_requests_running") + engine_total("vllm:num_requests_waiting") == 0, "the engine is idle", 60)
        outcomes = [record["outcome"] for record in records]
        early, late = outcomes.count(names.ABORTED_EARLY), outcomes.count(names.ABORTED)
        assert (len(records), early + late) == (REQUESTS, REQUESTS), outcomes
        first_tokens = [record for record in records if record["time_to_first_token_ms"] is not None]
        assert len(first_tokens) == late, (len(first_tokens), late)
        tokens = sum(record["output_tokens"] or 0 for record in records)
        assert all(record["output_tokens_source"] == names.LOWER_BOUND for record in first_tokens)
        tokometer_values = {
            "requests ended": REQUESTS,
            "time-to-first-token observations": len(first_tokens),
            "end-to-end time observations": REQUESTS,
            "queue time observations": sum(record["queue_time_ms"] is not None for record in records),
            "prompt tokens": sum(record["input_tokens"] or 0 for record in records),
            "output tokens": tokens,
        }
        engine_values = {label: engine_total(name) - before[name] for label, name in ENGINE_METRICS.items()}
        # The engine generates tokens until it processes the disconnect.
        assert tokens <= engine_values["output tokens"] or engine_values["output tokens"] == 0, (tokens, engine_values)
        # The difference of two tokometer counters is the number of tokens that no client received.
        generated = lambda: relay.total("tokometer_engine_tokens_generated_total")
        engine_tokens = engine_values["output tokens"]
        until(lambda: generated() == engine_tokens, lambda: f"the scraped count is {engine_tokens:g}, not {generated():g}", 20)
        assert relay.total(names.LIVE_TOKENS) == tokens, (relay.total(names.LIVE_TOKENS), tokens)
        waited = relay.total("tokometer_wait_without_first_token_seconds_sum")
        assert waited > 0 or early == 0
        print(f"    {front_end} front end, {REQUESTS} requests cancelled: {early} before the first token, {late} in mid-stream")
        for label, value in engine_values.items():
            print(f"    | {label} | {value:g} | {tokometer_values[label]:g} |")
        print(f"    | seconds waited without a first token | - | {waited:.1f} |")


def python_front_end_counts_of_cancelled_requests_are_compared():
    _compare("python")


def rust_front_end_counts_of_cancelled_requests_are_compared():
    _compare("rust")
