"""A real vLLM that sends 50 tokens per event (`--stream-interval 50`), whose engine process is then stopped, and a vLLM
with two data-parallel ranks, one of which is stopped: part of `make live-vllm`."""

import asyncio
import contextlib
import os
import re
import signal
import time
from pathlib import Path

import names
from process import Skip, Tokometer, get, until
from stream import Stream
from vllm_process import PROGRAM, engine, engine_cores, engine_health

# vLLM takes a minute or two to start, two ranks twice as long on a busy machine.
MAX_SECONDS = 1500

INTERVAL, STREAMS, TOKENS = 50, 16, 900
# Shorter than the usual gap between two events, and a bucket bound of the histogram of gaps. Nevertheless, the gaps of
# a steady stream must not count as stalls.
STALL_SECONDS = 0.15
STOP_SECONDS = 6.0


async def _run_streams(port, action):
    """Runs the streams to their end; half of them report their tokens with each event."""

    async def run_stream(number):
        stream = await Stream.open(port, model="tiny", prompt=f"Count. {number}", tokens=TOKENS, continuous_usage=number % 2 == 0)
        await stream.read_rest()
        await stream.close()

    action_task = asyncio.create_task(action())
    await asyncio.gather(*(run_stream(number) for number in range(STREAMS)))
    await action_task


def _batch(relay, action):
    """The records of streams during which `action` ran, and how many of their gaps were longer than the threshold."""
    before, gaps = len(relay.records()), _long_gaps(relay)
    asyncio.run(_run_streams(relay.port, action))
    records = relay.wait_for_records(before + STREAMS, 60)[before:]
    assert all(record["outcome"] == names.OK and record["output_tokens"] == TOKENS for record in records), records
    return records, _long_gaps(relay) - gaps


def _long_gaps(relay):
    return relay.total("tokometer_chunk_gap_seconds_count") - relay.total("tokometer_chunk_gap_seconds_bucket", le=str(STALL_SECONDS))


def _summary(records):
    gaps, pauses = ([record[name] or 0 for record in records] for name in ("longest_gap_ms", "longest_pause_ms"))
    stalls = sum(record["stalls"] for record in records)
    return f"{stalls:g} stalls, longest gaps {min(gaps):.0f} to {max(gaps):.0f} ms, longest pauses {min(pauses):.0f} to {max(pauses):.0f} ms"


def _fifty_tokens_per_event(front_end):
    flags = ("--stream-interval", str(INTERVAL), "--max-num-seqs", str(STREAMS))
    with engine(front_end, *flags) as server, Tokometer(server.port, more={"observe": {"stall": f"{STALL_SECONDS * 1000:.0f}ms"}}) as relay:
        stalled = []

        async def watch():
            while relay.total(names.IN_FLIGHT) < STREAMS:
                await asyncio.sleep(0.05)
            while relay.total(names.IN_FLIGHT) == STREAMS:
                stalled.append(relay.total("tokometer_in_flight_stalled"))
                await asyncio.sleep(0.1)

        _batch(relay, watch)
        stalled.clear()
        steady, gaps = _batch(relay, watch)
        stalled_streams = f"stalled in flight: {sum(stalled) / len(stalled):.1f} of {STREAMS}"
        print(f"    {front_end}, steady: {gaps:g} gaps longer than {STALL_SECONDS} s; {_summary(steady)}; {stalled_streams}")
        # Most gaps exceed the threshold, but only pauses of a busy machine are stalls.
        assert gaps >= STREAMS * (TOKENS / INTERVAL - 2) / 2, gaps
        assert sum(record["stalls"] for record in steady) < gaps / 2, _summary(steady)
        assert sum(stalled) < STREAMS * len(stalled) / 2, stalled

        tokens_before = relay.total(names.LIVE_TOKENS)

        async def stop():
            # Waits for five events of each stream that reports its tokens.
            while relay.total(names.LIVE_TOKENS) < tokens_before + 5 * INTERVAL * STREAMS / 2:
                await asyncio.sleep(0.05)
            (core,) = engine_cores(server)
            os.kill(core, signal.SIGSTOP)
            try:
                stalled_total = lambda: relay.total("tokometer_in_flight_stalled")
                all_stalled, description = lambda: stalled_total() == STREAMS, lambda: f"all are stalled: {stalled_total():g}"
                all_reported = asyncio.to_thread(until, all_stalled, description, STOP_SECONDS)
                await asyncio.gather(all_reported, asyncio.sleep(STOP_SECONDS))
            finally:
                os.kill(core, signal.SIGCONT)

        stopped, _ = _batch(relay, stop)
        print(f"    {front_end}, stopped for {STOP_SECONDS} s: {_summary(stopped)}; all were stalled in flight")
        min_pause_ms = 1000 * (STOP_SECONDS - 1)
        assert all(record["stalls"] >= 1 and record["longest_pause_ms"] > min_pause_ms for record in stopped), _summary(stopped)


def steady_fifty_token_events_are_not_stalls_but_a_stopped_engine_is_one():
    _fifty_tokens_per_event("python")


def steady_fifty_token_events_of_the_rust_front_end_are_not_stalls():
    _fifty_tokens_per_event("rust")


def _iterations(port):
    """The iterations of each rank."""
    found = re.findall(r'^vllm:iteration_tokens_total_count\{([^}]*)\} (\S+)', get(f"http://127.0.0.1:{port}/metrics")[1], re.M)
    return {int(re.search(r'engine="(\d+)"', labels)[1]): float(value) for labels, value in found}


def default_settings_detect_one_frozen_rank_of_two():
    if PROGRAM != "vllm" and len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) < 2:
        raise Skip("on the CPU, vLLM 0.33 needs a NUMA node for each rank")
    with engine("python", "--data-parallel-size", "2") as server, Tokometer(server.port) as relay:
        stop = False

        async def client(number):
            while not stop:
                with contextlib.suppress(OSError):
                    stream = await Stream.open(relay.port, model="tiny", prompt=f"Count. {number}", tokens=TOKENS)
                    await stream.read_rest()
                    await stream.close()

        async def scenario():
            nonlocal stop
            clients = [asyncio.create_task(client(number)) for number in range(8)]
            wait = lambda condition, what, seconds: asyncio.to_thread(until, condition, what, seconds)
            await wait(lambda: len([n for n in _iterations(server.port).values() if n > 50]) == 2, "both ranks decode", 120)
            await wait(lambda: relay.total("tokometer_engine_iterations_total") > 100, "their iterations are scraped", 60)
            frozen = engine_cores(server)[1]
            began = time.monotonic()
            os.kill(frozen, signal.SIGSTOP)
            try:
                wedged = lambda: (lambda health: health[0] == 503 and health[1])(engine_health(relay))
                verdict = await wait(wedged, lambda: f"wedged: {engine_health(relay)}", 60)
                detected_after = time.monotonic() - began
                before = _iterations(server.port)
                await asyncio.sleep(1)
                iterating = [rank for rank, count in _iterations(server.port).items() if count > before[rank]]
                tokens = relay.total(names.LIVE_TOKENS)
            finally:
                os.kill(frozen, signal.SIGCONT)
            await wait(lambda: engine_health(relay)[0] == 200, lambda: f"the engine recovers: {engine_health(relay)}", 30)
            stop = True
            await asyncio.gather(*clients)
            return verdict, detected_after, iterating, tokens

        verdict, detected_after, iterating, tokens = asyncio.run(scenario())
        verdict_text = f"503 after {detected_after:.1f} s, rank {verdict['rank']}, rule {verdict['rule']}"
        print(f"    {verdict_text}; iterating: {iterating}; {tokens:g} tokens")
        assert verdict["state"] == "wedged" and len(iterating) == 1 and verdict["rank"] not in [None, *iterating], (verdict, iterating)
        assert 19 < detected_after < 32, detected_after
