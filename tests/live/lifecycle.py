"""Lifecycle of a pod with a sidecar: real processes, a real OpenTelemetry Collector, and the kubelet's actions.

The sidecar's arguments, variables and hooks are written by `tokometer inject`. 127.0.0.2 is the pod's address.
"""

import asyncio
import json
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import names
from otel_collector import OtelCollector
from pods import injected
from process import BINARY, Process, Tokometer, free_port, get, start_llama_server, start_sim, until
from stream import Stream, complete, send_request

POD_IP = "127.0.0.2"
DOWNWARD = {
    "metadata.name": "vllm-0",
    "metadata.namespace": "llm",
    "metadata.uid": "7a5b3c1e-0d7c-4b64-9f0e-2f3c8f6a1d55",
    "status.podIPs": POD_IP,
    "spec.nodeName": "node-1",
    "metadata.labels['llm-d.ai/role']": "",
}
# The time that the kubelet gives a native sidecar after the grace period has expired (KEP-753).
KILLED_AFTER = 2.0
STREAMS = 50


class Sidecar(Process):
    """A pod's container `tokometer`, in front of a server that listens on `port`; `number` identifies each start."""

    def __init__(self, mode, port, collector, *more):
        self.directory = tempfile.TemporaryDirectory(prefix="tokometer-pod-")
        self.access_log = Path(self.directory.name) / "access.jsonl"
        self.admin = free_port()
        variables = [f"--env=OTEL_EXPORTER_OTLP_ENDPOINT={collector.url}"]
        self.pod = injected(mode, "vllm/vllm-openai", f"--admin-port={self.admin}", *variables, port=port)
        self.container = self.pod["initContainers"][0]
        own = ["--set=access_log.enabled=true", f"--set=access_log.path={self.access_log}", "--set=access_log.format=json", *more]
        arguments = [argument.replace("$(POD_IPS)", POD_IP) for argument in self.container["args"]]
        environment = [f"{entry['name']}={self._value(entry)}" for entry in self.container["env"]]
        super().__init__("tokometer", ["env", *environment, BINARY, *arguments, *own])
        probe = self.container["startupProbe"]["httpGet"]
        self.ready(f"http://{POD_IP}:{probe['port']}{probe['path']}")

    @staticmethod
    def _value(entry):
        return entry["value"] if "value" in entry else DOWNWARD[entry["valueFrom"]["fieldRef"]["fieldPath"]]

    def __exit__(self, *error):
        super().__exit__(*error)
        self.directory.cleanup()

    def hook(self):
        """Runs the preStop hook, as the kubelet does in the container."""
        program, *arguments = self.container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "/tokometer", program
        done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=330)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def server_hook(self):
        """Sends the request of the server's hook; returns when the kubelet may stop the server."""
        wait = self.pod["containers"][0]["lifecycle"]["preStop"]["httpGet"]
        return get(f"http://{POD_IP}:{wait['port']}{wait['path']}", timeout=330)

    def ends_in_time(self):
        """Sends SIGTERM, and SIGKILL after two seconds; returns True if SIGKILL was not needed."""
        self.terminate()
        try:
            return self.wait(KILLED_AFTER) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def records(self):
        text = self.access_log.read_text().rpartition("\n")[0] if self.access_log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def open_streams(self):
        return json.loads(get(f"http://{POD_IP}:{self.admin}/drain")[1])["open_streams"]


def _responses(spans):
    """The spans of requests."""
    return [span for span in spans if "tokometer.outcome" in span["attributes"]]


async def _stream(port, **request):
    return await send_request(port, host=POD_IP, **request)


def drain_completes_fifty_streams_and_exports_the_last():
    with OtelCollector() as collector, start_sim("--rate", "100", "--ttft-ms", "50") as server:
        with Sidecar("address-split", server.port, collector) as sidecar, ThreadPoolExecutor(2) as kubelet:

            async def traffic():
                # Eight seconds of tokens, which is longer than a drain accepts new connections.
                streams = [asyncio.ensure_future(_stream(server.port, tokens=800)) for _ in range(STREAMS)]
                await asyncio.to_thread(until, lambda: sidecar.open_streams() == STREAMS, "all streams are open")
                began = time.monotonic()
                sidecar_hook, server_hook = kubelet.submit(sidecar.hook), kubelet.submit(sidecar.server_hook)
                await asyncio.to_thread(until, lambda: get(f"http://{POD_IP}:{sidecar.admin}/readyz")[0] == 503, "readiness reports the drain")
                late = await _stream(server.port, tokens=5)
                assert complete(late), "late clients are still served"
                assert f"{STREAMS} streams are open" in await asyncio.wrap_future(sidecar_hook)
                status, _ = await asyncio.wrap_future(server_hook)
                waited = time.monotonic() - began
                # No stream is left: if the server had been released early, its streams would have continued for
                # seconds.
                responses = await asyncio.wait_for(asyncio.gather(*streams), 2)
                assert status == 200 and all(map(complete, responses)), "a stream was cut"
                return waited

            waited = asyncio.run(traffic())
            server.terminate()
            server.wait(10)
            ended = time.monotonic()
            assert sidecar.ends_in_time(), "the sidecar exits before SIGKILL"
            print(f"    the server's hook waited for {waited:.1f} s; the sidecar exited {time.monotonic() - ended:.2f} s after SIGTERM")
        until(lambda: len(_responses(collector.spans())) >= STREAMS + 1, lambda: f"{STREAMS + 1} spans, got {len(_responses(collector.spans()))}", 5)
        spans = _responses(collector.spans())
        assert Counter(span["attributes"]["tokometer.outcome"] for span in spans) == {names.OK: STREAMS + 1}, spans[:3]
        expected = {"k8s.pod.name": "vllm-0", "k8s.namespace.name": "llm", "k8s.pod.uid": DOWNWARD["metadata.uid"], "k8s.node.name": "node-1"}
        assert all(expected.items() <= span["resource"].items() for span in spans), spans[0]["resource"]
        until(lambda: collector.total(names.OTLP_REQUESTS, **{"outcome": names.OK}) == STREAMS + 1, lambda: f"final counts: {collector.latest(names.OTLP_REQUESTS)}", 5)
        assert collector.total(names.OTLP_OUTPUT_TOKENS) == STREAMS * 800 + 5, collector.latest(names.OTLP_OUTPUT_TOKENS)


def streams_cut_at_the_grace_period_are_exported_before_sigkill():
    with OtelCollector() as collector, start_sim("--rate", "100", "--ttft-ms", "50") as server:
        with Sidecar("address-split", server.port, collector, "--set=process.lame_duck=0") as sidecar:

            async def traffic():
                streams = [await Stream.open(server.port, host=POD_IP, tokens=20_000) for _ in range(STREAMS)]
                assert all(await asyncio.gather(*(stream.read_events(3) for stream in streams)))
                await asyncio.to_thread(sidecar.hook)
                # The grace period has expired: all containers get SIGTERM, and SIGKILL two seconds later.
                killed = asyncio.get_running_loop().run_in_executor(None, sidecar.ends_in_time)
                server.kill()
                rests = await asyncio.gather(*(stream.read_rest() for stream in streams))
                assert not any(b"[DONE]" in rest for rest in rests)
                for stream in streams:
                    await stream.close()
                return await killed

            assert asyncio.run(traffic()), "the sidecar exits before SIGKILL"
        until(lambda: len(_responses(collector.spans())) >= STREAMS, lambda: f"{STREAMS} spans, got {len(_responses(collector.spans()))}", 5)
        spans = _responses(collector.spans())
        outcomes = Counter(span["attributes"]["tokometer.outcome"] for span in spans)
        assert outcomes.total() == STREAMS and outcomes.keys() <= names.SERVER_DIED, outcomes
        until(lambda: collector.total(names.OTLP_REQUESTS) == STREAMS, lambda: f"final counts: {collector.latest(names.OTLP_REQUESTS)}", 5)


def repeated_server_crashes_end_only_streams_in_flight():
    port, clients, crashes = free_port(), 20, 6
    with OtelCollector() as collector, Tokometer(port, otlp=collector.url) as relay:
        ends, stop = Counter(), False

        async def client(number):
            while not stop:
                response = await send_request(relay.port, tokens=20)
                refused = response.startswith(b"HTTP/1.1 503 ")
                ends["ok" if complete(response) else "refused" if refused else "cut" if response else "nothing"] += 1
                # Each client retries after a different delay, so that a crash always hits some open responses.
                await asyncio.sleep(0.02 + 0.005 * number)

        def responded(count):
            until(lambda: ends["ok"] >= count, lambda: f"{count} complete responses: {ends}", 30)

        async def crashing():
            nonlocal stop
            try:
                for _ in range(crashes):
                    before = ends.copy()
                    with start_sim("--rate", "200", "--ttft-ms", "20", port=port) as server:
                        await asyncio.to_thread(responded, before["ok"] + 2 * clients)
                        server.kill()
                        await asyncio.to_thread(until, lambda: ends["refused"] > before["refused"], lambda: f"a refusal: {ends}")
                        assert get(f"http://127.0.0.1:{relay.admin}/livez")[0] == 200
                with start_sim(port=port):
                    ends_at_restart = ends.copy()
                    await asyncio.to_thread(responded, ends_at_restart["ok"] + 2 * clients)
                    stop = True
                    await all_clients
                return ends_at_restart
            finally:
                stop = True

        async def traffic():
            nonlocal all_clients
            all_clients = asyncio.gather(*(client(number) for number in range(clients)))
            return await crashing()

        all_clients = None
        asyncio.run(traffic())
        until(lambda: relay.total(names.IN_FLIGHT) == 0 and relay.total(names.CONNECTIONS_OPEN) == 0, "nothing remains open")
        records = relay.wait_for_records(int(relay.total(names.REQUESTS)), 30)
        outcomes = Counter(record["outcome"] for record in records)
        print(f"    {crashes} crashes: {dict(ends)}; recorded as {dict(outcomes)}")
        assert outcomes[names.OK] == ends["ok"] and outcomes[names.REFUSED] == ends["refused"], (outcomes, ends)
        # If the server was down before the request was read, there was no request record.
        died = sum(outcomes[outcome] for outcome in names.SERVER_DIED)
        assert 0 < ends["cut"] <= died <= ends["cut"] + ends["nothing"] and outcomes.total() == ends["ok"] + ends["refused"] + died, (outcomes, ends)
        until(lambda: collector.total(names.OTLP_REQUESTS) == len(records), lambda: f"the collector has received all: {collector.latest(names.OTLP_REQUESTS)}")


def shadow_bind_upgrade_fails_no_request():
    """Changes a container's image in a running pod: preStop hook, SIGTERM, exit, and then the new container. The server keeps running.

    Many clients open new connections all the time, so that some do so at the moment when the sidecar stops listening.
    """
    upgrades, client_count = 6, 40
    with OtelCollector() as collector, start_llama_server("--host", "0.0.0.0", "--reuse-port") as server:
        model = server.child.pid
        failed, responses, by_sidecar, stop = [], 0, 0, False

        async def client():
            nonlocal responses
            while not stop:
                response = await _stream(server.port, tokens=2)
                responses += 1
                if not complete(response):
                    failed.append((time.monotonic(), response[-200:]))

        async def upgrading():
            nonlocal by_sidecar
            for _ in range(upgrades):
                with Sidecar("shadow-bind", server.port, collector, "--set=process.lame_duck=0") as sidecar:
                    await asyncio.to_thread(until, lambda: len(sidecar.records()) >= 50, "new connections reach the sidecar")
                    before = responses
                    await asyncio.to_thread(sidecar.hook)
                    sidecar.terminate()
                    assert await asyncio.to_thread(sidecar.wait, 30) == 0
                    records = sidecar.records()
                    assert {record["outcome"] for record in records} == {names.OK}, Counter(record["outcome"] for record in records)
                    by_sidecar += len(records)
                await asyncio.to_thread(until, lambda: responses >= before + 50, "new connections reach the server without the sidecar")

        async def traffic():
            nonlocal stop
            clients = asyncio.gather(*(client() for _ in range(client_count)))
            try:
                await upgrading()
            finally:
                stop = True
                await clients

        asyncio.run(traffic())
        print(f"    {upgrades} upgrades: {responses} responses, {by_sidecar} of them through a sidecar, {len(failed)} failed")
        assert not failed, failed[:5]
        assert responses > by_sidecar >= 50 * upgrades and server.child.pid == model and server.alive()
        until(lambda: collector.total(names.OTLP_REQUESTS) == by_sidecar, lambda: f"the collector has {collector.total(names.OTLP_REQUESTS):g} of {by_sidecar}")
