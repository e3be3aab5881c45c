"""Failures in a pod are isolated: a crashed engine, a wedged engine, and a crashed sidecar."""

import asyncio
import contextlib
import socket
import subprocess
import time
from pathlib import Path

import names
from process import get, until
from stream import Stream

from cluster import intent, release, workloads
from cluster.rig import cluster
from cluster.streams import outage_of, while_streaming

STREAMS = 50
# Silence bounds for wedge detection far below the defaults, and frequent probes.
SILENCE = 5
WEDGE = {"wedge": {"decode": f"{SILENCE}s", "prefill": f"{SILENCE}s"}}
LIVENESS = {"enabled": True, "periodSeconds": 2, "failureThreshold": 3}


def killed_engine_restarts_and_cut_streams_are_recorded():
    node = cluster()
    with node.namespace("engine-killed") as namespace, release.installed(node, namespace):
        node.api.create(workloads.pod("engine", workloads.server(rate=20)), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        workloads.check_response(pod)
        started = workloads.metric_value(pod, "process_start_time_seconds")
        results, _ = while_streaming([pod], lambda: node.kill_container(pod, "vllm"), STREAMS, tokens=2000)
        assert len(results.cut) == STREAMS, f"{len(results.complete)} streams survived their engine"
        after = workloads.wait_restarted(node, namespace, pod, "vllm")
        assert workloads.status(after, "tokometer")["restartCount"] == 0, after["status"]
        workloads.check_response(after)
        assert started and workloads.metric_value(after, "process_start_time_seconds") == started, "the sidecar was restarted"
        workloads.wait_metric_value(after, 2, names.REQUESTS, outcome=names.OK)
        died = sum(workloads.metric_value(after, names.REQUESTS, outcome=outcome) for outcome in names.SERVER_DIED)
        assert died == STREAMS, f"{died} of {STREAMS} cut streams are recorded as such"


def liveness_probe_restarts_a_wedged_engine():
    node = cluster()
    with node.namespace("wedged") as namespace:
        with release.installed(node, namespace, {"sidecar": {"engineLiveness": LIVENESS, "config": WEDGE}}):
            node.api.create(workloads.pod("engine"), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")
            probe = pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]
            assert (probe["path"], probe["port"]) == ("/engine/healthz", workloads.ADMIN), probe

            async def hang():
                stream = await Stream.open(workloads.PORT, host=workloads.address(pod), fault="hang:600", tokens=20)
                assert get(f"http://{workloads.address(pod)}:{workloads.PORT}/health")[0] == 200, "the engine's own health check"
                # The stream ends when the kubelet kills the engine.
                rest = await asyncio.wait_for(stream.read_rest(), 240)
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
            workloads.check_response(after)
            print(f"    its client was disconnected {took:.0f} s after its request")


def liveness_probe_does_not_restart_a_busy_engine():
    node = cluster()
    with node.namespace("busy") as namespace:
        with release.installed(node, namespace, {"sidecar": {"engineLiveness": LIVENESS, "config": WEDGE}}):
            # The engine serves four requests at a time, so the others wait longer than the silence bound.
            server = workloads.server("--max-concurrency", "4", rate=40)
            node.api.create(workloads.pod("engine", server), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")

            async def send_all():
                began = time.monotonic()
                opened = [await Stream.open(workloads.PORT, host=workloads.address(pod), tokens=80) for _ in range(STREAMS)]
                rests = await asyncio.wait_for(asyncio.gather(*(stream.read_rest() for stream in opened)), 240)
                for stream in opened:
                    await stream.close()
                return rests, time.monotonic() - began

            rests, took = asyncio.run(send_all())
            bounds = SILENCE + LIVENESS["periodSeconds"] * LIVENESS["failureThreshold"]
            assert took > 2 * bounds, f"no request waited for long: {took:.0f} s"
            assert all(b"data: [DONE]" in rest for rest in rests)
            [now] = workloads.wait_ready(node, namespace, "engine")
            assert workloads.status(now, "vllm")["restartCount"] == 0, now["status"]
            print(f"    {STREAMS} requests, four at a time: the last got its response after {took:.0f} s")


def killed_sidecar_cuts_only_its_streams_and_restarts():
    node = cluster()
    with node.namespace("sidecar-killed") as namespace, release.installed(node, namespace):
        node.api.create(workloads.deployment("vllm", workloads.server(rate=20), replicas=2), namespace)
        killed, other = workloads.wait_ready(node, namespace, "vllm", 2)

        def kill():
            node.kill_container(killed, "tokometer")
            return _count_refused_connects(killed)

        stream_and_kill = lambda: while_streaming([killed], kill, STREAMS, tokens=2000)  # noqa: E731
        other_results, (results, (refused, seconds)) = while_streaming([other], stream_and_kill, STREAMS, tokens=300)
        print(f"    {len(results.cut)} streams cut; then {refused} connects refused within {seconds:.1f} s")
        assert len(results.cut) == STREAMS, f"{len(results.complete)} streams survived their sidecar"
        assert len(other_results.complete) == STREAMS, f"{len(other_results.cut)} streams of another pod were cut"
        after = workloads.wait_restarted(node, namespace, killed, "tokometer")
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        workloads.check_response(after)
        workloads.wait_metric_value(after, 1, names.REQUESTS)


def _count_refused_connects(pod):
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


def sidecar_out_of_memory_restarts_alone():
    node = cluster()
    with node.namespace("memory") as namespace, release.installed(node, namespace):
        node.api.create(workloads.pod("engine", workloads.server(livenessProbe=intent.LIVENESS)), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        with outage_of(pod) as outage, _filled_memory(pod):
            after = workloads.wait_restarted(node, namespace, pod, "tokometer")
            longest, _ = outage()
        last = workloads.status(after, "tokometer")["lastState"]["terminated"]
        assert last["reason"] == "OOMKilled", last
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        workloads.check_response(after)
        print(f"    outage with the sidecar minus without: {longest:+.1f} s")


@contextlib.contextmanager
def _filled_memory(pod):
    """Fills the memory of the sidecar's control group with a file in its volume. The kernel kills the process of the container, because
    the kubelet gave it a higher score than the one that writes the file."""
    identity = workloads.status(pod, "tokometer")["containerID"].rpartition("/")[2]
    groups = {}
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            groups |= {file.parent: text for text in [file.read_text()] if identity in text}
    [(process, text)] = groups.items()
    paths = {controllers: path.lstrip("/") for _, controllers, path in (line.split(":", 2) for line in text.splitlines())}
    group = Path("/sys/fs/cgroup/memory") / paths["memory"] if "memory" in paths else Path("/sys/fs/cgroup") / paths[""]
    script = f"echo $$ > {group}/cgroup.procs; exec head -c 1G /dev/zero > {process}/root/run/tokometer-probe/fill"
    writer = subprocess.Popen(["sh", "-c", script])
    try:
        yield
    finally:
        writer.kill()
        writer.wait()
