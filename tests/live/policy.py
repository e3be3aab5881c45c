"""The chart's admission policies on many kinds of pods, run by the API server's own code (tests/components/admission)."""

import copy
import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import helm_chart
import shapes
from helm_chart import ROOT, cases, documents, included, of_kind, render
from process import BINARY, Skip

# The annotation with the reason why a pod was left unchanged.
SKIPPED = "tokometer/skipped"

# The table of platform pods has many targets, each with its own policy to compile.
MAX_SECONDS = 400

# Maximum time that a restarted tokometer takes until it responds.
RESTART_SECONDS = 10

# Fields that a policy may replace or remove.
PROBES = [f"/spec/containers/vllm/{probe}" for probe in ("livenessProbe", "startupProbe")]
MAY_CHANGE = (
    "/spec/terminationGracePeriodSeconds", "/spec/containers/ollama/env/OLLAMA_HOST/value",
    *(f"{probe}/{field}" for probe in PROBES for field in ("httpGet", "tcpSocket", "timeoutSeconds")),
)


@functools.cache
def _manifests(text):
    return helm_chart.example(render(json.loads(text)))


def _admit(values, pods):
    """The policy's result for these pods: pod, changed, unsettled, errors, warnings."""
    helm_chart.needs_helm()
    if not shutil.which("admission"):
        raise Skip("no program that runs admission policies (component admission, which needs Go)")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_manifests(json.dumps(values)))
        file.flush()
        done = subprocess.run(["admission", file.name], input=json.dumps(pods), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _left_unchanged(before, response):
    """The reason on a pod that got no sidecar; asserts that nothing else changed."""
    after = shapes.without_empty_values(response["pod"])
    reason = after["metadata"].get("annotations", {}).pop(SKIPPED, None)
    kept = [{name: shapes.without_empty_values(pod[name]) for name in ("metadata", "spec")} for pod in (before, after)]
    assert kept[0] == kept[1], shapes.difference(*kept)
    return reason


def _sidecar_of(pod):
    return pod["spec"]["initContainers"][0]


def _engine_of(pod):
    return next(c for c in pod["spec"]["containers"] if any(p.get("containerPort") == 8000 for p in c.get("ports", [])) or len(pod["spec"]["containers"]) == 1)


def _missing_parts(before, after, path=""):
    """The parts of a pod that are missing afterwards: keys may be added, and items prepended or appended to a list."""
    if isinstance(before, dict):
        parts = [_missing_parts(value, after[key], f"{path}/{key}") if key in after else [f"{path}/{key}"] * (f"{path}/{key}" not in MAY_CHANGE) for key, value in before.items()]
        return [part for missing in parts for part in missing]
    if isinstance(before, list):
        if before and isinstance(before[0], dict) and "name" in before[0]:
            # A name may occur twice in an environment.
            items_named = lambda name: [item for item in after if item["name"] == name]  # noqa: E731

            def is_lost(item):
                return all(_missing_parts(item, candidate, f"{path}/{item['name']}") for candidate in items_named(item["name"]))

            return [f"{path}/{item['name']}" for item in before if is_lost(item)]
        return [] if before == after[: len(before)] else [path]
    return [] if before == after or path in MAY_CHANGE else [path]


def _check_changed(name, before, response):
    """Conditions that must hold for every pod."""
    pod = shapes.without_empty_values(response["pod"])
    assert response["errors"] == [], f"{name}: {response['errors']}"
    assert not response["unsettled"], f"{name}: a second run changes it again"
    assert helm_chart.kubernetes_problems(pod) == {}, f"{name}: {helm_chart.kubernetes_problems(pod)}"
    names = [c["name"] for kind in ("initContainers", "containers") for c in pod["spec"].get(kind, [])]
    assert len(set(names)) == len(names), f"{name}: {names}"
    volumes = {v["name"] for v in pod["spec"].get("volumes", [])}
    mounts = {m["name"] for kind in ("initContainers", "containers") for c in pod["spec"].get(kind, []) for m in c.get("volumeMounts", [])}
    assert mounts <= volumes, f"{name}: {mounts - volumes} is mounted but missing"
    lost = _missing_parts(shapes.without_empty_values(before), pod)
    assert not lost, f"{name}: lost {lost}"
    return pod


def _is_guaranteed(pod):
    """The API's own rule (pkg/apis/core/v1/helper/qos), for containers whose requests default to their limits."""
    every = pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    limits = lambda c: c.get("resources", {}).get("limits", {})  # noqa: E731
    return all({"cpu", "memory"} <= limits(c).keys() and {**limits(c), **c["resources"].get("requests", {})} == limits(c) for c in every)


def _expected(name, warnings):
    """Among pods that get the sidecar, only one whose engine has its own preStop hook, and one with a gRPC probe, cause a warning."""
    words = {"a hook before the end": ["preStop"], "probes of another type": ["grpc"]}.get(name, [])
    return len(warnings) == len(words) and all(word in warning for word, warning in zip(words, warnings, strict=True))


def every_kind_of_pod_gets_the_sidecar():
    pods = shapes.pods_with_sidecar()
    for (name, before), response in zip(pods.items(), _admit({}, list(pods.values())), strict=True):
        assert response["changed"] and _expected(name, response["warnings"]), f"{name}: {response['warnings']}"
        pod = _check_changed(name, before, response)
        sidecar, engine = _sidecar_of(pod), _engine_of(pod)
        assert (sidecar["name"], sidecar["restartPolicy"]) == ("tokometer", "Always"), name
        assert [c["name"] for c in pod["spec"]["initContainers"][1:]] == [c["name"] for c in before["spec"].get("initContainers", [])], name
        assert engine["args"] == [*_engine_of(before).get("args", []), "--host=127.0.0.1"], f"{name}: {engine['args']}"
        assert engine.get("command") == _engine_of(before).get("command"), name
        assert _is_guaranteed(pod) == _is_guaranteed(before) == (name in ("guaranteed", "guaranteed by limits")), f"{name}: {sidecar['resources']}"
        hook = _engine_of(before).get("lifecycle", {}).get("preStop") or {"httpGet": {"path": "/drain/wait", "port": 9464}}
        assert shapes.without_empty_values(engine["lifecycle"]["preStop"]) == hook, f"{name}: {engine['lifecycle']}"
        assert pod["spec"]["terminationGracePeriodSeconds"] == max(330, before["spec"].get("terminationGracePeriodSeconds", 0)), name
    print(f"    {len(pods)} pods")


def pods_that_cannot_be_injected_are_unchanged_with_a_warning():
    unsupported = shapes.pods_without_sidecar()
    for (name, (before, word)), response in zip(unsupported.items(), _admit({}, [pod for pod, _ in unsupported.values()]), strict=True):
        _check_changed(name, before, response)
        reason, warned = _left_unchanged(before, response), "; ".join(response["warnings"])
        assert (word in reason) if word else reason is None, f"{name}: {reason or 'no reason on the pod'}"
        assert (word in warned) if word else warned == "", f"{name}: {warned or 'no warning'}"


def outdated_reason_is_removed_or_replaced():
    for pod, expected in [(shapes.pod(), None), (shapes.pods_without_sidecar()["a script"][0], "without a shell")]:
        [response] = _admit({}, [{**pod, "metadata": {**pod["metadata"], "annotations": {SKIPPED: "outdated", "mine": "kept"}}}])
        annotations = response["pod"]["metadata"]["annotations"]
        assert response["errors"] == [] and not response["unsettled"] and annotations["mine"] == "kept", response
        assert (expected in annotations[SKIPPED]) if expected else SKIPPED not in annotations, annotations


def applying_a_deployment_prints_the_warning():
    """The API server returns a warning to the caller: to a controller for a pod, to a user for a Deployment."""

    def deployment(pod):
        template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": pod["metadata"]["namespace"]}, "spec": spec}

    unsupported, supported = shapes.pods_without_sidecar(), shapes.pods_with_sidecar()
    responses = _admit({}, [deployment(pod) for pod, _ in unsupported.values()])
    for (name, (_, word)), response in zip(unsupported.items(), responses, strict=True):
        warned = "; ".join(response["warnings"])
        assert response["errors"] == [], f"{name}: {response['errors']}"
        assert (word in warned) if word else warned == "", f"{name}: {warned or 'no warning'}"
    for name, response in zip(supported, _admit({}, [deployment(pod) for pod in supported.values()]), strict=True):
        assert response["errors"] == [] and _expected(name, response["warnings"]), f"{name}: {response}"
    # A target without matchLabels warns too.
    expressions = [{"key": "tokometer/inject", "operator": "In", "values": ["true", "yes"]}, {"key": "no", "operator": "DoesNotExist"}]
    values = {"targets": [{"name": "e", "objectSelector": {"matchExpressions": expressions}}]}
    pod, word = unsupported["a shell"]
    for labels, warns in [({"tokometer/inject": "yes"}, True), ({"tokometer/inject": "false"}, False), ({"tokometer/inject": "true", "no": ""}, False)]:
        [response] = _admit(values, [deployment({**pod, "metadata": {**pod["metadata"], "labels": labels}})])
        assert response["errors"] == [] and [word in warning for warning in response["warnings"]] == [True] * warns, f"{labels}: {response}"


def policy_and_template_create_the_same_container():
    for name in ("default", "uds", "shadow-bind", "port-swap", "redirect", "explicit", "tap", "configuration", "fail-closed"):
        values = {**cases()[name], "image": {"repository": "registry.example.com/tokometer"}}
        [response] = _admit(values, [shapes.without_ports()])
        injected = next(c for c in response["pod"]["spec"]["initContainers"] if c["name"] == "tokometer")
        [template] = included(values)["containers"]
        assert shapes.without_empty_values(injected) == shapes.without_empty_values(template), f"{name}: {injected} is not {template}"


def each_mode_makes_only_its_documented_changes():
    for name, args, port, upstream, uid in [
        ("default", ["--host=127.0.0.1"], 8000, "127.0.0.1:8000", 65532),
        ("uds", ["--uds=/run/tokometer/engine.sock"], 8000, "unix:/run/tokometer/engine.sock", 0),
        ("shadow-bind", [], 8000, "127.0.0.1:8000", 0),
        ("port-swap", ["--port=8200"], 8000, "127.0.0.1:8200", 65532),
        ("redirect", [], 15080, "original", 65532),
        ("explicit", [], 15080, "127.0.0.1:8000", 65532),
    ]:
        before = shapes.pod()
        [response] = _admit(cases()[name], [before])
        pod = _check_changed(name, before, response)
        init = {c["name"]: c for c in pod["spec"]["initContainers"]}
        sidecar = init["tokometer"]
        assert list(init) == (["tokometer-redirect", "tokometer"] if name == "redirect" else ["tokometer"]), name
        hosts = "$(POD_IPS),127.0.0.1" if name in ("port-swap", "uds") else "$(POD_IPS)"
        assert {f"--listen=[{hosts}]:{port}", f"--upstream={upstream}"} <= set(sidecar["args"]), f"{name}: {sidecar['args']}"
        assert sidecar["securityContext"]["runAsUser"] == uid and sidecar["securityContext"]["runAsNonRoot"] == (uid != 0), name
        assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert _engine_of(pod)["args"] == [*_engine_of(before)["args"], *args], name
    before = shapes.pod(shapes.container(command=["sh", "-c"], args=["start.sh"]))
    [response] = _admit(cases()["tap"], [before])
    after = _check_changed("tap", before, response)
    assert after["spec"]["containers"] == before["spec"]["containers"] and "terminationGracePeriodSeconds" not in after["spec"], after["spec"]
    sidecar = _sidecar_of(after)
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_RAW"]} and not {"startupProbe", "lifecycle"} & set(sidecar), sidecar
    [response] = _admit(cases()["redirect"], [shapes.pod(shapes.container(command=["sh", "-c"], args=["vllm serve model"]))])
    assert response["changed"] and response["warnings"] == [], "redirect needs no flags, so a shell does not matter"


def each_engine_gets_its_own_flags():
    def pod(app, **container):
        return shapes.pod({"name": app, "image": "engine:1"} | container, labels={"app": app})

    pods = [
        pod("sglang", command=["python3", "-m", "sglang.launch_server"], args=["--host=0.0.0.0"]),
        pod("llama", args=["-m", "model.gguf"], image="llama.cpp:server"),
        pod("llama", args=["-m", "model.gguf", "--host", "0.0.0.0"]),
        pod("llama", image="llama.cpp:server"),
        pod("tgi", args=["--model-id", "m"]),
        pod("tgi", args=["--model-id", "m", "--hostname", "0.0.0.0"]),
        pod("ollama", image="ollama/ollama:1"),
        pod("ollama", env=[{"name": "A", "value": "1"}, {"name": "OLLAMA_HOST", "value": "0.0.0.0:11434"}, {"name": "B", "value": "2"}]),
    ]
    # In the case `engines`, TGI's target selects one team's namespaces. In this test, all targets select every
    # namespace.
    responses = _admit({**cases()["engines"], "targets": [{**t, "namespaceSelector": {}} for t in cases()["engines"]["targets"]]}, pods)
    found = [_check_changed(before["metadata"]["labels"]["app"], before, response)["spec"]["containers"][0] for before, response in zip(pods, responses, strict=True)]
    assert found[0]["args"] == ["--host=0.0.0.0", "--host=127.0.0.1"]
    socket = {"name": "LLAMA_ARG_HOST", "value": "/run/tokometer/engine.sock"}
    # A flag overrides the variable, so an existing flag is appended again, with the socket as its value.
    assert found[1]["env"] == [socket] and found[1]["args"] == ["-m", "model.gguf"]
    assert found[2]["args"] == ["-m", "model.gguf", "--host", "0.0.0.0", "--host", "/run/tokometer/engine.sock"] and "env" not in found[2]
    assert found[3]["env"] == [socket] and "args" not in found[3]
    assert found[4]["args"] == ["--model-id", "m", "--hostname=127.0.0.1"]
    # TGI's parser rejects repeated flags, so the pod is unchanged: running without metrics is better than not running.
    assert "only once" in responses[5]["pod"]["metadata"]["annotations"][SKIPPED], responses[5]
    assert found[6]["env"] == [{"name": "OLLAMA_HOST", "value": "127.0.0.1:11434"}] and "args" not in found[6]
    assert found[7]["env"] == [{"name": "A", "value": "1"}, {"name": "OLLAMA_HOST", "value": "127.0.0.1:11434"}, {"name": "B", "value": "2"}]


def shared_socket_belongs_to_one_user():
    for mode in ("uds", "shadow-bind"):
        for inner, outer, user in [({}, {}, 0), ({"runAsUser": 1000}, {}, 1000), ({}, {"runAsUser": 2000, "runAsNonRoot": True}, 2000), ({"runAsUser": 0}, {"runAsUser": 2000}, 0)]:
            before = shapes.pod(shapes.container(**({"securityContext": inner} if inner else {})), **({"securityContext": outer} if outer else {}))
            [response] = _admit(cases()[mode], [before])
            context = _sidecar_of(_check_changed(mode, before, response))["securityContext"]
            assert (context["runAsUser"], context["runAsNonRoot"]) == (user, user != 0), (mode, inner, outer, context)
        [response] = _admit(cases()[mode], [shapes.pod(securityContext={"runAsNonRoot": True})])
        assert "which only the image knows" in response["pod"]["metadata"]["annotations"][SKIPPED] and "which only the image knows" in response["warnings"][0], response


def inject_creates_the_same_pod():
    """`tokometer inject` and the policy produce equal pods, where both accept them, except for inject's undo annotation."""
    image = "registry.example.com/tokometer:1"
    modes = {"default": "auto", "uds": "uds", "shadow-bind": "shadow-bind", "port-swap": "port-swap", "redirect": "redirect", "explicit": "explicit", "tap": "tap"}
    compared = 0
    for case, mode in modes.items():
        values = {**cases()[case], "image": {"repository": "registry.example.com/tokometer", "tag": "1"}}
        # The cases whose mode does not change the engine set no engine, so it is set here. As with inject, the server
        # port is one above `--port`.
        drained = {**values["sidecar"], "engine": "vllm", "serverPort": 8001, "drain": {"enabled": True}} if "sidecar" in values else {"engine": "vllm"}
        pods = shapes.pods_with_sidecar()
        responses = _admit({**values, "sidecar": drained}, list(pods.values()))
        for (name, before), response in zip(pods.items(), responses, strict=True):
            arguments = [BINARY, "inject", "--image", image, "--mode", mode, "--engine", "vllm", "--port", "8000"]
            arguments += ["--container", "vllm", "--redirect-image", "registry.example.com/tokometer-redirect:1"]
            done = subprocess.run(arguments, input=json.dumps(before), capture_output=True, text=True, check=False)
            if done.returncode == 1:
                assert _left_unchanged(before, response), f"{case}: {name}: only the policy accepts it: {done.stderr}"
                continue
            assert done.returncode == 0, f"{case}: {name}: {done.stderr}"
            by_inject, by_policy = shapes.without_empty_values(json.loads(done.stdout)), shapes.without_empty_values(response["pod"])
            assert by_inject["spec"] == by_policy["spec"], f"{case}: {name}:\n{shapes.difference(by_inject['spec'], by_policy['spec'])}"
            compared += 1
    assert compared >= 100, compared
    print(f"    {compared} pods")


def platform_pods_are_injected_or_refused_with_a_reason():
    """Uses the table of tests/it/inject/fleet.rs. Where `inject` and the policy both inject, the pods are equal."""
    image = "registry.example.com/tokometer"
    table = helm_chart.yaml.safe_load((ROOT / "tests" / "fixtures" / "inject" / "fleet.yaml").read_text())
    # Pods of targets with the same settings are processed together.
    targets = {}
    for case in table:
        ports = case.get("ports", [8000])
        sidecar = {"engine": case.get("engine", "vllm"), "container": case["container"], "mode": case.get("mode", "auto"), "port": ports[0], "extraPorts": ports[1:], "tlsSecret": case.get("tlsSecret", "")}
        case["pod"] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "llm", "labels": shapes.LABEL}, "spec": case["spec"]}
        targets.setdefault(json.dumps(sidecar), []).append(case)
    for sidecar, cases_of in targets.items():
        values = {"image": {"repository": image, "tag": "1"}, "dashboards": {"enabled": False}, "sidecar": json.loads(sidecar)}
        for case, response in zip(cases_of, _admit(values, [case["pod"] for case in cases_of]), strict=True):
            case["response"] = response
    for case in table:
        name, ports, before, response = case["name"], case.get("ports", [8000]), case["pod"], case["response"]
        engine = case.get("engine", "vllm")
        assert response["errors"] == [] and not response["unsettled"], f"{name}: {response['errors']}"
        warned = "; ".join(response["warnings"])
        if "refused" in case:
            reason = _left_unchanged(before, response)
            assert case["refused"] in (reason or "") and case["refused"] in warned, f"{name}: {reason or 'no reason'}; {warned or 'no warning'}"
            continue
        assert case.get("warning", "") in warned and bool(warned) == ("warning" in case), f"{name}: {warned or 'no warning'}"
        arguments = [BINARY, "inject", "--image", f"{image}:1", "--engine", engine, "--container", case["container"], "--mode", case.get("mode", "auto")]
        arguments += ["--redirect-image", f"{image}-redirect:1", *(f"--port={port}" for port in ports)]
        arguments += [f"--tls-secret={case['tlsSecret']}"] if "tlsSecret" in case else []
        done = subprocess.run(arguments, input=json.dumps(before), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        by_inject = shapes.without_empty_values(json.loads(done.stdout))["spec"]
        by_policy = shapes.without_empty_values(response["pod"])["spec"]
        assert by_inject == by_policy, f"{name}:\n{shapes.difference(by_inject, by_policy)}"
        for container in by_policy["containers"] if "text" in case else []:
            text = max(container["command"] + container.get("args", []), key=len)
            done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stderr}"
    print(f"    {len(table)} pods")


def shell_passes_the_inserted_flag_to_the_engine():
    """The texts that the policy makes, run by bash with a program `vllm` that prints its arguments."""
    variables = {"MORE": "--max-model-len 5"}
    for text, expected in [
        ("set -e\nexec vllm serve m --host=\"${H:-0.0.0.0}\" --port 8000", "m --port 8000"),
        ('eval "exec vllm serve \\\n  /m \\\n  --host 0.0.0.0 \\\n  --name "a" "b" \\\n  ${MORE} \\\n  $@"', "/m --name a b --max-model-len 5 --x y"),
        ("if true; then vllm serve a --host 0.0.0.0; else vllm serve b; fi", "a"),
        ('exec vllm serve m "$@"', "m --x y"),
        ("vllm serve m --host '::' ${MORE} 2>&1 | cat", "m --max-model-len 5"),
    ]:
        [response] = _admit({}, [shapes.pod(shapes.container(command=["bash", "-c", text, "--"], args=["--x", "y"]))])
        engine = _engine_of(response["pod"])
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "vllm").write_text('#!/bin/sh\necho "$@"\n')
            (Path(directory) / "vllm").chmod(0o755)
            environment = {**variables, "PATH": f"{directory}:{os.environ['PATH']}"}
            done = subprocess.run(engine["command"] + engine["args"], env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["serve", "--host=127.0.0.1", *expected.split()], f"{text}: {done}"


def cpu_limit_is_set_if_all_containers_have_one():
    for limits, expected, requested in [({"cpu": "4", "memory": "1Gi"}, "500m", "125m"), ({"memory": "1Gi"}, None, "25m")]:
        [response] = _admit({}, [shapes.pod(shapes.container(resources={"limits": limits, "requests": {"cpu": "1"}}))])
        resources = _sidecar_of(response["pod"])["resources"]
        assert resources["limits"].get("cpu") == expected and resources["requests"]["cpu"] == requested, (limits, resources)


def pod_security_level_of_the_namespace_is_respected():
    for case, level, accepted in [("default", "restricted", True), ("port-swap", "restricted", True), ("uds", "baseline", True), ("uds", "restricted", False), ("redirect", "baseline", False), ("tap", "restricted", False)]:
        [response] = _admit(cases()[case], [shapes.pod(namespace=level)])
        reason = response["pod"]["metadata"].get("annotations", {}).get(SKIPPED, "")
        assert response["errors"] == [] and ("Pod Security" in reason) != accepted, (case, level, response)


def pod_resources_are_shared():
    own = {"resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "50m", "memory": "64Mi"}}}
    for case in ("default", "redirect"):
        [response] = _admit(cases()[case], [shapes.pod(**own)])
        assert response["errors"] == [] and response["changed"], response
        assert all(not container.get("resources") for container in response["pod"]["spec"]["initContainers"]), response["pod"]["spec"]


def low_port_needs_no_root():
    name, values = "net.ipv4.ip_unprivileged_port_start", cases()["fail-closed"]
    other, own = {"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}, {"name": name, "value": "0"}
    for context, sysctls in [(None, [{"name": name, "value": "80"}]), ({"fsGroup": 5}, [{"name": name, "value": "80"}]), ({"sysctls": [other]}, [other, {"name": name, "value": "80"}]), ({"sysctls": [own]}, [own])]:
        before = shapes.without_ports(**({"securityContext": context} if context else {}))
        [response] = _admit(values, [before])
        assert _check_changed(str(context), before, response)["spec"]["securityContext"]["sysctls"] == sysctls


def proxy_in_the_same_pod_reaches_the_sidecar_at_the_engine_address():
    """llm-d's decode pods: the routing proxy connects to localhost."""
    proxy = {"name": "routing-proxy", "image": "proxy:1", "args": ["--port=8000", "--vllm-port=8200"], "restartPolicy": "Always", "ports": [{"containerPort": 8000}]}
    engine = {"name": "vllm", "image": "engine:1", "command": ["vllm", "serve"], "args": ["model", "--port", "8200"]}
    before = shapes.pod(engine, initContainers=[proxy], labels={"llm-d.ai/role": "decode"})
    [response] = _admit(cases()["llm-d"], [before])
    pod = _check_changed("decode", before, response)
    assert {"--listen=[$(POD_IPS),127.0.0.1]:8200", "--upstream=127.0.0.1:8201"} <= set(_sidecar_of(pod)["args"])
    assert pod["spec"]["containers"][0]["args"] == [*engine["args"], "--port=8201"]


def pod_contains_its_configuration():
    before = shapes.pod(volumes=[{"name": "cache", "emptyDir": {}}])
    before["metadata"]["annotations"] = {"mine": "kept"}
    for start in (shapes.pod(), before):
        [response] = _admit(cases()["configuration"], [copy.deepcopy(start)])
        pod = _check_changed("configuration", start, response)
        text = pod["metadata"]["annotations"]["tokometer/config"]
        assert helm_chart.yaml.safe_load(text) == cases()["configuration"]["sidecar"]["config"], text
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == "tokometer-config")
        assert volume["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == "metadata.annotations['tokometer/config']"
        engine = _engine_of(pod)
        assert engine["livenessProbe"]["httpGet"] == {"path": "/engine/healthz", "port": 9464}
        # A hung tokometer is killed and started again before the engine's probe, which tokometer serves, has failed for
        # the last time.
        of_sidecar, of_engine = _sidecar_of(pod)["livenessProbe"], engine["livenessProbe"]
        latest = (of_sidecar["failureThreshold"] + 1) * of_sidecar["periodSeconds"] + of_sidecar["timeoutSeconds"]
        restarted = latest + of_sidecar["terminationGracePeriodSeconds"] + RESTART_SECONDS
        assert restarted < (of_engine["failureThreshold"] - 1) * of_engine["periodSeconds"], (of_sidecar, of_engine)
        assert engine["args"][-2:] == ["--enable-force-include-usage", "--enable-prompt-tokens-details"]
    own = {"httpGet": {"path": "/health", "port": 8000}}
    [response] = _admit(cases()["configuration"], [shapes.pod(shapes.container(livenessProbe=own))])
    assert shapes.without_empty_values(_engine_of(shapes.without_empty_values(response["pod"]))["livenessProbe"]) == {
        "exec": {"command": ["/run/tokometer-probe/tokometer", "probe", "http://127.0.0.1:8000/health", "--timeout=1s"]},
        "timeoutSeconds": 3, "terminationGracePeriodSeconds": 30,
    }


def policy_is_self_contained():
    """No parameters: when the last policy with parameters is deleted, an API server of 1.36 stops watching ConfigMaps and never resumes."""
    found = documents(render({}))
    [policy] = of_kind(found, "MutatingAdmissionPolicy")
    [binding] = of_kind(found, "MutatingAdmissionPolicyBinding")
    assert policy["spec"]["failurePolicy"] == "Ignore"
    assert "paramKind" not in policy["spec"] and "paramRef" not in binding["spec"]
    assert "params" not in json.dumps([policy, binding])
