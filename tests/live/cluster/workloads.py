"""Workloads of the cluster's users: inference servers in Pods, Deployments and StatefulSets, as their manifests define them."""

import asyncio

from process import get, metrics, total, until
from stream import complete, whole

from cluster.images import VLLM

PORT, ADMIN = 8000, 9464
LABEL = {"tokometer/inject": "true"}
# Allowed by every Pod Security level.
RESTRICTED = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
# The container's own health endpoint, probed by the kubelet at the pod's address.
READINESS = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1, "timeoutSeconds": 5}


def server(*flags, rate=200, **more):
    """The container of a server invoked like vLLM, with `rate` tokens per second; flags are those of the simulator."""
    made = {"name": "vllm", "image": VLLM, "args": ["serve", "sim", "--rate", str(rate), "--ttft-ms", "20", *flags]}
    return made | {"ports": [{"containerPort": PORT, "name": "http"}], "readinessProbe": READINESS} | more


def pod(name, *containers, labels=LABEL, **spec):
    metadata = {"name": name, "labels": {"app": name, **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers) or [server()], **spec}}


def deployment(name, *containers, replicas=1, **how):
    return _workload("Deployment", name, replicas, pod(name, *containers, **how))


def stateful_set(name, *containers, replicas=1, **how):
    made = _workload("StatefulSet", name, replicas, pod(name, *containers, **how))
    made["spec"]["serviceName"] = name
    return made


def _workload(kind, name, replicas, made):
    template = {"metadata": {"labels": made["metadata"]["labels"]}, "spec": made["spec"]}
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
    every = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    return next((one for one in every if one["name"] == container), {})


def wait_ready(cluster, namespace, app, count=1, seconds=240):
    """The pods of an app, once exactly this many exist and all are ready."""

    def as_wanted(found):
        mine = [one for one in found.values() if one["metadata"]["labels"].get("app") == app]
        return mine if len(mine) == count and all(map(ready, mine)) else None

    states = lambda found: {name: one["status"].get("conditions") for name, one in found.items()}  # noqa: E731
    return cluster.api.wait("Pod", namespace, as_wanted, lambda found: f"{count} pods of {app} ready: {states(found)}", seconds)


def wait_restarted(cluster, namespace, pod, container, count=1, seconds=240):
    """The pod, once its container has restarted this many times, and the whole pod is ready and responds."""
    name = pod["metadata"]["name"]

    def again(found):
        now = status(found[name], container)
        return found[name] if now.get("restartCount", 0) >= count and now.get("started") and ready(found[name]) else None

    states = lambda found: {one["name"]: one for one in found[name]["status"].get("containerStatuses", [])}  # noqa: E731
    after = cluster.api.wait("Pod", namespace, again, lambda found: f"{container} of {name} has restarted: {states(found)}", seconds)
    # The kubelet reports a restarted sidecar as running shortly before its probe succeeds.
    until(lambda: get(f"http://{address(after)}:{PORT}/health")[0] == 200, f"{name} responds again", seconds)
    return after


def address(pod):
    return pod["status"]["podIP"]


def has_sidecar(pod):
    return any(c["name"] == "tokometer" and c.get("restartPolicy") == "Always" for c in pod["spec"].get("initContainers", []))


def admin(pod, page="metrics"):
    return f"http://{address(pod)}:{ADMIN}/{page}"


def figure(pod, name, **labels):
    """The current value of a metric of a pod's sidecar."""
    return total(metrics(admin(pod)), name, **labels)


def wait_figure(pod, expected, name, **labels):
    """Waits: the relay records a request shortly after the client has the complete response."""
    until(lambda: figure(pod, name, **labels) >= expected, lambda: f"{name}{labels or ''} is {figure(pod, name, **labels)}, not {expected}", 60)
    assert figure(pod, name, **labels) == expected, (name, labels, figure(pod, name, **labels))


def answers(pod, port=PORT, **request):
    """One streamed chat with the pod, to its end."""
    answer = asyncio.run(asyncio.wait_for(whole(port, host=address(pod), **request), 60))
    assert complete(answer), f"{pod['metadata']['name']} responds {answer[:300]}"
    return answer
