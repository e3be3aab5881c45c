"""Pods of real platforms on the node: each is ready and measured. `tests/fixtures/inject/fleet.yaml` has the pods."""

import base64
import copy
import json
import ssl
import subprocess
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path

import names
import yaml
from helm_chart import ROOT
from process import BINARY, metrics, total, until

from cluster import attach, release, workloads
from cluster.images import VLLM
from cluster.rig import cluster

LABEL = "tokometer/case"
# Cases per batch: the node has few processors.
BATCH = 8
# Seconds for which an engine loads its model.
LOAD = 3


def _cases():
    """The pods that are accepted and serve requests, except those in the mode `redirect`: the node has no image for that mode."""
    table = yaml.safe_load((ROOT / "tests" / "fixtures" / "inject" / "fleet.yaml").read_text())
    accepted = [case for case in table if "refused" not in case and case.get("serves", True) and case.get("starts", True)]
    return [case for case in accepted if case.get("mode") != "redirect"]


def _can_tap():
    return subprocess.run([BINARY, "tap", "--help"], capture_output=True).returncode == 0


def _certificate(name):
    with tempfile.TemporaryDirectory() as directory:
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=engine", "-keyout", "tls.key", "-out", "tls.crt"]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        data = {file: base64.b64encode((Path(directory) / file).read_bytes()).decode() for file in ("tls.crt", "tls.key")}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}


def _pod(name, case, labels):
    """The case's pod with the simulated engine in place of each image."""
    spec = copy.deepcopy(case["spec"])
    port, *other_ports = case.get("ports", [8000])
    [engine] = [container for container in spec["containers"] if container["name"] == case["container"]]
    ranks = [declared["containerPort"] for declared in engine.get("ports", []) if declared.get("name", "").startswith(("rank", "supervisor"))]
    other_ports = sorted({*other_ports, *ranks} - {port})
    environment = {"SIM_LOAD": str(LOAD), "SIM_PORTS": ",".join(map(str, other_ports))}
    if "huggingface" in engine["image"]:
        environment |= {"SIM_ANY_HOST": "1"}
        engine["args"].append(f"--port={port}")
    for container in spec["containers"]:
        container["image"] = VLLM
    engine["env"] = engine.get("env", []) + [{"name": key, "value": value} for key, value in environment.items()]
    engine.pop("resources", None)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "httpGet" in engine.get(probe, {}) and engine[probe]["httpGet"]["path"] == "/readyz":
            engine[probe]["httpGet"]["path"] = "/health"
    # The manifest's own probe decides readiness; the startup probe waits while the engine loads.
    engine.setdefault("readinessProbe", {"tcpSocket": {"port": port}})
    engine["readinessProbe"] |= {"periodSeconds": 1, "initialDelaySeconds": 0, "timeoutSeconds": 5}
    engine["startupProbe"] = engine["readinessProbe"] | {"failureThreshold": 180}
    for proxy in spec.get("initContainers", []):
        proxy |= {"image": VLLM, "command": ["/vllm", "proxy"], "args": ["--port=8000", f"--vllm-port={port}"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name, **labels}}, "spec": spec}


def _check_requests(pod, case):
    """Sends one chat to each port of the pod, as its clients do; returns the number of ports."""
    spec = case["spec"]
    ports = [8000] if "initContainers" in spec else case.get("ports", [8000])
    scheme = "https" if "volumes" in spec else "http"

    def fetch(port, page, body=None):
        request = urllib.request.Request(f"{scheme}://{workloads.address(pod)}:{port}/v1/{page}", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60, context=ssl._create_unverified_context()) as response:
            return response.read()

    for port in ports:
        model = json.loads(fetch(port, "models"))["data"][0]["id"]
        body = {"model": model, "stream": True, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
        assert b"data: [DONE]" in fetch(port, "chat/completions", json.dumps(body).encode()), f"{case['name']}: port {port}"
    return len(ports)


def _check_measured(pod, case, ports):
    """Checks that each port has its own series, with one request."""
    page = lambda: metrics(workloads.admin(pod))  # noqa: E731
    if case.get("warning") == "serves TLS":
        until(lambda: total(page(), names.DETACHED, reason="tls") > 0, f"{case['name']}: TLS that is not terminated is reported", 60)
        return

    def by_port():
        counted = Counter()
        for (name, labels), value in page().items():
            if name == names.REQUESTS and value:
                counted[dict(labels)["server_port"], dict(labels)["outcome"]] += value
        return counted

    expected = lambda counted: len(counted) == ports and all(value == 1 and outcome == names.OK for (_, outcome), value in counted.items())  # noqa: E731
    until(lambda: expected(by_port()), lambda: f"{case['name']}: one request on each of {ports} ports: {by_port()}", 60)


def pods_of_listed_platforms_are_ready_and_measured():
    node = cluster()
    cases = [case for case in _cases() if case.get("mode") != "tap" or _can_tap()]
    settings = [
        {"engine": case.get("engine", "vllm"), "container": case["container"], "mode": case.get("mode", "auto"), "port": case.get("ports", [8000])[0], "extraPorts": case.get("ports", [8000])[1:], "tlsSecret": case.get("tlsSecret", "")}
        for case in cases
    ]
    targets = [{"name": f"case-{n}", "objectSelector": {"matchLabels": {LABEL: str(n)}}, "sidecar": sidecar} for n, sidecar in enumerate(settings)]
    with node.namespace("platforms") as namespace, release.installed(node, namespace, {"targets": [release.target(namespace), *targets]}):
        secrets = {volume["secret"]["secretName"] for case in cases for volume in case["spec"].get("volumes", [])}
        for secret in secrets:
            node.api.request("POST", f"/api/v1/namespaces/{namespace}/secrets", _certificate(secret))
        for start in range(0, len(cases), BATCH):
            created = []
            for n, case in list(enumerate(cases))[start : start + BATCH]:
                labels = {"llm-d.ai/role": "decode"} if "decode" in case["name"] else {}
                by_policy = _pod(f"policy-{n}", case, {LABEL: str(n), **labels})
                known = lambda pod=by_policy: workloads.has_sidecar(node.api.create(pod, namespace, dry_run=True).object)  # noqa: E731
                until(known, f"the policy accepts {case['name']}", 120)
                by_inject = attach._inject(settings[n]["mode"], _pod(f"inject-{n}", case, labels), case["container"], case.get("ports", [8000]), settings[n]["tlsSecret"], settings[n]["engine"])
                for pod in (by_policy, by_inject):
                    node.api.create(pod, namespace)
                    created.append((pod["metadata"]["name"], case))
            for app, case in created:
                [pod] = workloads.wait_ready(node, namespace, app)
                _check_measured(pod, case, _check_requests(pod, case))
                assert workloads.status(pod, case["container"])["restartCount"] == 0, f"{case['name']}: {pod['status']}"
                if "decode" in case["name"]:
                    until(lambda pod=pod: total(metrics(workloads.admin(pod)), "target_info", k8s_pod_label_llm_d_ai_role="decode") == 1, f"{case['name']}: the role", 60)
            for app, _ in created:
                node.api.delete("Pod", namespace, app, gracePeriodSeconds=0)
        print(f"    {len(cases)} pods, each by the policy and by inject")


def renewed_certificate_is_used_without_a_restart():
    node = cluster()
    with node.namespace("renewed") as namespace:
        [case] = [case for case in _cases() if case["name"] == "KServe, LLMInferenceService with TLS and its Secret"]
        secret = case["spec"]["volumes"][0]["secret"]["secretName"]
        secrets = f"/api/v1/namespaces/{namespace}/secrets"
        node.api.request("POST", secrets, _certificate(secret))
        manifest = _pod("engine", case, {})
        node.api.create(attach._inject("auto", manifest, case["container"], [8000], case["tlsSecret"]), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        presented = lambda: ssl.get_server_certificate((workloads.address(pod), workloads.PORT), timeout=10)  # noqa: E731
        old = presented()
        renewed = _certificate(secret)
        node.api.request("PUT", f"{secrets}/{secret}", renewed)
        # The kubelet updates the files within about a minute.
        until(lambda: presented() != old, "the renewed certificate is presented", 240)
        assert presented().encode().strip() == base64.b64decode(renewed["data"]["tls.crt"]).strip()
        _check_measured(pod, case, _check_requests(pod, case))
        [after] = workloads.wait_ready(node, namespace, "engine")
        assert all(workloads.status(after, name)["restartCount"] == 0 for name in ("tokometer", "main")), after["status"]


def leader_worker_set_that_cannot_be_injected_gets_a_warning():
    """Only the definition of the kind is installed; the operator is not needed."""
    node = cluster()
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "leaderworkersets.leaderworkerset.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
        "spec": {
            "group": "leaderworkerset.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "LeaderWorkerSet", "plural": "leaderworkersets", "singular": "leaderworkerset"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}],
        },
    }
    node.run("kubectl", "apply", "-f", "-", stdin=json.dumps(definition))
    node.kubectl("wait", "--for=condition=Established", "crd/leaderworkersets.leaderworkerset.x-k8s.io", "--timeout=120s")
    try:
        with node.namespace("groups") as namespace, release.installed(node, namespace):
            target = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets?dryRun=All"

            def warnings(command, leader=True):
                template = {"metadata": {"labels": workloads.LABEL}, "spec": {"containers": [{"name": "vllm", "image": VLLM, "command": ["sh", "-c", command]}]}}
                group = {"leaderTemplate": template, "workerTemplate": {"spec": {"containers": [{"name": "worker", "image": VLLM}]}}} if leader else {"workerTemplate": template}
                manifest = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "group"}, "spec": {"leaderWorkerTemplate": group}}
                return "; ".join(node.api.request("POST", target, manifest).warnings)

            until(lambda: "contains no known start command of the engine" in warnings("bash start.sh"), lambda: f"a warning: {warnings('bash start.sh') or 'none'}", 60)
            assert warnings("vllm serve m") == "", warnings("vllm serve m")
            assert "its workers get the sidecar too" in warnings("vllm serve m", leader=False), warnings("vllm serve m", leader=False)
    finally:
        node.kubectl("delete", "crd", "leaderworkersets.leaderworkerset.x-k8s.io")
