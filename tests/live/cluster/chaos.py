"""Random failures under streaming load, with tokometer and without it: `make chaos` for CHAOS_SECONDS.

Two Deployments of the same engine run in parallel, one with the sidecar. The same seeded sequence of failures hits both at the same
moments. Clients send streaming requests to ready pods all the time, and repeat only refused connects, as a gateway does. The requests lost
with tokometer may exceed those lost without it by at most the requests that were in flight through a killed sidecar.
"""

import asyncio
import itertools
import json
import os
import random
import time
from dataclasses import dataclass, field

from process import until
from stream import Stream, complete

from cluster import release, workloads
from cluster.api import Refused, path
from cluster.images import TOKOMETER
from cluster.rig import cluster

SECONDS = float(os.environ.get("CHAOS_SECONDS", "45"))
SEED = int(os.environ.get("CHAOS_SEED", "20260101"))
REPLICAS = 3
# Concurrent clients of each Deployment, and tokens per response at 40 tokens per second.
CLIENTS, TOKENS, RATE = 12, 80, 40
# Seconds between two failures.
PAUSE = (4.0, 8.0)
# The failures, with their weights.
ACTIONS = {"kill sidecar": 3, "kill engine": 2, "delete pod": 2, "kill pod": 1, "evict": 1, "upgrade": 1}
# A connect that takes longer has failed: the address of a removed pod may not respond at all.
CONNECT_SECONDS = 2.0


@dataclass
class Side:
    """One Deployment and its clients."""

    name: str
    requests: itertools.count = field(default_factory=itertools.count)
    complete: int = 0
    refused: int = 0
    # Kind of failure -> number of requests.
    lost: dict = field(default_factory=dict)
    # Requests in flight: number -> address.
    open: dict = field(default_factory=dict)
    # Requests opened while a sidecar was being killed, or in flight before: they may be lost.
    exposed: set = field(default_factory=set)
    # Address whose sidecar is being killed now.
    killing: str = ""

    def addresses(self, node, namespace):
        slices = [s for s in node.api.get("EndpointSlice", namespace) if s["metadata"]["labels"].get("kubernetes.io/service-name") == self.name]
        endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or []]
        return sorted(endpoint["addresses"][0] for endpoint in endpoints if endpoint["conditions"].get("ready"))

    async def connect(self, node, namespace, turn):
        """Opens a stream to a ready pod; repeats refused connects."""
        for attempt in itertools.count():
            addresses = await asyncio.to_thread(self.addresses, node, namespace)
            if addresses:
                address = addresses[(turn + attempt) % len(addresses)]
                try:
                    return address, await asyncio.wait_for(Stream.open(workloads.PORT, host=address, tokens=TOKENS), CONNECT_SECONDS)
                except (OSError, TimeoutError):
                    self.refused += 1
            await asyncio.sleep(0.1)

    async def send_requests(self, node, namespace, number, deadline):
        for turn in itertools.count(number):
            if time.monotonic() > deadline:
                return
            address, stream = await self.connect(node, namespace, turn)
            request = next(self.requests)
            self.open[request] = address
            if address == self.killing:
                self.exposed.add(request)
            try:
                response = await asyncio.wait_for(stream.read_rest(), 60)
            except TimeoutError:
                response = b"no end within 60 s"
            finally:
                del self.open[request]
                await stream.close()
            if complete(response):
                self.complete += 1
            else:
                kind = "cut" if b"data: " in response else response[:12].decode(errors="replace") or "no response"
                self.lost[kind] = self.lost.get(kind, 0) + 1

    def total(self):
        return sum(self.lost.values())

    def report(self):
        return f"{self.name}: {self.complete} complete, {self.total()} lost {self.lost or ''}, {self.refused} connects refused and repeated"


class Chaos:
    def __init__(self, node, namespace):
        self.node, self.namespace, self.random = node, namespace, random.Random(SEED)
        self.sides = {name: Side(name) for name in ("with", "without")}
        self.performed = {}

    def pods(self, name):
        """The ready pods, in the order of their creation."""
        pods = self.node.api.get("Pod", self.namespace)
        ready_pods = [pod for pod in pods if pod["metadata"]["labels"].get("app") == name and workloads.ready(pod)]
        return sorted(ready_pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def apply(self, action, pod, name, version):
        """Applies an action to one side. A pod that disappears meanwhile is not an error."""
        side = self.sides[name]
        try:
            match action:
                case "kill sidecar":
                    side.killing = workloads.address(pod)
                    side.exposed |= {request for request, address in side.open.items() if address == side.killing}
                    try:
                        self.node.kill_container(pod, "tokometer")
                    finally:
                        side.killing = ""
                case "kill engine":
                    self.node.kill_container(pod, "vllm")
                case "delete pod":
                    self.node.api.delete("Pod", self.namespace, pod["metadata"]["name"])
                case "kill pod":
                    self.node.api.delete("Pod", self.namespace, pod["metadata"]["name"], gracePeriodSeconds=0)
                case "evict":
                    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"], "namespace": self.namespace}}
                    self.node.api.request("POST", path("Pod", self.namespace, pod["metadata"]["name"]) + "/eviction", eviction)
                case "upgrade":
                    change = {"spec": {"template": {"metadata": {"annotations": {"version": str(version)}}}}}
                    self.node.api.patch("Deployment", self.namespace, name, change)
        except (Refused, AssertionError, KeyError, StopIteration):
            return False
        return True

    async def inject_failures(self, deadline):
        for version in itertools.count(1):
            await asyncio.sleep(self.random.uniform(*PAUSE))
            # No failure is injected in the last seconds, because its restart could not be observed.
            if time.monotonic() > deadline - 5:
                return
            action = self.random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            index = self.random.randrange(REPLICAS)
            if action == "upgrade":
                await asyncio.to_thread(self.switch_image, version)
            names = ["with"] if action == "kill sidecar" else list(self.sides)
            pods = dict(zip(names, await asyncio.gather(*(asyncio.to_thread(self.pods, name) for name in names)), strict=True))
            # Act on both sides or on none, and never on the last ready pod: without it there is nothing to compare.
            if action != "upgrade" and min(map(len, pods.values())) < 2:
                continue
            chosen = {name: ready[index % len(ready)] if ready else None for name, ready in pods.items()}
            done = await asyncio.gather(*(asyncio.to_thread(self.apply, action, pod, name, version) for name, pod in chosen.items()))
            self.performed[action] = self.performed.get(action, 0) + any(done)

    def switch_image(self, version):
        """New pods get the sidecar of another release."""
        tag = ("newer", TOKOMETER.rpartition(":")[2])[version % 2]
        release.apply(self.node, "upgrade", self.namespace, {"image": release.image() | {"tag": tag}})

    async def run(self):
        deadline = time.monotonic() + SECONDS
        clients = [
            asyncio.create_task(side.send_requests(self.node, self.namespace, number, deadline))
            for side in self.sides.values()
            for number in range(CLIENTS)
        ]
        await self.inject_failures(deadline)
        await asyncio.wait_for(asyncio.gather(*clients), SECONDS + 300)


def chaos_loses_only_requests_through_killed_sidecars():
    node = cluster()
    node.rename_image(TOKOMETER, TOKOMETER.rpartition(":")[0] + ":newer")
    with node.namespace("chaos") as namespace, release.installed(node, namespace):
        for name in ("with", "without"):
            labels = workloads.LABEL if name == "with" else {}
            node.api.create(workloads.service(name), namespace)
            node.api.create(workloads.deployment(name, workloads.server(rate=RATE), replicas=REPLICAS, labels=labels), namespace)
        for name in ("with", "without"):
            workloads.wait_ready(node, namespace, name, REPLICAS)
        chaos = Chaos(node, namespace)
        until(lambda: all(len(side.addresses(node, namespace)) == REPLICAS for side in chaos.sides.values()), "every pod is an endpoint", 60)
        asyncio.run(chaos.run())
        with_tokometer, without_tokometer = chaos.sides["with"], chaos.sides["without"]
        excess = with_tokometer.total() - without_tokometer.total()
        exposed = len(with_tokometer.exposed)
        summary = f"{exposed} requests in flight through killed sidecars, {excess} more lost with tokometer"
        for line in (json.dumps(chaos.performed), with_tokometer.report(), without_tokometer.report(), summary):
            print(f"    {line}", flush=True)
        assert chaos.performed and with_tokometer.complete > CLIENTS and without_tokometer.complete > CLIENTS, "nothing was tested"
        assert excess <= exposed, f"{excess} more requests lost with tokometer; {exposed} were in flight through killed sidecars"
