"""A real vLLM that sends 50 tokens per event (`--stream-interval 50`), whose engine process is then stopped, and one with two
data-parallel ranks of which one is stopped: part of `make live-vllm`."""

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
from vllm_process import PROGRAM, engine, engine_cores, state

# vLLM takes a minute or two to start, two ranks twice as long on a busy machine.
MAX_SECONDS = 1500

INTERVAL, STREAMS, TOKENS = 50, 16, 900
# Shorter than the usual gap between two events, and a bound of the histogram of gaps. The gaps of a steady stream are no
# stalls all the same.
STALL = 0.15
STOPPED = 6.0


async def _all(port, act):
    """Runs the streams to their end; half of them report their tokens with each event."""

    async def one(number):
        stream = await Stream.open(port, model="tiny", prompt=f"Count. {number}", tokens=TOKENS, each_usage=number % 2 == 0)
        await stream.rest()
        await stream.close()

    acting = asyncio.create_task(act())
    await asyncio.gather(*(one(number) for number in range(STREAMS)))
    await acting


def _batch(relay, act):
    """The records of streams during which `act` ran, and how many of their gaps were longer than the threshold."""
    before, gaps = len(relay.records()), _long_gaps(relay)
    asyncio.run(_all(relay.port, act))
    records = relay.wait_for_records(before + STREAMS, 60)[before:]
    assert all(record["outcome"] == names.OK and record["output_tokens"] == TOKENS for record in records), records
    return records, _long_gaps(relay) - gaps


def _long_gaps(relay):
    return relay.total("tokometer_chunk_gap_seconds_count") - relay.total("tokometer_chunk_gap_seconds_bucket", le=str(STALL))


def _summary(records):
    gaps, pauses = ([record[name] or 0 for record in records] for name in ("longest_gap_ms", "longest_pause_ms"))
    stalls = sum(record["stalls"] for record in records)
    return f"{stalls:g} stalls, longest gaps {min(gaps):.0f} to {max(gaps):.0f} ms, longest pauses {min(pauses):.0f} to {max(pauses):.0f} ms"


def _fifty_tokens_per_event(front_end):
    flags = ("--stream-interval", str(INTERVAL), "--max-num-seqs", str(STREAMS))
    with engine(front_end, *flags) as server, Tokometer(server.port, more={"observe": {"stall": f"{STALL * 1000:.0f}ms"}}) as relay:
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
        print(f"    {front_end}, steady: {gaps:g} gaps longer than {STALL} s; {_summary(steady)}; stalled in flight: {sum(stalled) / len(stalled):.1f} of {STREAMS}")
        # Most events are later than the threshold, and each would be a stall. Only pauses of a busy machine are.
        assert gaps >= STREAMS * (TOKENS / INTERVAL - 2) / 2, gaps
        assert sum(record["stalls"] for record in steady) < gaps / 2, _summary(steady)
        assert sum(stalled) < STREAMS * len(stalled) / 2, stalled

        began = relay.total(names.LIVE_TOKENS)

        async def stop():
            # Five events of the streams that report their tokens.
            while relay.total(names.LIVE_TOKENS) < began + 5 * INTERVAL * STREAMS / 2:
                await asyncio.sleep(0.05)
            (core,) = engine_cores(server)
            os.kill(core, signal.SIGSTOP)
            try:
                all_stalled = lambda: relay.total("tokometer_in_flight_stalled") == STREAMS
                stopping = asyncio.to_thread(until, all_stalled, lambda: f"all are stalled: {relay.total('tokometer_in_flight_stalled'):g}", STOPPED)
                await asyncio.gather(stopping, asyncio.sleep(STOPPED))
            finally:
                os.kill(core, signal.SIGCONT)

        stopped, _ = _batch(relay, stop)
        print(f"    {front_end}, stopped for {STOPPED} s: {_summary(stopped)}; all were stalled in flight")
        assert all(record["stalls"] >= 1 and record["longest_pause_ms"] > 1000 * (STOPPED - 1) for record in stopped), _summary(stopped)


def fifty_tokens_per_event_are_no_stall_but_a_stop_is():
    _fifty_tokens_per_event("python")


def fifty_tokens_per_event_of_the_rust_front_end_are_no_stall():
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
                    await stream.rest()
                    await stream.close()

        async def scenario():
            nonlocal stop
            clients = [asyncio.create_task(client(number)) for number in range(8)]
            wait = lambda condition, what, seconds: asyncio.to_thread(until, condition, what, seconds)
            await wait(lambda: len([n for n in _iterations(server.port).values() if n > 50]) == 2, "both ranks decode", 120)
            await wait(lambda: relay.total("tokometer_engine_iterations_total") > 100, "their iterations are read", 60)
            frozen = engine_cores(server)[1]
            began = time.monotonic()
            os.kill(frozen, signal.SIGSTOP)
            try:
                wedged = lambda: (lambda seen: seen[0] == 503 and seen[1])(state(relay))
                verdict = await wait(wedged, lambda: f"wedged: {state(relay)}", 60)
                took = time.monotonic() - began
                before = _iterations(server.port)
                await asyncio.sleep(1)
                moving = [rank for rank, count in _iterations(server.port).items() if count > before[rank]]
                tokens = relay.total(names.LIVE_TOKENS)
            finally:
                os.kill(frozen, signal.SIGCONT)
            await wait(lambda: state(relay)[0] == 200, lambda: f"it recovers: {state(relay)}", 30)
            stop = True
            await asyncio.gather(*clients)
            return verdict, took, moving, tokens

        verdict, took, moving, tokens = asyncio.run(scenario())
        print(f"    503 after {took:.1f} s, rank {verdict['rank']}, rule {verdict['rule']}; ranks that iterate: {moving}; {tokens:g} tokens")
        assert verdict["state"] == "wedged" and len(moving) == 1 and verdict["rank"] not in [None, *moving], (verdict, moving)
        assert 19 < took < 32, took
