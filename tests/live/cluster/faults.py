"""Failures in a pod are isolated: a crashed engine, a wedged engine, and a crashed sidecar."""

import asyncio
import socket
import time

import names
from process import get, until
from stream import Stream

from cluster import release, workloads
from cluster.rig import cluster
from cluster.streams import while_streaming

STREAMS = 50
# Silence bounds far below the defaults, and frequent probes.
SILENCE = 5
WEDGE = {"wedge": {"decode": f"{SILENCE}s", "prefill": f"{SILENCE}s"}}
LIVENESS = {"enabled": True, "periodSeconds": 2, "failureThreshold": 3}


def a_killed_engine_restarts_and_its_cut_streams_are_recorded():
    node = cluster()
    with node.namespace("engine-killed") as namespace, release.installed(node, namespace):
        node.api.make(workloads.pod("engine", workloads.server(rate=20)), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        workloads.answers(pod)
        started = workloads.figure(pod, "process_start_time_seconds")
        seen, _ = while_streaming([pod], lambda: node.kill_container(pod, "vllm"), STREAMS, tokens=2000)
        assert len(seen.cut) == STREAMS, f"{len(seen.whole)} streams survived their engine"
        after = workloads.wait_restarted(node, namespace, pod, "vllm")
        assert workloads.status(after, "tokometer")["restartCount"] == 0, after["status"]
        workloads.answers(after)
        assert started and workloads.figure(after, "process_start_time_seconds") == started, "the sidecar is another process"
        workloads.wait_figure(after, 2, names.EXCHANGES, outcome=names.OK)
        died = sum(workloads.figure(after, names.EXCHANGES, outcome=outcome) for outcome in names.SERVER_DIED)
        assert died == STREAMS, f"{died} of {STREAMS} cut streams are recorded as such"


def a_wedged_engine_is_restarted_by_its_liveness_probe():
    node = cluster()
    with node.namespace("wedged") as namespace:
        with release.installed(node, namespace, {"sidecar": {"engineLiveness": LIVENESS, "config": WEDGE}}):
            node.api.make(workloads.pod("engine"), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")
            probe = pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]
            assert (probe["path"], probe["port"]) == ("/engine/healthz", workloads.ADMIN), probe

            async def hang():
                stream = await Stream.open(workloads.PORT, host=workloads.address(pod), fault="hang:600", tokens=20)
                assert get(f"http://{workloads.address(pod)}:{workloads.PORT}/health")[0] == 200, "the engine's own health check"
                # It ends when the engine does.
                rest = await asyncio.wait_for(stream.rest(), 240)
                await stream.close()
                return rest

            began = time.monotonic()
            rest = asyncio.run(hang())
            took = time.monotonic() - began
            assert b"[DONE]" not in rest, rest[:300]
            after = workloads.wait_restarted(node, namespace, pod, "vllm")
            assert workloads.status(after, "tokometer")["restartCount"] == 0, after["status"]
            events = [event for event in node.api.get("Event", namespace) if event.get("reason") == "Unhealthy" and "Liveness" in event.get("message", "")]
            assert any("503" in event["message"] for event in events), events
            workloads.answers(after)
            print(f"    its client was disconnected {took:.0f} s after it asked")


def a_busy_engine_is_not_restarted_by_its_liveness_probe():
    node = cluster()
    with node.namespace("busy") as namespace:
        with release.installed(node, namespace, {"sidecar": {"engineLiveness": LIVENESS, "config": WEDGE}}):
            # Four at a time: the others wait longer than the bound for a silent engine.
            server = workloads.server("--max-concurrency", "4", rate=40)
            node.api.make(workloads.pod("engine", server), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")

            async def crowd():
                began = time.monotonic()
                opened = [await Stream.open(workloads.PORT, host=workloads.address(pod), tokens=80) for _ in range(STREAMS)]
                rests = await asyncio.wait_for(asyncio.gather(*(stream.rest() for stream in opened)), 240)
                for stream in opened:
                    await stream.close()
                return rests, time.monotonic() - began

            rests, took = asyncio.run(crowd())
            bounds = SILENCE + LIVENESS["periodSeconds"] * LIVENESS["failureThreshold"]
            assert took > 2 * bounds, f"no request waited for long: {took:.0f} s"
            assert all(b"data: [DONE]" in rest for rest in rests)
            [now] = workloads.wait_ready(node, namespace, "engine")
            assert workloads.status(now, "vllm")["restartCount"] == 0, now["status"]
            print(f"    {STREAMS} requests, four at a time: the last got its response after {took:.0f} s")


def a_killed_sidecar_cuts_only_its_own_streams_and_restarts():
    node = cluster()
    with node.namespace("sidecar-killed") as namespace, release.installed(node, namespace):
        node.api.make(workloads.deployment("vllm", workloads.server(rate=20), replicas=2), namespace)
        killed, other = workloads.wait_ready(node, namespace, "vllm", 2)

        def kill():
            node.kill_container(killed, "tokometer")
            return _refused(killed)

        both = lambda: while_streaming([killed], kill, STREAMS, tokens=2000)  # noqa: E731
        untouched, (cut, (connects, seconds)) = while_streaming([other], both, STREAMS, tokens=300)
        print(f"    {len(cut.cut)} streams cut; then {connects} connects refused within {seconds:.1f} s")
        assert len(cut.cut) == STREAMS, f"{len(cut.whole)} streams survived their relay"
        assert len(untouched.whole) == STREAMS, f"{len(untouched.cut)} streams of another pod were cut"
        after = workloads.wait_restarted(node, namespace, killed, "tokometer")
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        workloads.answers(after)
        workloads.wait_figure(after, 1, names.EXCHANGES)


def _refused(pod):
    """Connects until the restarted sidecar accepts; returns how many connects were refused, and for how long. Any other error fails."""
    refused, began, deadline = 0, None, time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection((workloads.address(pod), workloads.PORT), 10).close()
        except ConnectionRefusedError:
            refused, began = refused + 1, began or time.monotonic()
        else:
            if refused:
                return refused, time.monotonic() - began
        time.sleep(0.01)
    raise AssertionError(f"{refused} connects refused, and none accepted again")


def a_sidecar_out_of_memory_restarts_alone():
    node = cluster()
    with node.namespace("memory") as namespace:
        limits = {"requests": {"cpu": "50m", "memory": "40Mi"}, "limits": {"memory": "40Mi"}}
        with release.installed(node, namespace, {"sidecar": {"resources": limits}}):
            node.api.make(workloads.pod("engine"), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")
            held = []
            try:
                # Request headers that never end: each connection's are kept until then.
                until(lambda: _killed_by(node, namespace, pod, held), "the sidecar runs out of memory", 240)
            finally:
                for connection in held:
                    connection.close()
            after = workloads.wait_restarted(node, namespace, pod, "tokometer")
            last = workloads.status(after, "tokometer")["lastState"]["terminated"]
            assert last["reason"] == "OOMKilled", last
            assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
            workloads.answers(after)
            print(f"    {len(held)} unfinished request headers exceeded 40 MiB")


def _killed_by(node, namespace, pod, held):
    """Sends fifty more unfinished request headers; returns true once the sidecar has been killed."""
    head = b"GET /health HTTP/1.1\r\nhost: engine\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 4000) for n in range(12))
    try:
        for _ in range(50):
            connection = socket.create_connection((workloads.address(pod), workloads.PORT), 10)
            held.append(connection)
            connection.settimeout(10)
            connection.sendall(head)
    except OSError:
        pass
    now = node.api.get("Pod", namespace, pod["metadata"]["name"])
    return workloads.status(now, "tokometer")["restartCount"] > 0
