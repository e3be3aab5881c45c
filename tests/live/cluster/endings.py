"""Pods that end with open streams: streams that fit into the grace period are completed, and all of them are recorded."""

import time

import names
from process import until

from cluster import release, workloads
from cluster.receiver import Receiver, tokens
from cluster.rig import cluster
from cluster.streams import Askers, while_streaming

STREAMS = 50


def _all_recorded(receiver, seen, *pods):
    """Checks that the receiver has each request that clients saw end well, once, and each token."""
    expected = len(seen.whole)
    until(lambda: receiver.outcomes(*pods)[names.OK] >= expected, lambda: f"{expected} good requests: {receiver.outcomes(*pods)}", 120)
    assert receiver.outcomes(*pods)[names.OK] == expected, receiver.outcomes(*pods)
    until(lambda: receiver.counted(names.OTLP_EXCHANGES, *pods) >= expected, lambda: f"counters of {expected}: {receiver.counted(names.OTLP_EXCHANGES, *pods)}", 120)
    got = sum(tokens(answer) for answer in seen.whole)
    assert receiver.counted(names.OTLP_OUTPUT_TOKENS, *pods) >= got, (receiver.counted(names.OTLP_OUTPUT_TOKENS, *pods), got)


def deleting_a_pod_under_fifty_streams_loses_none_and_records_all():
    node = cluster()
    with Receiver() as receiver, node.namespace("deleted") as namespace, release.installed(node, namespace, {"sidecar": receiver.sidecar()}):
        node.api.make(workloads.pod("engine", workloads.server(rate=20)), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")

        def delete():
            began = time.monotonic()
            node.kubectl("-n", namespace, "delete", "pod", "engine", "--timeout=300s", seconds=320)
            return time.monotonic() - began

        seen, took = while_streaming([pod], delete, STREAMS, tokens=300)
        assert len(seen.whole) == STREAMS, f"{len(seen.cut)} streams were cut, the first after {len(seen.cut[0])} bytes"
        assert all(tokens(answer) == 300 for answer in seen.whole)
        _all_recorded(receiver, seen, "engine")
        assert receiver.outcomes("engine") == {names.OK: STREAMS}
        assert receiver.counted(names.OTLP_OUTPUT_TOKENS, "engine") == 300 * STREAMS
        # Its grace period is 330 s; it exits when its streams end.
        print(f"    {STREAMS} streams of 15 s, the pod was gone {took:.0f} s after it was deleted")
        assert took < 120, f"it took {took:.0f} s"


def streams_longer_than_the_grace_period_are_cut_and_recorded():
    node = cluster()
    with Receiver() as receiver, node.namespace("cut") as namespace:
        sidecar = receiver.sidecar(drain={"enabled": True, "timeoutSeconds": 8})
        with release.installed(node, namespace, {"sidecar": sidecar}):
            node.api.make(workloads.pod("engine", workloads.server(rate=5)), namespace)
            [pod] = workloads.wait_ready(node, namespace, "engine")
            assert pod["spec"]["terminationGracePeriodSeconds"] == 38, pod["spec"]
            seen, _ = while_streaming([pod], lambda: node.kubectl("-n", namespace, "delete", "pod", "engine", "--timeout=300s", seconds=320), STREAMS, tokens=2000)
            assert len(seen.cut) == STREAMS and all(answer.count(b"data: {") > 20 for answer in seen.cut), f"{len(seen.whole)} were completed"
            until(lambda: receiver.outcomes("engine").total() >= STREAMS, lambda: f"{STREAMS} requests: {receiver.outcomes('engine')}", 120)
            recorded = receiver.outcomes("engine")
            assert recorded.total() == STREAMS and names.OK not in recorded, recorded
            until(lambda: receiver.counted(names.OTLP_EXCHANGES, "engine") == STREAMS, lambda: f"{receiver.counted(names.OTLP_EXCHANGES, 'engine')} counted", 120)
            print(f"    {dict(recorded)}")


def a_rolling_update_under_load_loses_no_request_and_records_all():
    node = cluster()
    with Receiver() as receiver, node.namespace("rolling") as namespace, release.installed(node, namespace, {"sidecar": receiver.sidecar()}):
        node.api.make(workloads.service("vllm"), namespace)
        node.api.make(workloads.deployment("vllm", workloads.server(rate=25), replicas=2), namespace)
        before = workloads.wait_ready(node, namespace, "vllm", 2)
        every = set()

        def roll():
            node.kubectl("-n", namespace, "rollout", "restart", "deployment", "vllm")
            node.kubectl("-n", namespace, "rollout", "status", "deployment", "vllm", "--timeout=240s")
            # The old pods are gone when the last of their streams has ended.
            after = workloads.wait_ready(node, namespace, "vllm", 2)
            every.update(pod["metadata"]["name"] for pod in [*before, *after])
            return after

        askers = Askers(node, namespace, "vllm", tokens=10)
        both = lambda: askers.ask_while(roll)  # noqa: E731
        seen, asked = while_streaming(before, both, STREAMS, tokens=400)
        assert not seen.cut, f"{len(seen.cut)} of {STREAMS} streams were cut"
        assert not asked.cut, f"{len(asked.cut)} new requests failed, {len(asked.whole)} did not: {asked.cut[0][:300]}"
        assert len(every) == 4, f"not every pod was replaced: {every}"
        seen.whole += asked.whole
        _all_recorded(receiver, seen, *every)
        print(f"    {STREAMS} streams of 16 s and {len(asked.whole)} new ones over {len(every)} pods")
