"""Pods that end with open streams: streams that fit into the grace period are completed, and all of them are recorded."""

import time

import names
from process import until

from cluster import release, workloads
from cluster.receiver import Receiver, tokens
from cluster.rig import cluster
from cluster.streams import ServiceClients, while_streaming

STREAMS = 50


def _check_recorded(receiver, results, *pods):
    """Checks that the receiver has each successful request exactly once, and each token."""
    expected = len(results.complete)
    until(lambda: receiver.outcomes(*pods)[names.OK] >= expected, lambda: f"{expected} successful requests: {receiver.outcomes(*pods)}", 120)
    assert receiver.outcomes(*pods)[names.OK] == expected, receiver.outcomes(*pods)
    counted = lambda: receiver.counter_total(names.OTLP_REQUESTS, *pods)  # noqa: E731
    until(lambda: counted() >= expected, lambda: f"counters of {expected}: {counted()}", 120)
    received = sum(tokens(response) for response in results.complete)
    assert receiver.counter_total(names.OTLP_OUTPUT_TOKENS, *pods) >= received, (receiver.counter_total(names.OTLP_OUTPUT_TOKENS, *pods), received)


def deleted_pod_completes_and_records_fifty_streams():
    node = cluster()
    with Receiver() as receiver, node.namespace("deleted") as namespace, release.installed(node, namespace, {"sidecar": receiver.sidecar()}):
        node.api.create(workloads.pod("engine", workloads.server(rate=20)), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")

        def delete():
            began = time.monotonic()
            node.kubectl("-n", namespace, "delete", "pod", "engine", "--timeout=300s", seconds=320)
            return time.monotonic() - began

        results, took = while_streaming([pod], delete, STREAMS, tokens=300)
        assert len(results.complete) == STREAMS, f"{len(results.cut)} streams were cut, the first after {len(results.cut[0])} bytes"
        assert all(tokens(response) == 300 for response in results.complete)
        _check_recorded(receiver, results, "engine")
        assert receiver.outcomes("engine") == {names.OK: STREAMS}
        assert receiver.counter_total(names.OTLP_OUTPUT_TOKENS, "engine") == 300 * STREAMS
        # The pod's grace period is 330 s, but the pod must exit when its streams end.
        print(f"    {STREAMS} streams of 15 s, the pod terminated {took:.0f} s after its deletion")
        assert took < 120, f"it took {took:.0f} s"


def streams_longer_than_the_grace_period_are_cut_and_recorded():
    node = cluster()
    with Receiver() as receiver, node.namespace("cut") as namespace:
        sidecar = receiver.sidecar(drain={"enabled": True, "timeoutSeconds": 8})
        with release.installed(node, namespace, {"sidecar": sidecar}):
            node.api.create(workloads.pod("engine", workloads.server(rate=5)), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")
            assert pod["spec"]["terminationGracePeriodSeconds"] == 38, pod["spec"]
            results, _ = while_streaming([pod], lambda: node.kubectl("-n", namespace, "delete", "pod", "engine", "--timeout=300s", seconds=320), STREAMS, tokens=2000)
            assert len(results.cut) == STREAMS and all(response.count(b"data: {") > 20 for response in results.cut), f"{len(results.complete)} were completed"
            until(lambda: receiver.outcomes("engine").total() >= STREAMS, lambda: f"{STREAMS} requests: {receiver.outcomes('engine')}", 120)
            recorded = receiver.outcomes("engine")
            assert recorded.total() == STREAMS and names.OK not in recorded, recorded
            counted = lambda: receiver.counter_total(names.OTLP_REQUESTS, "engine")  # noqa: E731
            until(lambda: counted() == STREAMS, lambda: f"{counted()} counted", 120)
            print(f"    {dict(recorded)}")


def rolling_update_under_load_loses_no_request_and_records_all():
    node = cluster()
    with Receiver() as receiver, node.namespace("rolling") as namespace, release.installed(node, namespace, {"sidecar": receiver.sidecar()}):
        node.api.create(workloads.service("vllm"), namespace)
        node.api.create(workloads.deployment("vllm", workloads.server(rate=25), replicas=2), namespace)
        before = workloads.wait_ready(node, namespace, "vllm", 2)
        pod_names = set()

        def roll():
            node.kubectl("-n", namespace, "rollout", "restart", "deployment", "vllm")
            node.kubectl("-n", namespace, "rollout", "status", "deployment", "vllm", "--timeout=240s")
            # The old pods are gone when the last of their streams has ended.
            after = workloads.wait_ready(node, namespace, "vllm", 2)
            pod_names.update(pod["metadata"]["name"] for pod in [*before, *after])
            return after

        clients = ServiceClients(node, namespace, "vllm", tokens=10)
        roll_under_load = lambda: clients.send_while(roll)  # noqa: E731
        results, new_requests = while_streaming(before, roll_under_load, STREAMS, tokens=400)
        assert not results.cut, f"{len(results.cut)} of {STREAMS} streams were cut"
        assert not new_requests.cut, f"{len(new_requests.cut)} new requests failed, {len(new_requests.complete)} did not: {new_requests.cut[0][:300]}"
        assert len(pod_names) == 4, f"not every pod was replaced: {pod_names}"
        results.complete += new_requests.complete
        _check_recorded(receiver, results, *pod_names)
        print(f"    {STREAMS} streams of 16 s and {len(new_requests.complete)} new ones over {len(pod_names)} pods")
