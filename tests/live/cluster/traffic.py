"""Traffic through a pod's sidecar, and its records."""

import contextlib

import names
from helm_chart import CACHE
from process import Skip, get, metrics, total, until

from cluster import release, settings, workloads
from cluster.receiver import POD_ATTRIBUTES, Receiver, tokens
from cluster.rig import cluster

MONITORING = "/apis/monitoring.coreos.com/v1"


@contextlib.contextmanager
def _prometheus_operator(node):
    """Installs the definitions of Prometheus Operator, which the chart detects by itself."""
    files = [argument for file in (CACHE / "crds").glob("monitoring.coreos.com_*.yaml") for argument in ("-f", str(file))]
    if not files:
        raise Skip("no definitions of Prometheus Operator (component crds, which needs Go)")
    # The definitions are too large for the annotation that `apply` would add.
    node.kubectl("create", *files)
    try:
        node.kubectl("wait", "--for=condition=Established", *files, "--timeout=120s")
        yield
    finally:
        node.kubectl("delete", *files)


def _port(pod, name):
    containers = pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
    [port] = [port["containerPort"] for container in containers for port in container.get("ports", []) if port.get("name") == name]
    return port


def chat_is_counted_for_podmonitor_and_otlp_receiver():
    node = cluster()
    with _prometheus_operator(node), Receiver() as receiver, node.namespace("traffic") as namespace:
        values = {"sidecar": receiver.sidecar()}
        with release.installed(node, namespace, values):
            node.api.create(workloads.deployment("vllm", workloads.server(), replicas=2), namespace)
            busy, idle = workloads.wait_ready(node, namespace, "vllm", 2)
            tokens_sent = tokens(workloads.check_response(busy, tokens=33))
            assert tokens_sent == 33, tokens_sent
            monitor = node.api.request("GET", f"{MONITORING}/namespaces/{namespace}/podmonitors/tokometer").object
            [endpoint] = monitor["spec"]["podMetricsEndpoints"]
            assert monitor["spec"]["namespaceSelector"] == {"any": True} and monitor["spec"]["selector"] == {}, monitor["spec"]
            workloads.wait_metric_value(busy, 1, names.REQUESTS)
            for pod, requests in ((busy, 1), (idle, 0)):
                page = metrics(f"http://{workloads.address(pod)}:{_port(pod, endpoint['port'])}{endpoint['path']}")
                assert total(page, names.REQUESTS) == requests, (pod["metadata"]["name"], requests)
                assert total(page, names.OUTPUT_TOKENS) == tokens_sent * requests
            name = busy["metadata"]["name"]
            until(lambda: receiver.outcomes(name), "the span of the chat", 120)
            until(lambda: receiver.counter_total(names.OTLP_REQUESTS, name), "the count of the chat", 120)
            [span] = receiver.requests()
            expected = (name, namespace, settings.NODE, busy["metadata"]["uid"])
            assert tuple(span["resource"].get(key) for key in POD_ATTRIBUTES) == expected, span["resource"]
            assert span["attributes"]["tokometer.outcome"] == names.OK, span
            assert receiver.counter_total(names.OTLP_OUTPUT_TOKENS, name) == tokens_sent


def health_checks_get_the_engine_response():
    node = cluster()
    probes = {"startupProbe": workloads.READINESS | {"failureThreshold": 120}, "livenessProbe": workloads.READINESS}
    with node.namespace("probes") as namespace, release.installed(node, namespace):
        node.api.create(workloads.pod("injected", workloads.server(**probes)), namespace)
        node.api.create(workloads.pod("plain", workloads.server(**probes), labels={}), namespace)
        [injected], [plain] = (workloads.wait_ready(node, namespace, app) for app in ("injected", "plain"))
        # The kubelet probes every second, and none of its requests is counted.
        assert workloads.metric_value(injected, names.REQUESTS) == 0, "probes are counted as requests"
        for page in ("startz", "livez", "readyz", "engine/healthz"):
            assert get(workloads.admin(injected, page))[0] == 200, page
        fetch = lambda pod, path: get(f"http://{workloads.address(pod)}:{workloads.PORT}{path}")  # noqa: E731
        for path in ("/health", "/nowhere"):
            assert fetch(injected, path) == fetch(plain, path), f"{path}: {fetch(injected, path)} through the sidecar, {fetch(plain, path)} without it"
        assert "vllm:" in fetch(injected, "/metrics")[1], "the engine's own metrics page"
        assert workloads.status(injected, "vllm")["restartCount"] == workloads.status(plain, "vllm")["restartCount"] == 0


def each_unprivileged_mode_measures_the_traffic():
    node = cluster()
    users = {"runAsUser": 65532, "runAsNonRoot": True}
    modes = {"address-split": 8000, "uds": 8000, "port-swap": 8000, "explicit": 15080}
    with node.namespace("modes") as namespace:
        targets = [{"name": mode, "objectSelector": {"matchLabels": {"app": mode}}, "sidecar": {"mode": mode}} for mode in modes]
        with release.installed(node, namespace, {"targets": [release.target(namespace), *targets]}):
            for mode in modes:
                known = lambda: workloads.has_sidecar(release.dry_run(node, namespace, {"app": mode}))  # noqa: E731
                until(known, f"the API server knows the policy of {mode}", 120)
                node.api.create(workloads.pod(mode, workloads.server(), labels={}, securityContext=users), namespace)
            for mode, port in modes.items():
                [pod] = workloads.wait_ready(node, namespace, mode)
                workloads.check_response(pod, port=port)
                workloads.wait_metric_value(pod, 1, names.REQUESTS)
                expected = {"port-swap": "other_port", "explicit": "other_port", "address-split": "address_split"}.get(mode, mode)
                reported = lambda: {dict(labels)["mode"] for (name, labels), value in metrics(workloads.admin(pod)).items() if name == names.INTERCEPTION and value == 1}  # noqa: E731
                # The sidecar checks repeatedly until the server listens.
                until(lambda: reported() == {expected}, lambda: f"{mode} is reported as {expected}; found {reported()}", 120)
