"""Adding the sidecar to pods with the guide's commands, the policy and `tokometer inject`; and pods that do not get it."""

import json
import re
import subprocess
import tempfile

import names
import shapes
import yaml
from helm_chart import ROOT
from process import BINARY, metrics, total, until

from cluster import release, workloads
from cluster.api import Refused
from cluster.images import TOKOMETER
from cluster.rig import cluster
from cluster.shell import Shell

# The annotation with the reason why the policy left a pod unchanged.
SKIPPED = "tokometer/skipped"
MODES = ("address-split", "uds", "shadow-bind", "port-swap", "redirect", "explicit", "tap")


def guide_commands_attach_a_deployment_and_remove_the_chart():
    node = cluster()
    commands = _guide_commands("guide")
    with node.namespace("guide") as namespace, tempfile.TemporaryDirectory() as directory, Shell(node, namespace, directory, log=True) as shell:
        node.api.create(workloads.deployment("vllm", labels={}), namespace)
        [before] = workloads.wait_ready(node, namespace, "vllm")
        assert not workloads.has_sidecar(before)
        try:
            shell.check_run(commands["helm install"], "STATUS: deployed")
            shell.check_run(commands["run try"], "name: tokometer")
            shell.check_run(commands["patch"], "patched")
            shell.check_run(commands["rollout status"], "successfully rolled out")
            [pod] = workloads.wait_ready(node, namespace, "vllm")
            assert workloads.has_sidecar(pod), pod["spec"]
            name, ip = pod["metadata"]["name"], workloads.address(pod)
            shown = shell.check_run(commands["get pods"], name)
            assert re.search(rf"^{name} +{re.escape(ip)} +tokometer$", shown, re.M), shown
            shell.check_run(commands["exec"].replace("POD", name).replace("IP", ip), "No check failed")
            shell.check_run(commands["port-forward"])
            shown = shell.check_run(commands["grep"], 'outcome="ok"')
            assert total(_metrics_or_empty("http://localhost:9464/metrics"), names.REQUESTS, outcome=names.OK) >= 20, shown
        finally:
            node.run("helm", "uninstall", "tokometer", "--namespace", "observability", "--wait")
        # Without the policy, new pods must not get the sidecar.
        until(lambda: not workloads.has_sidecar(release.dry_run(node, namespace)), "the API server has removed the policy", 120)
        shell.check_run("kubectl rollout restart deployment vllm", "restarted")
        shell.check_run(commands["rollout status"], "successfully rolled out")
        [after] = workloads.wait_ready(node, namespace, "vllm")
        assert not workloads.has_sidecar(after), after["spec"]


def _guide_commands(namespace):
    """The commands of docs/how-to/kubernetes.md that need a cluster, as written, for this namespace and a registry on the node."""
    section = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text().split("\n## ")[1]
    lines = [line.strip().replace("REGISTRY", "localhost").replace("NAMESPACE", namespace) for line in section.splitlines()]
    found = {}
    for words in ("helm install", "run try", "patch", "rollout status", "get pods", "exec", "port-forward", "grep"):
        [line] = [line for line in lines if line.startswith(("helm ", "kubectl ", "until ", "curl ")) and f" {words} " in f" {line} " and ("until " in line) == (words == "run try")]
        found[words] = line
    return found


def _metrics_or_empty(url):
    try:
        return metrics(url)
    except AssertionError:
        return {}


def _comparable_spec(response):
    """A pod's specification without irrelevant differences: the random name of the volume with the service account token, and the
    order of the volumes, which depends on the order of admission."""
    spec = json.loads(re.sub(r"kube-api-access-\w{5}\b", "kube-api-access", json.dumps(response.object["spec"])))
    by_name = lambda item: item["name"]  # noqa: E731
    spec["volumes"] = sorted(spec.get("volumes", []), key=by_name)
    for container in spec.get("initContainers", []) + spec["containers"]:
        container["volumeMounts"] = sorted(container.get("volumeMounts", []), key=by_name)
    return spec


def _in_namespace(namespace, pod, **labels):
    return pod | {"metadata": pod["metadata"] | {"namespace": namespace, "labels": {**(pod["metadata"].get("labels") or {}), **labels}}}


def policy_and_inject_create_equal_pods():
    node = cluster()
    label = "tokometer/mode"
    with node.namespace("differential") as namespace:
        mode_targets = [{"name": mode, "objectSelector": {"matchLabels": {label: mode}}, "sidecar": {"mode": mode}} for mode in MODES]
        with release.installed(node, namespace, {"targets": [release.target(namespace), *mode_targets]}):
            compared = 0
            for mode in MODES:
                known = lambda: workloads.has_sidecar(release.dry_run(node, namespace, {label: mode}))  # noqa: E731
                until(known, f"the API server knows the policy of {mode}", 120)
                for name, shape in shapes.pods_with_sidecar().items():
                    manifest = _in_namespace(namespace, shape | {"metadata": {"name": "p", "labels": {label: mode}}})
                    by_policy = node.api.create(manifest, namespace, dry_run=True)
                    injected = _inject(mode, manifest)
                    if injected is None:
                        assert not workloads.has_sidecar(by_policy.object), f"{mode}: {name}: only the policy accepts it"
                        continue
                    # The policy also processes the injected pod, and does not change it.
                    from_inject, from_policy = _comparable_spec(node.api.create(injected, namespace, dry_run=True)), _comparable_spec(by_policy)
                    assert from_inject == from_policy, f"{mode}: {name}:\n{shapes.difference(from_inject, from_policy)}"
                    compared += 1
            assert compared >= 100, compared
            print(f"    {compared} pods in {len(MODES)} modes")


def _inject(mode, pod, container="vllm", ports=(8000,), tls="", engine="vllm"):
    """The result of `tokometer inject`; None if it changes nothing."""
    argv = [BINARY, "inject", "--image", TOKOMETER, "--mode", mode, "--engine", engine, "--container", container, *(f"--port={port}" for port in ports)]
    argv += [f"--tls-secret={tls}"] if tls else []
    argv += ["--redirect-image", TOKOMETER.replace("tokometer:", "tokometer-redirect:")]
    done = subprocess.run(argv, input=json.dumps(pod), capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else None


def engine_started_by_a_shell_is_measured():
    """The sidecar is added by the policy and by `inject`. An engine that listens on every address would occupy the sidecar's port."""
    node = cluster()
    flags = "--rate 200 --ttft-ms 20"
    texts = {
        "exec": (f"set -e\nexec /vllm serve sim {flags} --port 8000", "exec /vllm serve --host=127.0.0.1 sim"),
        "eval": (f'eval "exec /vllm serve \\\n  sim \\\n  --host 0.0.0.0 \\\n  {flags} \\\n  ${{MORE_ARGS}} $@"', "exec /vllm serve --host=127.0.0.1 \\"),
        "variable": (f"if true; then /vllm serve ${{MODEL:-sim}} --host=${{ADDRESS:-0.0.0.0}} {flags}; fi", "/vllm serve --host=127.0.0.1 ${MODEL"),
    }

    def create_pod(method, name, text):
        engine = shapes.without(workloads.server(command=["/bin/bash", "-c", text, "--"]), "args")
        manifest = workloads.pod(f"{name}-{method}", engine, labels=workloads.LABEL if method == "policy" else {})
        return manifest if method == "policy" else _inject("auto", manifest)

    with node.namespace("shells") as namespace, release.installed(node, namespace):
        created = [create_pod(method, name, text) for method in ("policy", "inject") for name, (text, _) in texts.items()]
        pods = {pod["metadata"]["name"]: pod for pod in created}
        for pod in pods.values():
            node.api.create(pod, namespace)
        for app in pods:
            [pod] = workloads.wait_ready(node, namespace, app)
            [engine] = pod["spec"]["containers"]
            assert texts[app.partition("-")[0]][1] in engine["command"][2], engine
            workloads.check_response(pod)
            _check_sidecar(pod)


def policy_and_inject_create_equal_platform_pods():
    """The table of tests/it/inject/fleet.rs; one target for each of its settings."""
    node = cluster()
    table = yaml.safe_load((ROOT / "tests" / "fixtures" / "inject" / "fleet.yaml").read_text())
    settings = []
    for case in table:
        ports = case.get("ports", [8000])
        case["sidecar"] = {"engine": case.get("engine", "vllm"), "container": case["container"], "mode": case.get("mode", "auto"), "port": ports[0], "extraPorts": ports[1:], "tlsSecret": case.get("tlsSecret", "")}
        if case["sidecar"] not in settings:
            settings.append(case["sidecar"])
    label = "tokometer/case"
    targets = [{"name": f"case-{n}", "objectSelector": {"matchLabels": {label: str(n)}}, "sidecar": sidecar} for n, sidecar in enumerate(settings)]
    with node.namespace("fleet") as namespace, release.installed(node, namespace, {"targets": [release.target(namespace), *targets]}):
        for n in range(len(settings)):
            manifest = _in_namespace(namespace, shapes.pod(labels={label: str(n)}))
            known = lambda manifest=manifest: node.api.create(manifest, namespace, dry_run=True).object  # noqa: E731
            until(lambda known=known: workloads.has_sidecar(known()) or SKIPPED in known()["metadata"].get("annotations", {}), f"the API server knows the policy {n}", 120)
        for case in table:
            labels = {label: str(settings.index(case["sidecar"]))}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": case["spec"]}
            manifest = _in_namespace(namespace, pod)
            by_policy = node.api.create(manifest, namespace, dry_run=True)
            reason = by_policy.object["metadata"].get("annotations", {}).get(SKIPPED, "")
            if "refused" in case:
                assert case["refused"] in reason and not workloads.has_sidecar(by_policy.object), f"{case['name']}: {reason or 'no reason'}"
                continue
            assert workloads.has_sidecar(by_policy.object), f"{case['name']}: {reason}"
            injected = _inject(case["sidecar"]["mode"], manifest, case["container"], [case["sidecar"]["port"], *case["sidecar"]["extraPorts"]], case["sidecar"]["tlsSecret"], case["sidecar"]["engine"])
            from_inject, from_policy = _comparable_spec(node.api.create(injected, namespace, dry_run=True)), _comparable_spec(by_policy)
            assert from_inject == from_policy, f"{case['name']}:\n{shapes.difference(from_inject, from_policy)}"
        print(f"    {len(table)} pods, {len(settings)} targets")


def cpu_quota_admits_pods_with_the_sidecar():
    node = cluster()
    resources = {"cpu": "1", "memory": "64Mi"}
    manifest = workloads.pod("engine", workloads.server(resources={"limits": resources, "requests": {"cpu": "100m", "memory": "64Mi"}}))
    with node.namespace("quota") as namespace, release.installed(node, namespace):
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpu"}, "spec": {"hard": {"limits.cpu": "2"}}}
        node.run("kubectl", "-n", namespace, "apply", "-f", "-", stdin=json.dumps(quota))

        def refused():
            try:
                node.api.create(workloads.pod("unlimited"), namespace, dry_run=True)
            except Refused as error:
                return "must specify limits.cpu" in str(error)
            return False

        until(refused, "the quota rejects a pod without CPU limits", 120)
        admitted = node.api.create(manifest, namespace, dry_run=True).object
        assert workloads.has_sidecar(admitted) and admitted["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] == "500m", admitted["spec"]


def injected_pod_is_not_injected_again():
    node = cluster()
    with node.namespace("again-injected") as namespace, release.installed(node, namespace):
        for name, shape in shapes.pods_with_sidecar().items():
            first = node.api.create(_in_namespace(namespace, shape), namespace, dry_run=True)
            assert workloads.has_sidecar(first.object), name
            again = node.api.create(_in_namespace(namespace, shape) | {"spec": first.object["spec"]}, namespace, dry_run=True)
            first_spec, again_spec = _comparable_spec(first), _comparable_spec(again)
            assert again_spec == first_spec, f"{name}:\n{shapes.difference(again_spec, first_spec)}"


def every_kind_of_workload_is_measured():
    node = cluster()
    resources = {"cpu": "100m", "memory": "128Mi"}
    fetch = {"name": "fetch", "image": TOKOMETER, "args": ["--version"]}
    with node.namespace("ways") as namespace, release.installed(node, namespace):
        manifests = {
            "deployment": workloads.deployment("deployment", replicas=2),
            "stateful": workloads.stateful_set("stateful", initContainers=[fetch]),
            "bare": workloads.pod("bare", initContainers=[fetch]),
            "command": workloads.pod("command", shapes.without(workloads.server(command=["/vllm", "serve", "sim"]), "args")),
            "guaranteed": workloads.pod("guaranteed", workloads.server(resources={"limits": resources, "requests": resources})),
            "restricted": workloads.pod("restricted", workloads.server(securityContext=workloads.RESTRICTED)),
            "plain": workloads.pod("plain", labels={}),
        }
        for manifest in manifests.values():
            node.api.create(manifest, namespace)
        for app, manifest in manifests.items():
            pods = workloads.wait_ready(node, namespace, app, manifest["spec"].get("replicas", 1))
            for pod in pods:
                workloads.check_response(pod)
                assert workloads.has_sidecar(pod) == (app != "plain"), f"{app}: {pod['spec']}"
                if app != "plain":
                    _check_sidecar(pod)
            assert pods[0]["status"]["qosClass"] == {"guaranteed": "Guaranteed", "plain": "BestEffort"}.get(app, "Burstable"), pods[0]["status"]


def _check_sidecar(pod):
    """The sidecar started first, counted the chat, and did not restart."""
    name = pod["metadata"]["name"]
    assert pod["spec"]["initContainers"][0]["name"] == "tokometer", name
    workloads.wait_metric_value(pod, 1, names.REQUESTS)
    for container in ("tokometer", "vllm"):
        assert workloads.status(pod, container)["restartCount"] == 0, f"{name}: {container} was restarted"


def restricted_namespace_accepts_the_sidecar():
    node = cluster()
    manifest = workloads.pod("engine", workloads.server(securityContext=workloads.RESTRICTED))
    with node.namespace("restricted", {"pod-security.kubernetes.io/enforce": "restricted"}) as namespace, release.installed(node, namespace, sample_pod=manifest):
        try:
            node.api.create(workloads.pod("root"), namespace, dry_run=True)
            raise AssertionError("the namespace accepts any pod")
        except Refused as refused:
            assert "PodSecurity" in str(refused), refused
        node.api.create(manifest, namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        workloads.check_response(pod)
        _check_sidecar(pod)


def unselected_and_refused_pods_are_unchanged_with_a_warning():
    node = cluster()
    with node.namespace("selected") as namespace, node.namespace("unselected") as unselected:
        # The target also selects kube-system, which the chart excludes by default.
        target = {"name": "default", "objectSelector": {"matchLabels": workloads.LABEL}, "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace, "kube-system"]}]}}
        with release.installed(node, namespace, {"targets": [target]}):
            shell_pod = _in_namespace(namespace, shapes.pods_without_sidecar()["a shell"][0])
            until(lambda: node.api.create(shell_pod, namespace, dry_run=True).warnings, "the API server knows the warning policy", 120)
            for name, (shape, word) in shapes.pods_without_sidecar().items():
                pod_namespace = shape["metadata"]["namespace"].replace("llm", namespace)
                response = node.api.create(_in_namespace(pod_namespace, shape), pod_namespace, dry_run=True)
                before = [c["name"] for c in shape["spec"].get("initContainers", [])]
                assert [c["name"] for c in response.object["spec"].get("initContainers", [])] == before, f"{name}: {response.object['spec']}"
                warned = "; ".join(response.warnings)
                assert (word in warned) if word else "tokometer" not in warned, f"{name}: {warned or 'no warning'}"
                reason = response.object["metadata"].get("annotations", {}).get("tokometer/skipped", "")
                assert (word in reason) if word else reason == "", f"{name}: {reason or 'no reason on the pod'}"
            assert not workloads.has_sidecar(release.dry_run(node, unselected)), "a namespace that is not selected"
            # The user who applies a Deployment gets the warning, not only the controller that creates its pods.
            shell = shapes.container(command=["/bin/sh", "-c"], args=["start-engine model"])
            warned = node.run("kubectl", "-n", namespace, "apply", "-f", "-", stdin=json.dumps(workloads.deployment("shell", shell, replicas=0))).stderr
            assert "Warning:" in warned and "without a shell" in warned, warned


def failing_policy_with_failure_policy_ignore_admits_the_pod_unchanged():
    node = cluster()
    with node.namespace("failing") as namespace, release.installed(node, namespace, {"policy": {"failurePolicy": "Fail"}}):
        [policy] = [item for item in node.api.get("MutatingAdmissionPolicy") if item["metadata"]["name"].endswith(f".{namespace}")]
        name, variables = policy["metadata"]["name"], policy["spec"]["variables"]
        # A variable whose expression fails only when it is evaluated for a pod.
        broken = [v | {"expression": 'object.metadata.annotations["nobody/has"].split(",").map(a, a)'} if v["name"] == "args" else v for v in variables]
        node.api.patch("MutatingAdmissionPolicy", None, name, {"spec": {"variables": broken}})

        def refused():
            try:
                release.dry_run(node, namespace)
            except Refused as error:
                return "args" in str(error) or name in str(error)
            return False

        until(refused, "a failing policy rejects the pod", 120)
        node.api.patch("MutatingAdmissionPolicy", None, name, {"spec": {"failurePolicy": "Ignore"}})
        until(lambda: not refused(), "the same policy admits the pod unchanged", 120)
        node.api.create(workloads.pod("engine"), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        assert not workloads.has_sidecar(pod)
        workloads.check_response(pod)


def reinstalled_release_injects_its_own_values():
    node = cluster()
    with node.namespace("again") as namespace:
        for port in (9464, 9500):
            with release.installed(node, namespace, {"sidecar": {"adminPort": port}}):
                sidecar = release.dry_run(node, namespace)["spec"]["initContainers"][0]
                assert f"--admin=:{port}" in sidecar["args"], sidecar["args"]
            until(lambda: not workloads.has_sidecar(release.dry_run(node, namespace)), "the API server has removed the policy", 120)
