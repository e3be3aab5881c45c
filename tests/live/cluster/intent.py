"""What an injection must not change: who can reach the engine, and when the kubelet restarts it."""

import contextlib
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import names
from process import BINARY, until

from cluster import attach, platforms, release, workloads
from cluster.images import TOKOMETER, VLLM
from cluster.rig import cluster
from cluster.streams import outage_of

PROXY = 4180
# Ports that the engine or tokometer may open in some mode.
PORTS = (8000, 8001, 15080)
LIVENESS = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5}
STARTUP = LIVENESS | {"periodSeconds": 1, "failureThreshold": 120}
# As early as Kubernetes can restart a container: any failure that lasts for two seconds restarts the engine.
TIGHT = LIVENESS | {"periodSeconds": 1, "failureThreshold": 2}
# A Unix socket can be opened by its user only.
USER = {"securityContext": {"runAsUser": 65532}}
# Seconds for which the kubelet may find a failed container later than in another pod.
JITTER = 5
# Seconds for which a sidecar crashes again and again.
CRASHING = 60
# Maximum seconds for which a frozen sidecar is an outage.
FROZEN = 8


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
    with node.namespace("exposure") as namespace:
        plain = workloads.pod("plain", engine, proxy, labels={}, **USER)
        pods = {"plain": plain}
        for mode in (mode for mode in attach.MODES if mode != "tap"):
            injected = attach._inject(mode, workloads.pod(mode, engine, proxy, labels={}, **USER))
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


def _with_tls(engine):
    """The engine with a certificate from the volume `certs`; its probes use HTTPS."""
    flags = ["--ssl-certfile", "/certs/tls.crt", "--ssl-keyfile", "/certs/tls.key", "--enable-ssl-refresh"]
    probes = {name: engine[name] | {"httpGet": engine[name]["httpGet"] | {"scheme": "HTTPS"}} for name in engine if name.endswith("Probe")}
    return engine | probes | {"args": engine["args"] + flags, "volumeMounts": [{"name": "certs", "mountPath": "/certs", "readOnly": True}]}


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
    with node.namespace("frozen-engine") as namespace:
        node.api.request("POST", f"/api/v1/namespaces/{namespace}/secrets", platforms._certificate("certs"))
        engine = workloads.server(livenessProbe=LIVENESS, startupProbe=STARTUP)
        of = lambda name, engine, **spec: workloads.pod(name, engine, labels={}, terminationGracePeriodSeconds=15, **USER, **spec)  # noqa: E731
        manifests = {"plain": of("plain", engine)} | {mode: attach._inject(mode, of(mode, engine)) for mode in ("auto", "uds", "port-swap")}
        shared = engine | {"env": [{"name": "SIM_SHARED_PORT", "value": "1"}]}
        manifests["shadow-bind"] = attach._inject("shadow-bind", of("shadow-bind", shared))
        manifests["tls"] = attach._inject("auto", of("tls", _with_tls(engine), volumes=[{"name": "certs", "secret": {"secretName": "certs"}}]), tls="certs")
        for name, manifest in manifests.items():
            assert manifest["spec"]["terminationGracePeriodSeconds"] == (15 if name == "plain" else 330), name
            assert ("exec" in manifest["spec"]["containers"][0]["livenessProbe"]) == (name not in ("plain", "port-swap")), name
        for manifest in manifests.values():
            node.api.create(manifest, namespace)
        pods = {name: workloads.wait_ready(node, namespace, name)[0] for name in manifests}
        freeze = lambda pod: _restarted_after(node, namespace, pod, lambda: node.kill_container(pod, "vllm", "SIGSTOP"))  # noqa: E731
        with ThreadPoolExecutor(len(pods)) as threads:
            took = dict(zip(pods, threads.map(freeze, pods.values()), strict=True))
        plain = took.pop("plain")
        print(f"    without a sidecar: {plain:.1f} s; " + ", ".join(f"{name}: {seconds - plain:+.1f} s" for name, seconds in took.items()))
        # One probe period, and the time that a preStop hook takes.
        assert max(took.values()) < plain + LIVENESS["periodSeconds"] + JITTER, took


def frozen_sidecar_is_a_short_outage_and_does_not_restart_the_engine():
    node = cluster()
    with node.namespace("frozen-sidecar") as namespace:
        engine = workloads.server(livenessProbe=TIGHT, startupProbe=STARTUP)

        def freeze(mode):
            for number in range(3):
                name = f"{mode}-{number}"
                node.api.create(attach._inject(mode, workloads.pod(name, engine, labels={}, **USER)), namespace)
                [pod] = workloads.wait_ready(node, namespace, name)
                with outage_of(pod) as outage:
                    node.kill_container(pod, "tokometer", "SIGSTOP")
                    after = workloads.wait_restarted(node, namespace, pod, "tokometer")
                    longest, _ = outage()
                print(f"    {mode}: outage with the sidecar minus without: {longest:+.1f} s")
                assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
                assert longest < FROZEN, longest
                node.api.delete("Pod", namespace, name, gracePeriodSeconds=0)

        with ThreadPoolExecutor() as threads:
            list(threads.map(freeze, ("auto", "uds")))


def crash_looping_sidecar_does_not_restart_the_engine():
    node = cluster()
    with node.namespace("crash-loop") as namespace, contextlib.ExitStack() as stack:
        engine = workloads.server(livenessProbe=TIGHT, startupProbe=STARTUP)
        modes = ("auto", "uds", "port-swap")
        for mode in modes:
            node.api.create(attach._inject(mode, workloads.pod(mode, engine, labels={}, **USER)), namespace)
        outages = {mode: stack.enter_context(outage_of(workloads.wait_ready(node, namespace, mode)[0])) for mode in modes}
        now = lambda mode: node.api.get("Pod", namespace, mode)  # noqa: E731
        killed, end = set(), time.monotonic() + CRASHING
        while time.monotonic() < end:
            for pod in map(now, modes):
                sidecar = workloads.status(pod, "tokometer")
                if "running" in sidecar["state"] and sidecar["containerID"] not in killed:
                    node.kill_container(pod, "tokometer")
                    killed.add(sidecar["containerID"])
        for mode in modes:
            _, total = outages[mode]()
            pod = now(mode)
            restarts = workloads.status(pod, "tokometer")["restartCount"]
            print(f"    {mode}: {restarts} restarts of the sidecar; outage with the sidecar minus without: {total:+.0f} of {CRASHING} s")
            assert restarts >= 3, pod["status"]
            assert workloads.status(pod, "vllm")["restartCount"] == 0, pod["status"]


def pod_with_a_missing_sidecar_image_does_not_start_its_engine():
    node = cluster()
    with node.namespace("no-image") as namespace:
        manifest = attach._inject("auto", workloads.pod("engine", labels={}))
        manifest["spec"]["initContainers"][0] |= {"image": "localhost/tokometer:missing", "imagePullPolicy": "Never"}
        node.api.create(manifest, namespace)
        state = lambda container: workloads.status(node.api.get("Pod", namespace, "engine"), container).get("state", {}).get("waiting", {}).get("reason")  # noqa: E731
        until(lambda: state("tokometer") == "ErrImageNeverPull", lambda: f"the image is missing: {state('tokometer')}", 120)
        assert state("vllm") == "PodInitializing", state("vllm")


def running_deployment_is_injected_and_restored_with_kubectl_apply():
    """The commands of docs/how-to/attach.md, for a Deployment that was not created by `kubectl apply`: the patch is computed without
    its last applied state."""
    node = cluster()
    with node.namespace("apply") as namespace:
        engine = workloads.server(livenessProbe=LIVENESS, startupProbe=STARTUP)
        node.api.create(workloads.deployment("vllm", engine, replicas=0, labels={}), namespace)
        spec = lambda: node.api.get("Deployment", namespace, "vllm")["spec"]["template"]["spec"]  # noqa: E731
        before = spec()
        for arguments, handler in ((["--image", TOKOMETER, "--engine", "vllm"], "exec"), (["--remove"], "httpGet")):
            manifest = node.kubectl("--namespace", namespace, "get", "deployment", "vllm", "--output", "yaml")
            done = subprocess.run([BINARY, "inject", *arguments], input=manifest, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            node.kubectl("--namespace", namespace, "apply", "-f", "-", stdin=done.stdout)
            for probe in ("livenessProbe", "startupProbe"):
                found = {"exec", "httpGet"} & set(spec()["containers"][0][probe])
                assert found == {handler}, spec()
        assert spec() == before, f"{spec()} is not {before}"


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
