"""What vLLM's own metrics keep of cancelled requests, compared with tokometer's: part of `make live-vllm`.

Prints the tables of docs/concepts/differences.md. A front end may count more in a later version: only what must hold for
tokometer's own values is asserted."""

import asyncio

import names
from process import Tokometer, until
from stream import Stream
from vllm_process import engine, samples

MAX_SECONDS = 1200

REQUESTS = 64
# The engine works on so few at a time that most requests wait, and many are cancelled before their first token.
AT_A_TIME = 8
# Events that a client reads before it disconnects; the others disconnect after WAITED seconds, wherever they are.
READ, WAITED = 12, 1.0

# Totals of vLLM's histograms and counters.
OWN = {
    "requests ended": "vllm:request_success_total",
    "times to first token": "vllm:time_to_first_token_seconds_count",
    "end-to-end times": "vllm:e2e_request_latency_seconds_count",
    "queue times": "vllm:request_queue_time_seconds_count",
    "prompt tokens": "vllm:prompt_tokens_total",
    "output tokens": "vllm:generation_tokens_total",
}


async def _cancel_all(port):
    """Half of the clients read some events, half give up after a while; all disconnect early."""

    async def one(number):
        stream = await Stream.open(port, model="tiny", prompt=f"Count. {number}", tokens=900)
        if number % 2:
            await stream.events(READ)
        else:
            try:
                await asyncio.wait_for(stream.events(900), WAITED)
            except TimeoutError:
                pass
        await stream.close()

    await asyncio.gather(*(one(number) for number in range(REQUESTS)))


def _compare(front_end):
    with engine(front_end, "--max-num-seqs", str(AT_A_TIME)) as server, Tokometer(server.port) as relay:
        own = lambda name: samples(server.port, name)
        before = {name: own(name) for name in OWN.values()}
        asyncio.run(_cancel_all(relay.port))
        records = relay.wait_for_records(REQUESTS, 120)
        until(lambda: own("vllm:num_requests_running") + own("vllm:num_requests_waiting") == 0, "the engine is idle", 60)
        outcomes = [record["outcome"] for record in records]
        early, late = outcomes.count(names.ABORTED_EARLY), outcomes.count(names.ABORTED)
        assert (len(records), early + late) == (REQUESTS, REQUESTS), outcomes
        first_tokens = [record for record in records if record["time_to_first_token_ms"] is not None]
        assert len(first_tokens) == late, (len(first_tokens), late)
        tokens = sum(record["output_tokens"] or 0 for record in records)
        assert all(record["output_tokens_source"] == names.LOWER_BOUND for record in first_tokens)
        ours = {
            "requests ended": REQUESTS,
            "times to first token": len(first_tokens),
            "end-to-end times": REQUESTS,
            "queue times": sum(record["queue_time_ms"] is not None for record in records),
            "prompt tokens": sum(record["input_tokens"] or 0 for record in records),
            "output tokens": tokens,
        }
        theirs = {what: own(name) - before[name] for what, name in OWN.items()}
        # The engine generates until it learns of the end.
        assert tokens <= theirs["output tokens"] or theirs["output tokens"] == 0, (tokens, theirs)
        # The tokens that no client got are the difference of two counters of tokometer.
        made = lambda: relay.total("tokometer_engine_tokens_generated_total")
        until(lambda: made() == theirs["output tokens"], lambda: f"the scraped count is {theirs['output tokens']:g}, not {made():g}", 20)
        assert relay.total(names.LIVE_TOKENS) == tokens, (relay.total(names.LIVE_TOKENS), tokens)
        waited = relay.total("tokometer_wait_without_first_token_seconds_sum")
        assert waited > 0 or early == 0
        print(f"    {front_end} front end, {REQUESTS} requests cancelled: {early} before the first token, {late} in mid-stream")
        for what, value in theirs.items():
            print(f"    | {what} | {value:g} | {ours[what]:g} |")
        print(f"    | seconds waited without a first token | - | {waited:.1f} |")


def cancelled_requests_on_the_python_front_end():
    _compare("python")


def cancelled_requests_on_the_rust_front_end():
    _compare("rust")
