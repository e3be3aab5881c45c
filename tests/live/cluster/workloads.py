"""Workloads of the cluster's users: inference servers in Pods, Deployments and StatefulSets, as their manifests define them."""

import asyncio

from process import get, metrics, total, until
from stream import complete, send_request

from cluster.images import VLLM

PORT, ADMIN = 8000, 9464
LABEL = {"tokometer/inject": "true"}
# Allowed by every Pod Security level.
RESTRICTED = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
# The container's own health endpoint, probed by the kubelet at the pod's address.
READINESS = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 5}


def server(*flags, rate=200, **fields):
    """The container of a server invoked like vLLM, with `rate` tokens per second; flags are those of the simulator."""
    container = {"name": "vllm", "image": VLLM, "args": ["serve", "sim", "--rate", str(rate), "--ttft-ms", "20", *flags]}
    return container | {"ports": [{"containerPort": PORT, "name": "http"}], "readinessProbe": READINESS} | fields


def pod(name, *containers, labels=LABEL, **spec):
    metadata = {"name": name, "labels": {"app": name, **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers) or [server()], **spec}}


def deployment(name, *containers, replicas=1, **options):
    return _workload("Deployment", name, replicas, pod(name, *containers, **options))


def stateful_set(name, *containers, replicas=1, **options):
    manifest = _workload("StatefulSet", name, replicas, pod(name, *containers, **options))
    manifest["spec"]["serviceName"] = name
    return manifest


def _workload(kind, name, replicas, pod):
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def service(name, port=PORT):
    """Headless: this cluster has no kube-proxy, so clients read the endpoints."""
    spec = {"clusterIP": "None", "selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def condition(pod, name):
    return any(c["type"] == name and c["status"] == "True" for c in pod["status"].get("conditions", []))


def ready(pod):
    return condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]


def status(pod, container):
    """The kubelet's status of a container or sidecar; an empty dictionary if there is none yet."""
    statuses = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    return next((item for item in statuses if item["name"] == container), {})


def wait_ready(cluster, namespace, app, count=1, seconds=240):
    """The pods of an app, once exactly this many exist and all are ready."""

    def all_ready(found):
        pods = [item for item in found.values() if item["metadata"]["labels"].get("app") == app]
        return pods if len(pods) == count and all(map(ready, pods)) else None

    states = lambda found: {name: item["status"].get("conditions") for name, item in found.items()}  # noqa: E731
    return cluster.api.wait("Pod", namespace, all_ready, lambda found: f"{count} pods of {app} ready: {states(found)}", seconds)


def wait_restarted(cluster, namespace, pod, container, count=1, seconds=240):
    """The pod, once its container has restarted this many times, and the whole pod is ready and responds."""
    name = pod["metadata"]["name"]

    def restarted(found):
        now = status(found[name], container)
        return found[name] if now.get("restartCount", 0) >= count and now.get("started") and ready(found[name]) else None

    states = lambda found: {item["name"]: item for item in found[name]["status"].get("containerStatuses", [])}  # noqa: E731
    after = cluster.api.wait("Pod", namespace, restarted, lambda found: f"{container} of {name} has restarted: {states(found)}", seconds)
    # The kubelet reports a restarted sidecar as running shortly before its probe succeeds.
    until(lambda: get(f"http://{address(after)}:{PORT}/health")[0] == 200, f"{name} responds again", seconds)
    return after


def address(pod):
    return pod["status"]["podIP"]


def has_sidecar(pod):
    return any(c["name"] == "tokometer" and c.get("restartPolicy") == "Always" for c in pod["spec"].get("initContainers", []))


def admin(pod, page="metrics"):
    return f"http://{address(pod)}:{ADMIN}/{page}"


def metric_value(pod, name, **labels):
    """The current value of a metric of a pod's sidecar."""
    return total(metrics(admin(pod)), name, **labels)


def wait_metric_value(pod, expected, name, **labels):
    """Waits for the value, because the relay records a request shortly after the client has the complete response."""
    value = lambda: metric_value(pod, name, **labels)  # noqa: E731
    until(lambda: value() >= expected, lambda: f"{name}{labels or ''} is {value()}, not {expected}", 60)
    assert value() == expected, (name, labels, value())


def check_response(pod, port=PORT, **request):
    """One streamed chat with the pod, to its end."""
    response = asyncio.run(asyncio.wait_for(send_request(port, host=address(pod), **request), 60))
    assert complete(response), f"{pod['metadata']['name']} responds {response[:300]}"
    return response
