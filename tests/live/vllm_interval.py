"""A real vLLM that sends 50 tokens per event (`--stream-interval 50`), and one with two data-parallel ranks of which one is
stopped: part of `make live-vllm`."""

import asyncio
import contextlib
import os
import re
import signal
import time

import names
from process import Tokometer, get, until
from stream import Stream
from vllm_process import engine, engine_cores, state

# vLLM takes a minute or two to start, two ranks twice as long on a busy machine.
MOST_SECONDS = 1500

INTERVAL, STREAMS, TOKENS = 50, 8, 900
# Shorter than the usual gap between two events; the gaps of a steady stream are no pauses all the same.
STALL = "110ms"
STOPPED = 3.0


async def _all(port, act):
    """Runs the streams to their end; half of them report their tokens with each event."""

    async def one(number):
        stream = await Stream.open(port, model="tiny", prompt=f"Count. {number}", tokens=TOKENS, each_usage=number % 2 == 0)
        await stream.rest()
        await stream.close()

    acting = asyncio.create_task(act())
    await asyncio.gather(*(one(number) for number in range(STREAMS)))
    await acting


def _pauses(relay, act):
    """The records of streams during which `act` ran."""
    before = len(relay.records())
    asyncio.run(_all(relay.port, act))
    records = relay.wait_for_records(before + STREAMS, 60)[before:]
    assert all(record["outcome"] == names.OK and record["output_tokens"] == TOKENS for record in records), records
    return records


def _summary(records):
    longest = [record["longest_gap_ms"] for record in records]
    return f"stalls {[record['stalls'] for record in records]}, longest gaps {min(longest):.0f} to {max(longest):.0f} ms"


def fifty_tokens_per_event_are_no_stall_and_a_stop_is_one():
    # With one sequence at a time in a step of its own the gaps are longer.
    flags = ("--stream-interval", str(INTERVAL), "--max-num-seqs", str(STREAMS))
    with engine("python", *flags) as server, Tokometer(server.port, more={"observe": {"stall": STALL}}) as relay:

        async def watch():
            """While all streams run, no wait is longer than twice the usual gap."""
            while len(relay.records()) < STREAMS and relay.total("tokometer_in_flight", phase="streaming") < STREAMS:
                await asyncio.sleep(0.05)

        _pauses(relay, watch)
        before = len(relay.records())
        steady = _pauses(relay, watch)
        events = TOKENS / INTERVAL
        print(f"    steady: {_summary(steady)}")
        # Each gap is longer than the threshold: without the cadence each would be a stall.
        assert all(record["longest_gap_ms"] > 110 for record in steady), _summary(steady)
        assert sum(record["stalls"] for record in steady) <= STREAMS * events / 20, _summary(steady)

        async def stop():
            while relay.total("tokometer_live_tokens_total") < (2 * STREAMS + 2) * TOKENS / INTERVAL:
                await asyncio.sleep(0.05)
            (core,) = engine_cores(server)
            os.kill(core, signal.SIGSTOP)
            await asyncio.sleep(STOPPED)
            os.kill(core, signal.SIGCONT)

        stopped = _pauses(relay, stop)
        print(f"    stopped for {STOPPED} s: {_summary(stopped)}")
        assert all(record["stalls"] >= 1 and record["longest_gap_ms"] > 1000 * STOPPED for record in stopped), _summary(stopped)
        assert before == STREAMS


def _iterations(port):
    """The iterations of each rank."""
    found = re.findall(r'^vllm:iteration_tokens_total_count\{([^}]*)\} (\S+)', get(f"http://127.0.0.1:{port}/metrics")[1], re.M)
    return {int(re.search(r'engine="(\d+)"', labels)[1]): float(value) for labels, value in found}


def one_frozen_rank_of_two_is_noticed_by_default():
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
