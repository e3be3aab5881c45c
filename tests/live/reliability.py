"""Failures that must not affect the traffic but must be counted: each test covers one failure.

RELIABILITY_SECONDS is the duration of the two failures that take minutes in production (a server that is not up yet, a slow
client); without it they are as short as possible.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import time

import names
from collector import Collector
from process import BINARY, Skip, Tokometer, free_port, get, start_sim, until
from stream import Stream, complete, send_request

CLIENTS = 1000
SECONDS = float(os.environ.get("RELIABILITY_SECONDS", "0"))


def stream_of_a_killed_server_keeps_partial_tokens():
    with start_sim() as sim, Tokometer(sim.port) as relay:

        async def traffic():
            streams = [await Stream.open(relay.port, tokens=1000) for _ in range(5)]
            assert all(await asyncio.gather(*(stream.read_events(4) for stream in streams)))
            sim.child.send_signal(signal.SIGKILL)
            rests = await asyncio.wait_for(asyncio.gather(*(stream.read_rest() for stream in streams)), 10)
            assert not any(b"[DONE]" in rest for rest in rests)
            for stream in streams:
                await stream.close()

        asyncio.run(traffic())
        for record in relay.wait_for_records(5):
            assert record["outcome"] in names.SERVER_DIED and record["output_tokens"] >= 2, record
        until(lambda: relay.total(names.IN_FLIGHT) == 0, "no request in flight")
        assert relay.alive() and get(f"http://127.0.0.1:{relay.admin}/readyz")[0] == 200


def starting_server_returns_503_until_it_is_ready():
    port = free_port()
    with Tokometer(port, more={"relay": {"unreachable": "http_503"}}) as relay:
        refusals, slowest, fds, rss = 0, 0.0, [], []
        end = time.monotonic() + SECONDS
        while refusals < 50 or time.monotonic() < end:
            sent = time.monotonic()
            response = asyncio.run(send_request(relay.port))
            slowest = max(slowest, time.monotonic() - sent)
            assert response.startswith(b"HTTP/1.1 503 "), response[:200]
            error = json.loads(response.partition(b"\r\n\r\n")[2])
            assert "tokometer" in json.dumps(error) and f"127.0.0.1:{port}" in json.dumps(error), error
            refusals += 1
            if refusals >= 50:
                time.sleep(0.05)
            if refusals % 50 == 0:
                fds.append(relay.fds())
                rss.append(relay.rss_bytes())
                for path in ("startz", "livez", "readyz"):
                    assert get(f"http://127.0.0.1:{relay.admin}/{path}")[0] == 200, path
        _flat(f"{refusals} times 503, the slowest after {slowest * 1e3:.0f} ms", rss, fds)
        assert slowest < 5.0, f"an error response took {slowest:.1f} s"
        assert {record["outcome"] for record in relay.wait_for_records(refusals)} == {names.REFUSED}
        with start_sim(port=port):
            assert complete(asyncio.run(send_request(relay.port)))
            assert relay.wait_for_records(refusals + 1)[-1]["outcome"] == names.OK


def _flat(label, rss, fds, max_growth=4 << 20):
    """Prints the samples; fails if memory or descriptors grew after the first sample."""
    print(
        f"    {label}; RSS {rss[0] / 2**20:.1f} -> {rss[-1] / 2**20:.1f}, at most {max(rss) / 2**20:.1f} MiB;"
        f" {min(fds)} to {max(fds)} descriptors"
    )
    assert max(rss) - rss[0] < max_growth, f"RSS grows: {rss[0]} -> {max(rss)} bytes"
    assert max(fds) - fds[0] < 8, f"descriptors grow: {fds[0]} -> {max(fds)}"


def unresponsive_collector_loses_only_telemetry():
    with socket.create_server(("127.0.0.1", free_port())) as hole, start_sim(*names.SIM_UNPACED) as sim:
        # The kernel accepts connections and data for this socket, but nothing responds.
        with Tokometer(sim.port, otlp_metrics=f"http://127.0.0.1:{hole.getsockname()[1]}/v1/metrics") as relay:
            until(lambda: relay.total(names.EXPORTS_FAILED) >= 1, "a failed export is counted", 30)
            before, count = relay.rss_bytes(), 0
            deadline = time.monotonic() + 60
            while relay.total(names.EXPORTS_FAILED) < 4:
                assert complete(asyncio.run(send_request(relay.port)))
                count += 1
                assert time.monotonic() < deadline, "exports no longer fail, or are no longer attempted"
            assert all(record["outcome"] == names.OK for record in relay.wait_for_records(count))
            grown = relay.rss_bytes() - before
            assert grown < 16 << 20, f"{grown >> 20} MiB more after {count} requests with an unresponsive collector"
            relay.terminate()
            started = time.monotonic()
            assert relay.wait(10) == 0
            took = time.monotonic() - started
            print(f"    {count} requests meanwhile; exited {took:.2f} s after SIGTERM")
            assert took < 3.0, "the last flush delays the exit"


def thousand_aborting_clients_are_all_counted():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required_files = 3 * CLIENTS + 200
    if hard != resource.RLIM_INFINITY and hard < required_files:
        raise Skip(f"the limit of open files is {hard}, {required_files} required")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, required_files), hard))
    with start_sim() as sim, Tokometer(sim.port) as relay:
        assert complete(asyncio.run(send_request(relay.port, tokens=2)))
        fds = relay.fds()

        async def client(number):
            early = number % 2 == 0
            stream = await Stream.open(relay.port, tokens=2000, fault="hang" if early else None)
            if early:
                # Headers are sent immediately, and then nothing.
                assert await stream.reader.readuntil(b"\r\n\r\n")
            elif not await stream.read_events(2):
                raise AssertionError("the stream ended before its client disconnected")
            stream.abort()

        async def all_clients():
            # The simulator serves 256 at a time, so streams are opened in groups, to get a first token on each.
            for start in range(0, CLIENTS, 200):
                await asyncio.gather(*(client(n) for n in range(start, start + 200)))

        asyncio.run(all_clients())
        records = relay.wait_for_records(CLIENTS + 1, 30)
        outcomes = [record["outcome"] for record in records]
        assert outcomes.count(names.ABORTED_EARLY) == CLIENTS // 2, {o: outcomes.count(o) for o in outcomes}
        assert outcomes.count(names.ABORTED) == CLIENTS // 2, {o: outcomes.count(o) for o in outcomes}
        assert all(r["output_tokens"] >= 1 for r in records if r["outcome"] == names.ABORTED)
        until(lambda: relay.total(names.IN_FLIGHT) == 0, "no request in flight")
        until(lambda: relay.total(names.CONNECTIONS_OPEN) == 0, "no open connection")
        until(lambda: relay.fds() <= fds, lambda: f"{fds} file descriptors as before, {relay.fds()} open")


def slow_client_causes_backpressure_and_loses_nothing():
    # The server can write about the last 3 MB to socket buffers before the client reads them. With more tokens, the
    # server is blocked for longer.
    tokens = 32_000 if SECONDS else 20_000
    with start_sim(*names.SIM_UNPACED) as sim, Tokometer(sim.port) as relay:
        expected = asyncio.run(send_request(sim.port, tokens=tokens))
        assert complete(expected)
        before = relay.rss_bytes()

        async def slowly():
            stream = await Stream.open(relay.port, tokens=tokens, receive_buffer=8192)
            # The client reads nothing until the server has been blocked for a while.
            loop = asyncio.get_running_loop()
            moved = [-1, loop.time()]

            def stopped():
                now = relay.total("tokometer_relay_io_bytes_total")
                if now != moved[0]:
                    moved[:] = [now, loop.time()]
                return loop.time() - moved[1] > 1.0

            await asyncio.to_thread(until, stopped, "the flow stops while the client does not read", 30)
            buffered = relay.rss_bytes() - before
            assert buffered < 8 << 20, f"{buffered >> 10} KiB buffered for a client that does not read"
            response = await trickle(stream)
            response += await asyncio.wait_for(stream.read_rest(), 60)
            await stream.close()
            return response, moved[0]

        async def trickle(stream):
            """Reads the response evenly over most of the time, while other clients are served as usual."""
            start, response, rss, fds, others = time.monotonic(), b"", [], [], 0
            while (elapsed := time.monotonic() - start) < SECONDS:
                if len(response) < len(expected) * 0.95 * elapsed / SECONDS:
                    response += await asyncio.wait_for(stream.reader.read(4096), 10)
                elif others <= elapsed:
                    assert complete(await asyncio.wait_for(send_request(relay.port, tokens=5), 5))
                    others += 1
                    rss.append(relay.rss_bytes())
                    fds.append(relay.fds())
                else:
                    await asyncio.sleep(0.02)
            if rss:
                _flat(f"{len(response)} bytes read in {elapsed:.0f} s, {others} other requests served meanwhile", rss, fds)
            return response

        response, stopped_at = asyncio.run(slowly())
        assert complete(response) and response.count(b"data: ") == expected.count(b"data: ")
        assert stopped_at < len(expected) * 0.9, "the response fit into buffers: nothing was blocked"
        (record,) = until(
            lambda: [record for record in relay.records() if record["output_tokens"] != 5], "the access log has the request"
        )
        assert record["outcome"] == names.OK and record["output_tokens"] == tokens, record
        if SECONDS:
            blocked, took = record["delivery_blocked_ms"] / 1e3, record["duration_ms"] / 1e3
            print(f"    {record['output_tokens']} tokens in {took:.0f} s, delivery blocked for {blocked:.0f} s of them")
            assert took > SECONDS * 0.3 and blocked > SECONDS * 0.3, record
        until(lambda: relay.total(names.DELIVERY_BLOCKED_SUM) >= 1.0, "the wait is recorded as delivery blocked")


def sigterm_drains_streams_and_exports_the_last_telemetry():
    with Collector() as collector, start_sim() as sim:
        with Tokometer(sim.port, otlp=collector.url) as relay:

            async def traffic():
                stream = await Stream.open(relay.port, tokens=100)
                assert await stream.read_events(3)
                relay.terminate()

                def refused():
                    try:
                        socket.create_connection(("127.0.0.1", relay.port), 1).close()
                        return False
                    except OSError:
                        return True

                await asyncio.to_thread(until, refused, "new connections are refused while it drains")
                assert relay.alive(), "tokometer runs until its stream ends"
                rest = await asyncio.wait_for(stream.read_rest(), 20)
                await stream.close()
                return rest, time.monotonic()

            rest, ended = asyncio.run(traffic())
            assert rest.endswith(b"0\r\n\r\n") and b"[DONE]" in rest, rest[-200:]
            assert relay.wait(10) == 0
            took = time.monotonic() - ended
            print(f"    exited {took:.2f} s after its last stream")
            assert took < 3.0
            (record,) = relay.wait_for_records(1)
            assert record["outcome"] == names.OK and record["output_tokens"] == 100, record
            for signal_name in ("metrics", "traces"):
                pushes = [at for at, path, _ in collector.pushes if path == f"/v1/{signal_name}"]
                assert any(at >= ended - 0.05 for at in pushes), f"no {signal_name} after the last stream"


def stream_longer_than_the_grace_period_is_cut_and_counted():
    with start_sim() as sim, Tokometer(sim.port, grace_secs=1) as relay:

        async def traffic():
            stream = await Stream.open(relay.port, tokens=5000)
            assert await stream.read_events(3)
            relay.terminate()
            rest = await asyncio.wait_for(stream.read_rest(), 20)
            await stream.close()
            return rest

        assert b"[DONE]" not in asyncio.run(traffic())
        assert relay.wait(10) == 0
        (record,) = relay.wait_for_records(1)
        assert record["outcome"] == names.DRAINED and record["output_tokens"] >= 2, record


def tokometer_survives_the_open_file_limit():
    def served(tasks):
        return sum(task.done() and not task.cancelled() and task.exception() is None and task.result() for task in tasks)

    with start_sim() as sim, Tokometer(sim.port, fd_limit=96) as relay:

        async def traffic():
            streams = await asyncio.gather(
                *(Stream.open(relay.port, tokens=5000) for _ in range(200)), return_exceptions=True
            )
            opened = [stream for stream in streams if isinstance(stream, Stream)]
            # Some streams are served while many wait or are rejected.
            first = [asyncio.ensure_future(stream.read_events(2)) for stream in opened]
            done, _ = await asyncio.wait(first, timeout=5, return_when=asyncio.FIRST_COMPLETED)
            assert done and relay.alive()
            cpu, since = relay.cpu_seconds(), time.monotonic()
            await asyncio.wait(first, timeout=2)
            busy = (relay.cpu_seconds() - cpu) / (time.monotonic() - since)
            # The number of streams served at first depends on whether client or upstream connections get the
            # descriptors; descriptors of rejected clients become free for waiting clients.
            deadline = time.monotonic() + 20
            while served(first) < 10 and time.monotonic() < deadline and (rest := [task for task in first if not task.done()]):
                await asyncio.wait(rest, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            served_count = served(first)
            for task in first:
                task.cancel()
            await asyncio.gather(*first, return_exceptions=True)
            for stream in opened:
                stream.abort()
            return served_count, busy

        served_count, busy = asyncio.run(traffic())
        print(f"    {served_count} of 200 streams served with 96 descriptors, {busy:.0%} of a processor")
        assert served_count >= 10, f"only {served_count} streams were served"
        assert busy < 0.8, "tokometer does not spin on accept"
        until(lambda: complete(asyncio.run(send_request(relay.port, tokens=2))), "tokometer serves again once descriptors are free", 20)
        assert get(f"http://127.0.0.1:{relay.admin}/livez")[0] == 200


def invalid_configuration_exits_with_code_two():
    ended = subprocess.run([BINARY, "run", "--listen", "nonsense"], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and "nonsense" in ended.stderr, (ended.returncode, ended.stderr)
