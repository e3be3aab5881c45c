"""What an injection must not change: who can reach the engine, and when the kubelet restarts it."""

import socket
import time

import names
from process import get, until

from cluster import attach, release, workloads
from cluster.images import VLLM
from cluster.rig import cluster

PROXY = 4180
# Ports that the engine or tokometer may open in some mode.
PORTS = (8000, 8001, 15080)
LIVENESS = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5}
STARTUP = LIVENESS | {"periodSeconds": 1, "failureThreshold": 120}
# Seconds for which the kubelet may find a failed container later than in another pod.
JITTER = 5


def _connects(pod, port):
    try:
        socket.create_connection((workloads.address(pod), port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def engine_behind_a_proxy_stays_unreachable_from_other_pods():
    node = cluster()
    engine = workloads.server("--host", "127.0.0.1")
    del engine["readinessProbe"]
    proxy = {"name": "proxy", "image": VLLM, "command": ["/vllm", "proxy", f"--port={PROXY}", "--vllm-port=8000"]}
    proxy |= {"ports": [{"containerPort": PROXY}], "readinessProbe": {"httpGet": {"path": "/health", "port": PROXY}, "periodSeconds": 1}}
    # A socket can be opened by its user only.
    user = {"securityContext": {"runAsUser": 65532}}
    with node.namespace("exposure") as namespace:
        plain = workloads.pod("plain", engine, proxy, labels={}, **user)
        pods = {"plain": plain}
        for mode in (mode for mode in attach.MODES if mode != "tap"):
            injected = attach._inject(mode, workloads.pod(mode, engine, proxy, labels={}, **user))
            assert (injected is None) == (mode not in ("port-swap", "uds")), mode
            if injected:
                pods[mode] = injected
        for pod in pods.values():
            node.api.create(pod, namespace)
        for name in pods:
            [pod] = workloads.wait_ready(node, namespace, name)
            assert [port for port in PORTS if _connects(pod, port)] == [], f"{name}: reachable without the proxy"
            workloads.check_response(pod, port=PROXY)
            if name != "plain":
                workloads.wait_metric_value(pod, 1, names.REQUESTS)
    print(f"    {', '.join(pods)}")


def _restarted_after(node, namespace, pod, action):
    """Seconds from an action until the engine's container has restarted."""
    before = workloads.status(pod, "vllm")["restartCount"]
    began = time.monotonic()
    action()
    now = lambda: node.api.get("Pod", namespace, pod["metadata"]["name"])  # noqa: E731
    until(lambda: workloads.status(now(), "vllm")["restartCount"] > before, "the engine restarts", 420)
    return time.monotonic() - began


def frozen_engine_restarts_as_fast_as_without_the_sidecar():
    node = cluster()
    engine = workloads.server(livenessProbe=LIVENESS, startupProbe=STARTUP)
    with node.namespace("frozen-engine") as namespace:
        manifests = {"plain": workloads.pod("plain", engine, labels={}, terminationGracePeriodSeconds=15)}
        for mode in ("auto", "port-swap"):
            manifests[mode] = attach._inject(mode, workloads.pod(mode, engine, labels={}, terminationGracePeriodSeconds=15))
            assert manifests[mode]["spec"]["terminationGracePeriodSeconds"] == 330
        took = {}
        for name, manifest in manifests.items():
            node.api.create(manifest, namespace)
            [pod] = workloads.wait_ready(node, namespace, name)
            took[name] = _restarted_after(node, namespace, pod, lambda pod=pod: node.kill_container(pod, "vllm", "SIGSTOP"))
            node.api.delete("Pod", namespace, name, gracePeriodSeconds=0)
        print("    " + ", ".join(f"{name}: {seconds:.0f} s" for name, seconds in took.items()))
        # One probe period, and the time that a preStop hook takes.
        assert max(took.values()) < took["plain"] + LIVENESS["periodSeconds"] + JITTER, took


def frozen_sidecar_restarts_before_the_engine_does():
    node = cluster()
    with node.namespace("frozen-sidecar") as namespace:
        engine = workloads.server(livenessProbe=LIVENESS, startupProbe=STARTUP)
        node.api.create(attach._inject("auto", workloads.pod("engine", engine, labels={})), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        began = time.monotonic()
        node.kill_container(pod, "tokometer", "SIGSTOP")
        until(lambda: get(f"http://{workloads.address(pod)}:{workloads.PORT}/health", timeout=1)[0] != 200, "the sidecar is frozen", 10)
        after = workloads.wait_restarted(node, namespace, pod, "tokometer")
        took = time.monotonic() - began
        print(f"    the engine was unreachable for {took:.0f} s")
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        assert took < 20, took


def crash_looping_sidecar_does_not_restart_an_engine_on_its_own_port():
    node = cluster()
    with node.namespace("crash-loop") as namespace:
        engine = workloads.server(livenessProbe=LIVENESS, startupProbe=STARTUP)
        node.api.create(attach._inject("port-swap", workloads.pod("engine", engine, labels={})), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        now = lambda: node.api.get("Pod", namespace, "engine")  # noqa: E731
        for count in range(1, 4):
            node.kill_container(now(), "tokometer")
            until(lambda count=count: workloads.status(now(), "tokometer")["restartCount"] >= count and "running" in workloads.status(now(), "tokometer")["state"], "the sidecar restarts", 120)
        assert workloads.status(now(), "vllm")["restartCount"] == 0, now()["status"]
        workloads.wait_restarted(node, namespace, pod, "tokometer", 3)


def pods_with_resources_of_their_own_and_limit_ranges_are_accepted():
    node = cluster()
    limits = {"type": "Container", "min": {"cpu": "50m", "memory": "64Mi"}, "maxLimitRequestRatio": {"cpu": "3", "memory": "2"}}
    shared = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
    with node.namespace("limits") as namespace, release.installed(node, namespace):
        whole = workloads.pod("whole", workloads.server(resources=shared), resources=shared)
        assert workloads.has_sidecar(node.api.create(whole, namespace, dry_run=True).object)
        assert workloads.has_sidecar(node.api.create(attach._inject("auto", whole), namespace, dry_run=True).object)
        node.api.request("POST", f"/api/v1/namespaces/{namespace}/limitranges", {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [limits]}})
        resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "250m", "memory": "256Mi"}}
        part = workloads.pod("part", workloads.server(resources=resources))
        node.api.create(part, namespace)
        [pod] = workloads.wait_ready(node, namespace, "part")
        assert workloads.has_sidecar(pod), pod["spec"]
        workloads.check_response(pod)
