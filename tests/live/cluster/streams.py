"""Clients of the serving pods while something happens to these: open streams, new requests, health checks."""

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field

from process import get
from stream import Stream, complete, send_request

from cluster import workloads

# Timeout of a client.
TIMEOUT = 240


@dataclass
class Results:
    """Results of the clients: complete responses, and the received parts of those that were cut."""

    complete: list = field(default_factory=list)
    cut: list = field(default_factory=list)


def while_streaming(pods, action, count=50, **request):
    """Opens `count` streams over these pods, calls `action` once all have events; returns the streams' results and that of `action`."""

    async def run():
        opened = [await Stream.open(workloads.PORT, host=workloads.address(pods[n % len(pods)]), **request) for n in range(count)]
        started = await asyncio.wait_for(asyncio.gather(*(stream.read_events(3) for stream in opened)), TIMEOUT)
        assert all(started), "a stream ended too early"
        action_task = asyncio.create_task(asyncio.to_thread(action))
        rests = await asyncio.wait_for(asyncio.gather(*(stream.read_rest() for stream in opened)), TIMEOUT)
        for stream in opened:
            await stream.close()
        return rests, await action_task

    rests, returned = asyncio.run(run())
    results = Results()
    for rest in rests:
        (results.complete if b"data: [DONE]" in rest and rest.endswith(b"0\r\n\r\n") else results.cut).append(rest)
    return results, returned


class ServiceClients:
    """Clients that send requests to a Service continuously: each looks up the ready pods, as a gateway does, and picks one."""

    def __init__(self, cluster, namespace, service, count=4, **request):
        self.cluster, self.namespace, self.service, self.count, self.request = cluster, namespace, service, count, request
        self.results, self.stopped = Results(), False

    def _ready(self):
        slices = [s for s in self.cluster.api.get("EndpointSlice", self.namespace) if s["metadata"]["labels"].get("kubernetes.io/service-name") == self.service]
        endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or []]
        return sorted(endpoint["addresses"][0] for endpoint in endpoints if endpoint["conditions"].get("ready"))

    async def _send_request(self, number):
        turn = number
        while not self.stopped:
            addresses = await asyncio.to_thread(self._ready)
            assert addresses, f"no pod is ready behind {self.service}"
            response = await send_request(workloads.PORT, host=addresses[turn % len(addresses)], **self.request)
            (self.results.complete if complete(response) else self.results.cut).append(response)
            turn += 1

    def send_while(self, action):
        """Sends requests until `action` has returned."""

        async def run():
            clients = [asyncio.create_task(self._send_request(number)) for number in range(self.count)]
            try:
                await asyncio.to_thread(action)
            finally:
                self.stopped = True
                await asyncio.wait_for(asyncio.gather(*clients), TIMEOUT)

        asyncio.run(run())
        return self.results


@contextlib.contextmanager
def outage_of(pod):
    """Requests the pod's health check again and again; yields a function that returns the seconds without a response: the longest
    interval, and the sum of the intervals of more than half a second."""
    successes, stopped = [time.monotonic()], threading.Event()

    def request():
        while not stopped.wait(0.02):
            if get(f"http://{workloads.address(pod)}:{workloads.PORT}/health", timeout=0.5)[0] == 200:
                successes.append(time.monotonic())

    def outage():
        intervals = [after - before for before, after in zip(successes, [*successes[1:], time.monotonic()], strict=True)]
        return max(intervals), sum(interval for interval in intervals if interval > 0.5)

    thread = threading.Thread(target=request)
    thread.start()
    try:
        yield outage
    finally:
        stopped.set()
        thread.join()
