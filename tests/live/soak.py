"""Minutes of mixed traffic: memory and file descriptors stay flat."""

import asyncio
import os
import time

import names
from process import Tokometer, start_sim, until
from stream import Stream, send_request

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
CLIENTS = 24
FAULTS = [None, None, None, None, "cut:5", "reset:5", "error-event:5", "status:503", "bad-json:2", "no-done"]


def memory_and_descriptors_stay_flat():
    with start_sim(*names.SIM_UNPACED) as sim, Tokometer(sim.port) as relay:
        samples, request_count = [], 0

        async def client(number, end):
            nonlocal request_count
            turn = number
            while time.monotonic() < end:
                turn += 1
                if turn % 11 == 0:
                    stream = await Stream.open(relay.port, tokens=5000)
                    await stream.read_events(3)
                    stream.abort()
                else:
                    await send_request(relay.port, tokens=20 + turn % 180, fault=FAULTS[turn % len(FAULTS)])
                request_count += 1

        async def watch(start, end):
            while time.monotonic() < end:
                samples.append((time.monotonic() - start, relay.rss_bytes(), relay.fds()))
                await asyncio.sleep(SECONDS / 60)

        async def traffic():
            start = time.monotonic()
            end = start + SECONDS
            await asyncio.gather(watch(start, end), *(client(number, end) for number in range(CLIENTS)))

        assert b" 200 " in asyncio.run(send_request(relay.port, tokens=2))
        idle_fds = relay.fds()
        asyncio.run(traffic())
        expected_records = request_count + 1
        counted = lambda: relay.total(names.REQUESTS)
        until(lambda: counted() == expected_records, lambda: f"{expected_records} requests counted, got {counted():g}", 30)
        until(lambda: relay.fds() <= idle_fds, lambda: f"{idle_fds} descriptors as before, {relay.fds()} open")

        # Buffers, pools and the allocator reach their final size in the first third of the run.
        settled = [sample for sample in samples if sample[0] > SECONDS / 3]
        half = len(settled) // 2
        early = sorted(rss for _, rss, _ in settled[:half])[half // 2]
        late = sorted(rss for _, rss, _ in settled[half:])[half // 2]
        print(
            f"    {request_count} requests in {SECONDS:g} s; RSS {early / 2**20:.1f} -> {late / 2**20:.1f} MiB;"
            f" at most {max(fds for *_, fds in samples)} descriptors"
        )
        assert late <= early * 1.03 + (1 << 20), f"RSS grows: {early} -> {late} bytes"
        peak = max(fds for *_, fds in samples)
        assert peak <= idle_fds + 4 * CLIENTS, f"{peak} descriptors for {CLIENTS} clients"
