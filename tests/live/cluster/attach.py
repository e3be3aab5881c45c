"""How pods get the sidecar: by the guide, by the policy, by `tokometer inject`; and which pods get none."""

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


def the_commands_of_the_guide_attach_a_deployment_and_remove_the_chart_again():
    node = cluster()
    commands = _commands_of_the_guide("guide")
    with node.namespace("guide") as namespace, tempfile.TemporaryDirectory() as directory, Shell(node, namespace, directory, log=True) as shell:
        node.api.make(workloads.deployment("vllm", labels={}), namespace)
        [before] = workloads.wait_ready(node, namespace, "vllm")
        assert not workloads.has_sidecar(before)
        try:
            shell.does(commands["helm install"], "STATUS: deployed")
            shell.does(commands["run try"], "name: tokometer")
            shell.does(commands["patch"], "patched")
            shell.does(commands["rollout status"], "successfully rolled out")
            [pod] = workloads.wait_ready(node, namespace, "vllm")
            assert workloads.has_sidecar(pod), pod["spec"]
            name, ip = pod["metadata"]["name"], workloads.address(pod)
            shown = shell.does(commands["get pods"], name)
            assert re.search(rf"^{name} +{re.escape(ip)} +tokometer$", shown, re.M), shown
            shell.does(commands["exec"].replace("POD", name).replace("IP", ip), "No check failed")
            shell.does(commands["port-forward"])
            shown = shell.does(commands["grep"], 'outcome="ok"')
            assert total(_page("http://localhost:9464/metrics"), names.EXCHANGES, outcome=names.OK) >= 20, shown
        finally:
            node.run("helm", "uninstall", "tokometer", "--namespace", "observability", "--wait")
        # "without the policy new pods have no sidecar"
        until(lambda: not workloads.has_sidecar(release.tried(node, namespace)), "the API server has removed the policy", 120)
        shell.does("kubectl rollout restart deployment vllm", "restarted")
        shell.does(commands["rollout status"], "successfully rolled out")
        [after] = workloads.wait_ready(node, namespace, "vllm")
        assert not workloads.has_sidecar(after), after["spec"]


def _commands_of_the_guide(namespace):
    """The commands of docs/how-to/kubernetes.md that need a cluster, as written, for this namespace and a registry on the node."""
    section = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text().split("\n## ")[1]
    lines = [line.strip().replace("REGISTRY", "localhost").replace("NAMESPACE", namespace) for line in section.splitlines()]
    found = {}
    for words in ("helm install", "run try", "patch", "rollout status", "get pods", "exec", "port-forward", "grep"):
        [line] = [line for line in lines if line.startswith(("helm ", "kubectl ", "until ", "curl ")) and f" {words} " in f" {line} " and ("until " in line) == (words == "run try")]
        found[words] = line
    return found


def _page(url):
    try:
        return metrics(url)
    except AssertionError:
        return {}


def _as_made(answer):
    """A pod's specification without meaningless parts: the random name of the volume with its account's token, and its position
    among the other volumes, which depends on the order of admission."""
    spec = json.loads(re.sub(r"kube-api-access-\w{5}\b", "kube-api-access", json.dumps(answer.object["spec"])))
    by_name = lambda one: one["name"]  # noqa: E731
    spec["volumes"] = sorted(spec.get("volumes", []), key=by_name)
    for container in spec.get("initContainers", []) + spec["containers"]:
        container["volumeMounts"] = sorted(container.get("volumeMounts", []), key=by_name)
    return spec


def _in(namespace, pod, **labels):
    return pod | {"metadata": pod["metadata"] | {"namespace": namespace, "labels": {**(pod["metadata"].get("labels") or {}), **labels}}}


def the_policy_and_inject_make_equal_pods():
    node = cluster()
    label = "tokometer/mode"
    with node.namespace("differential") as namespace:
        of_mode = [{"name": mode, "objectSelector": {"matchLabels": {label: mode}}, "sidecar": {"mode": mode}} for mode in MODES]
        with release.installed(node, namespace, {"targets": [release.target(namespace), *of_mode]}):
            compared = 0
            for mode in MODES:
                until(lambda: workloads.has_sidecar(release.tried(node, namespace, {label: mode})), f"the API server knows the policy of {mode}", 120)
                for name, shape in shapes.taken().items():
                    given = _in(namespace, shape | {"metadata": {"name": "p", "labels": {label: mode}}})
                    by_policy = node.api.make(given, namespace, try_only=True)
                    injected = _inject(mode, given)
                    if injected is None:
                        assert not workloads.has_sidecar(by_policy.object), f"{mode}: {name}: only the policy accepts it"
                        continue
                    # It passes through the policy too, which does not change it.
                    ours, theirs = _as_made(node.api.make(injected, namespace, try_only=True)), _as_made(by_policy)
                    assert ours == theirs, f"{mode}: {name}:\n{shapes.difference(ours, theirs)}"
                    compared += 1
            assert compared >= 100, compared
            print(f"    {compared} pods in {len(MODES)} modes")


def _inject(mode, pod, container="vllm", ports=(8000,), tls=""):
    """The result of `tokometer inject`; None if it changes nothing."""
    argv = [BINARY, "inject", "--image", TOKOMETER, "--mode", mode, "--engine", "vllm", "--container", container, *(f"--port={port}" for port in ports)]
    argv += [f"--tls-secret={tls}"] if tls else []
    argv += ["--redirect-image", TOKOMETER.replace("tokometer:", "tokometer-redirect:")]
    done = subprocess.run(argv, input=json.dumps(pod), capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else None


def an_engine_started_by_a_shell_is_measured():
    """By the policy and by `inject`. An engine that listened on every address would take the port of the sidecar."""
    node = cluster()
    flags = "--rate 200 --ttft-ms 20"
    texts = {
        "exec": (f"set -e\nexec /vllm serve sim {flags} --port 8000", "exec /vllm serve --host=127.0.0.1 sim"),
        "eval": (f'eval "exec /vllm serve \\\n  sim \\\n  --host 0.0.0.0 \\\n  {flags} \\\n  ${{MORE_ARGS}} $@"', "exec /vllm serve --host=127.0.0.1 \\"),
        "variable": (f"if true; then /vllm serve ${{MODEL:-sim}} --host=${{ADDRESS:-0.0.0.0}} {flags}; fi", "/vllm serve --host=127.0.0.1 ${MODEL"),
    }

    def by(way, name, text):
        engine = shapes.without(workloads.server(command=["/bin/bash", "-c", text, "--"]), "args")
        given = workloads.pod(f"{name}-{way}", engine, labels=workloads.LABEL if way == "policy" else {})
        return given if way == "policy" else _inject("auto", given)

    with node.namespace("shells") as namespace, release.installed(node, namespace):
        made = {pod["metadata"]["name"]: pod for way in ("policy", "inject") for name, (text, _) in texts.items() for pod in [by(way, name, text)]}
        for pod in made.values():
            node.api.make(pod, namespace)
        for app in made:
            [pod] = workloads.wait_ready(node, namespace, app)
            [engine] = pod["spec"]["containers"]
            assert texts[app.partition("-")[0]][1] in engine["command"][2], engine
            workloads.answers(pod)
            _sits_in_front(pod)


def the_policy_and_inject_make_equal_pods_of_serving_platforms():
    """The table of tests/it/inject/fleet.rs; one target for each of its settings."""
    node = cluster()
    table = yaml.safe_load((ROOT / "tests" / "fixtures" / "inject" / "fleet.yaml").read_text())
    settings = []
    for case in table:
        ports = case.get("ports", [8000])
        case["sidecar"] = {"container": case["container"], "mode": case.get("mode", "auto"), "port": ports[0], "extraPorts": ports[1:], "tlsSecret": case.get("tlsSecret", "")}
        if case["sidecar"] not in settings:
            settings.append(case["sidecar"])
    label = "tokometer/case"
    targets = [{"name": f"case-{n}", "objectSelector": {"matchLabels": {label: str(n)}}, "sidecar": sidecar} for n, sidecar in enumerate(settings)]
    with node.namespace("fleet") as namespace, release.installed(node, namespace, {"targets": [release.target(namespace), *targets]}):
        for n in range(len(settings)):
            known = lambda n=n: node.api.make(_in(namespace, shapes.pod(labels={label: str(n)})), namespace, try_only=True).object  # noqa: E731
            until(lambda known=known: workloads.has_sidecar(known()) or SKIPPED in known()["metadata"].get("annotations", {}), f"the API server knows the policy {n}", 120)
        for case in table:
            labels = {label: str(settings.index(case["sidecar"]))}
            given = _in(namespace, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": case["spec"]})
            by_policy = node.api.make(given, namespace, try_only=True)
            reason = by_policy.object["metadata"].get("annotations", {}).get(SKIPPED, "")
            if "refused" in case:
                assert case["refused"] in reason and not workloads.has_sidecar(by_policy.object), f"{case['name']}: {reason or 'no reason'}"
                continue
            assert workloads.has_sidecar(by_policy.object), f"{case['name']}: {reason}"
            injected = _inject(case["sidecar"]["mode"], given, case["container"], [case["sidecar"]["port"], *case["sidecar"]["extraPorts"]], case["sidecar"]["tlsSecret"])
            ours, theirs = _as_made(node.api.make(injected, namespace, try_only=True)), _as_made(by_policy)
            assert ours == theirs, f"{case['name']}:\n{shapes.difference(ours, theirs)}"
        print(f"    {len(table)} pods, {len(settings)} targets")


def a_quota_on_cpu_limits_admits_pods_with_the_sidecar():
    node = cluster()
    few = {"cpu": "1", "memory": "64Mi"}
    given = workloads.pod("engine", workloads.server(resources={"limits": few, "requests": {"cpu": "100m", "memory": "64Mi"}}))
    with node.namespace("quota") as namespace, release.installed(node, namespace):
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cpu"}, "spec": {"hard": {"limits.cpu": "2"}}}
        node.run("kubectl", "-n", namespace, "apply", "-f", "-", stdin=json.dumps(quota))

        def refused():
            try:
                node.api.make(workloads.pod("unlimited"), namespace, try_only=True)
            except Refused as why:
                return "must specify limits.cpu" in str(why)
            return False

        until(refused, "the quota refuses a pod without CPU limits", 120)
        made = node.api.make(given, namespace, try_only=True).object
        assert workloads.has_sidecar(made) and made["spec"]["initContainers"][0]["resources"]["limits"]["cpu"] == "500m", made["spec"]


def an_injected_pod_is_not_injected_again():
    node = cluster()
    with node.namespace("again-injected") as namespace, release.installed(node, namespace):
        for name, shape in shapes.taken().items():
            first = node.api.make(_in(namespace, shape), namespace, try_only=True)
            assert workloads.has_sidecar(first.object), name
            again = node.api.make(_in(namespace, shape) | {"spec": first.object["spec"]}, namespace, try_only=True)
            assert _as_made(again) == _as_made(first), f"{name}:\n{shapes.difference(_as_made(again), _as_made(first))}"


def every_kind_of_workload_is_measured():
    node = cluster()
    few = {"cpu": "100m", "memory": "128Mi"}
    fetch = {"name": "fetch", "image": TOKOMETER, "args": ["--version"]}
    with node.namespace("ways") as namespace, release.installed(node, namespace):
        made = {
            "deployment": workloads.deployment("deployment", replicas=2),
            "stateful": workloads.stateful_set("stateful", initContainers=[fetch]),
            "bare": workloads.pod("bare", initContainers=[fetch]),
            "command": workloads.pod("command", shapes.without(workloads.server(command=["/vllm", "serve", "sim"]), "args")),
            "guaranteed": workloads.pod("guaranteed", workloads.server(resources={"limits": few, "requests": few})),
            "restricted": workloads.pod("restricted", workloads.server(securityContext=workloads.RESTRICTED)),
            "plain": workloads.pod("plain", labels={}),
        }
        for manifest in made.values():
            node.api.make(manifest, namespace)
        for app, manifest in made.items():
            pods = workloads.wait_ready(node, namespace, app, manifest["spec"].get("replicas", 1))
            for pod in pods:
                workloads.answers(pod)
                assert workloads.has_sidecar(pod) == (app != "plain"), f"{app}: {pod['spec']}"
                if app != "plain":
                    _sits_in_front(pod)
            assert pods[0]["status"]["qosClass"] == {"guaranteed": "Guaranteed", "plain": "BestEffort"}.get(app, "Burstable"), pods[0]["status"]


def _sits_in_front(pod):
    """The sidecar started first, counted the chat, and did not restart."""
    name = pod["metadata"]["name"]
    assert pod["spec"]["initContainers"][0]["name"] == "tokometer", name
    workloads.wait_figure(pod, 1, names.EXCHANGES)
    for container in ("tokometer", "vllm"):
        assert workloads.status(pod, container)["restartCount"] == 0, f"{name}: {container} was restarted"


def a_restricted_namespace_accepts_the_sidecar():
    node = cluster()
    given = workloads.pod("engine", workloads.server(securityContext=workloads.RESTRICTED))
    with node.namespace("restricted", {"pod-security.kubernetes.io/enforce": "restricted"}) as namespace, release.installed(node, namespace, known_by=given):
        try:
            node.api.make(workloads.pod("root"), namespace, try_only=True)
            raise AssertionError("the namespace accepts any pod")
        except Refused as refused:
            assert "PodSecurity" in str(refused), refused
        node.api.make(given, namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        workloads.answers(pod)
        _sits_in_front(pod)


def unselected_and_refused_pods_are_unchanged_and_a_warning_names_the_reason():
    node = cluster()
    with node.namespace("selected") as namespace, node.namespace("unselected") as unselected:
        # Every namespace except the system's, the chart's default.
        target = {"name": "default", "objectSelector": {"matchLabels": workloads.LABEL}, "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace, "kube-system"]}]}}
        with release.installed(node, namespace, {"targets": [target]}):
            in_a_shell = _in(namespace, shapes.left_alone()["a shell"][0])
            until(lambda: node.api.make(in_a_shell, namespace, try_only=True).warnings, "the API server knows the warning policy", 120)
            for name, (shape, word) in shapes.left_alone().items():
                where = shape["metadata"]["namespace"].replace("llm", namespace)
                answer = node.api.make(_in(where, shape), where, try_only=True)
                before = [c["name"] for c in shape["spec"].get("initContainers", [])]
                assert [c["name"] for c in answer.object["spec"].get("initContainers", [])] == before, f"{name}: {answer.object['spec']}"
                warned = "; ".join(answer.warnings)
                assert (word in warned) if word else "tokometer" not in warned, f"{name}: {warned or 'no warning'}"
                reason = answer.object["metadata"].get("annotations", {}).get("tokometer/skipped", "")
                assert (word in reason) if word else reason == "", f"{name}: {reason or 'no reason on the pod'}"
            assert not workloads.has_sidecar(release.tried(node, unselected)), "a namespace that is not selected"
            # The user who applies a Deployment gets the warning, not only the controller that creates its pods.
            shell = shapes.container(command=["/bin/sh", "-c"], args=["start-engine model"])
            warned = node.run("kubectl", "-n", namespace, "apply", "-f", "-", stdin=json.dumps(workloads.deployment("shell", shell, replicas=0))).stderr
            assert "Warning:" in warned and "without a shell" in warned, warned


def a_failing_policy_admits_the_pod_unchanged_with_failure_policy_ignore():
    node = cluster()
    with node.namespace("failing") as namespace, release.installed(node, namespace, {"policy": {"failurePolicy": "Fail"}}):
        [policy] = [one for one in node.api.get("MutatingAdmissionPolicy") if one["metadata"]["name"].endswith(f".{namespace}")]
        name, variables = policy["metadata"]["name"], policy["spec"]["variables"]
        # Values whose error shows only on an actual pod.
        broken = [v | {"expression": 'object.metadata.annotations["nobody/has"].split(",").map(a, a)'} if v["name"] == "args" else v for v in variables]
        node.api.patch("MutatingAdmissionPolicy", None, name, {"spec": {"variables": broken}})

        def refused():
            try:
                release.tried(node, namespace)
            except Refused as error:
                return "args" in str(error) or name in str(error)
            return False

        until(refused, "a failing policy rejects the pod", 120)
        node.api.patch("MutatingAdmissionPolicy", None, name, {"spec": {"failurePolicy": "Ignore"}})
        until(lambda: not refused(), "the same policy admits the pod unchanged", 120)
        node.api.make(workloads.pod("engine"), namespace)
        [pod] = workloads.wait_ready(node, namespace, "engine")
        assert not workloads.has_sidecar(pod)
        workloads.answers(pod)


def a_reinstalled_release_injects_its_own_values():
    node = cluster()
    with node.namespace("again") as namespace:
        for port in (9464, 9500):
            with release.installed(node, namespace, {"sidecar": {"adminPort": port}}):
                sidecar = release.tried(node, namespace)["spec"]["initContainers"][0]
                assert f"--admin=:{port}" in sidecar["args"], sidecar["args"]
            until(lambda: not workloads.has_sidecar(release.tried(node, namespace)), "the API server has removed the policy", 120)
