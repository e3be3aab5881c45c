"""The Helm chart with the real Helm engine: what it renders and rejects, and whether every rendered object is valid."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import helm_chart
from helm_chart import CHART, cases, documents, example, included, notes, of_kind, render
from process import BINARY, Process, Skip, free_port, get, start_sim, until

# Loads the schemas of four Kubernetes versions.
MAX_SECONDS = 400


def _rejection_error(values):
    """The error with which Helm rejects these values."""
    helm_chart.needs_helm()
    try:
        render(values)
    except helm_chart.helm_python.HelmError as error:
        return str(error)
    raise AssertionError(f"accepted: {values}")


def _sidecar(**settings):
    return {"sidecar": settings}


def helm_lint_reports_nothing():
    helm_chart.needs_helm()
    for name, values in {"nothing set": {}, **cases()}.items():
        report = helm_chart.helm_python.lint(str(helm_chart.without_links()), values, strict=True, kube_version="v1.36.0")
        # A missing icon is reported at level "info".
        bad = [message for message in report["messages"] if message["severity"] > 1]
        assert not bad and not report["errors"], f"{name}: {bad} {report['errors']}"


def invalid_value_error_names_the_key():
    for values, *words in [
        (_sidecar(egine="vllm"), "/sidecar", "egine"),
        (_sidecar(mode="adress-split"), "/sidecar/mode", "address-split"),
        (_sidecar(port="8000"), "/sidecar/port", "integer"),
        (_sidecar(adminPort=70000), "/sidecar/adminPort", "65,535"),
        (_sidecar(config={"slo": {"ttft": [{"max": 1}]}}), "/sidecar/config/slo/ttft/0", "max"),
        (_sidecar(drain={"timeoutSeconds": 0}), "/sidecar/drain/timeoutSeconds", "1"),
        ({"image": {"digest": "0123"}}, "/image/digest", "sha256"),
        ({"policy": {"failurePolicy": "ignore"}}, "/policy/failurePolicy", "Ignore"),
        ({"targets": []}, "/targets", "1"),
        ({"targets": [{"name": "a"}]}, "/targets/0", "objectSelector"),
        ({"podMonitor": {"enabled": "yes"}}, "/podMonitor/enabled", "auto"),
        ({"prometheusRule": {"alerts": {"LLMQueueGrowing": {"silenced": True}}}}, "LLMQueueGrowing", "silenced"),
        ({"collector": {"replicas": 0}}, "/collector/replicas", "1"),
        ({"monitoring": {}}, "monitoring"),
    ]:
        error = _rejection_error(values)
        assert all(word in error for word in words), f"{values}: {error}"


def conflicting_values_error_names_the_fix():
    selector = {"matchLabels": {"a": "b"}}
    for values, *words in [
        (_sidecar(mode="uds", engine="sglang"), "targets[default].sidecar", "vllm and llama_cpp"),
        (_sidecar(engine="dynamo"), "dynamo", "redirect or explicit"),
        (_sidecar(mode="port-swap", engine="auto"), "auto", "name the engine"),
        (_sidecar(listenHost="0.0.0.0"), "listenHost", "port-swap"),
        (_sidecar(port=9464), "must differ", "9464"),
        (_sidecar(extraPorts=[8001, 9464]), "must differ", "9464"),
        (_sidecar(mode="port-swap", extraPorts=[8005]), "extraPorts", "address-split"),
        (_sidecar(mode="port-swap", serverPort=8000), "must differ", "8000"),
        (_sidecar(config={"log": {}}, port=9464, mode="explicit"), "must differ", "15080"),
        ({"targets": [{"name": "a", "objectSelector": selector}] * 2}, '"a"', "twice"),
        ({"targets": [{"name": "a", "objectSelector": {}}]}, "targets[a].objectSelector", "every pod"),
        ({"collector": {"enabled": True}}, "collector.exporters", "otlphttp"),
        ({"collector": {"enabled": True, "exporters": {"debug": {}}, "tracesExporters": ["otlp"]}}, "collector.tracesExporters", "debug"),
        ({"autoscaling": {"keda": {"enabled": True}}}, "autoscaling.target.name"),
        ({"autoscaling": {"target": {"name": "v"}, "keda": {"enabled": True}}}, "serverAddress"),
        ({"autoscaling": {"target": {"name": "v"}, "hpa": {"enabled": True}, "keda": {"enabled": True}}}, "enable one"),
        ({"autoscaling": {"target": {"name": "v"}, "minReplicas": 9, "hpa": {"enabled": True}}}, "minReplicas"),
        ({"prometheusRule": {"alerts": {"LLMQueueGrows": {"disabled": True}}}}, "LLMQueueGrows", "LLMQueueGrowing"),
        ({"prometheusRule": {"content": "groups: []"}}, "tokometer rules"),
    ]:
        error = _rejection_error(values)
        assert all(word in error for word in words), f"{values}: {error}"


def every_case_renders_to_its_committed_example():
    examples = CHART / "examples"
    rendered = {f"{name}.yaml": example(render(values)) for name, values in cases().items()}
    if "UPDATE" in os.environ:
        shutil.rmtree(examples, ignore_errors=True)
        examples.mkdir()
        for name, text in rendered.items():
            (examples / name).write_text(text)
    committed = {file.name: file.read_text() for file in examples.glob("*.yaml")}
    differ = sorted(name for name in rendered.keys() | committed.keys() if rendered.get(name) != committed.get(name))
    assert not differ, f"charts/tokometer/examples: {differ}; run `make chart-examples` to update them"
    print(f"    {len(rendered)} cases")


def every_object_is_valid_in_every_kubernetes_version():
    checked, problems = 0, []
    for name, values in {"nothing set": {}, **cases()}.items():
        for document in documents(render(values)):
            if helm_chart.is_builtin(document):
                checked += 1
                for version, problem in helm_chart.kubernetes_problems(document).items():
                    problems.append(f"{name}: {document['kind']} on {version}: {problem}")
    assert not problems, "\n".join(problems)
    print(f"    {checked} objects, Kubernetes {', '.join(helm_chart.VERSIONS)}")
    # Validation is strict: an unknown key is an error.
    invalid = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}, "date": {}}
    assert len(helm_chart.kubernetes_problems(invalid)) == len(helm_chart.VERSIONS)


def every_custom_resource_matches_its_definition():
    kinds = set()
    for name, values in cases().items():
        for document in documents(render(values)):
            if not helm_chart.is_builtin(document):
                problem = helm_chart.custom_problem(document)
                assert problem is None, f"{name}: {document['kind']}: {problem}"
                kinds.add(document["kind"])
                document["spec"]["unknownKey"] = 1
                assert "unknownKey" in (helm_chart.custom_problem(document) or ""), f"{document['kind']} accepts unknown keys"
    expected = {"PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"}
    expected |= {"GrafanaDashboard"} if list((CHART / "files" / "dashboards").glob("*.json")) else set()
    assert kinds == expected, kinds ^ expected


def every_object_has_common_labels_and_a_unique_name():
    team_labels = {"team": "t"}
    for name, values in cases().items():
        found = documents(render({**values, "commonLabels": team_labels, "extraObjects": []}))
        keys = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in found]
        assert len(set(keys)) == len(keys), f"{name}: {sorted(keys)}"
        for document in found:
            labels = document["metadata"]["labels"]
            assert labels.items() >= team_labels.items() and labels["app.kubernetes.io/managed-by"] == "Helm", (name, document["metadata"])
    # Two releases with the same name in two namespaces do not conflict.
    names = [{(d["kind"], d["metadata"]["name"]) for d in documents(render({}, namespace=n)) if "namespace" not in d["metadata"]} for n in ("a", "b")]
    assert names[0] and not names[0] & names[1], names


def chart_rules_match_the_program():
    generated = helm_chart.yaml.safe_load((CHART / "files" / "rules.yaml").read_text())["spec"]["groups"]
    plain = {"apiVersions": ["monitoring.coreos.com/v1"], "policy": {"excludedNamespaces": []}}
    [rule] = of_kind(documents(render(plain)), "PrometheusRule")
    assert rule["spec"]["groups"] == generated
    # Custom rules replace the generated rules.
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "tokometer.yaml"
        config.write_text('{"slo": {"ttft": [{"name": "mine", "max": "900ms"}]}}')
        argv = [BINARY, "rules", "--config", config, "--format", "prometheusrule"]
        custom_rules = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    [rule] = of_kind(documents(render({**plain, "prometheusRule": {"content": custom_rules}})), "PrometheusRule")
    assert rule["spec"]["groups"] == helm_chart.yaml.safe_load(custom_rules)["spec"]["groups"] != generated
    # The alert about a missing sidecar covers the pods of every target.
    labels = {"matchLabels": {"llm-d.ai/inferenceServing": "true"}, "matchExpressions": [{"key": "llm-d.ai/role", "operator": "In", "values": ["prefill", "both"]}]}
    targets = [{"name": "a", "objectSelector": labels}, {"name": "b", "objectSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}]
    [rule] = of_kind(documents(render({"apiVersions": plain["apiVersions"], "targets": targets})), "PrometheusRule")
    [expression] = [r["expr"] for group in rule["spec"]["groups"] for r in group["rules"] if r.get("alert") == "LLMSidecarMissing"]
    # Nothing is injected in the excluded namespaces, so nothing is missing there.
    excluded = 'namespace!~"kube-system|kube-public|kube-node-lease"'
    for pods in (f'kube_pod_labels{{{excluded},label_llm_d_ai_inference_serving="true",label_llm_d_ai_role=~"prefill|both"}}', f'kube_pod_labels{{{excluded},label_app!=""}}', "annotation_tokometer_skipped"):
        assert pods in expression, expression
    assert "label_tokometer_inject" not in expression, expression
    # An override for one alert affects no other.
    [rule] = of_kind(documents(render(cases()["monitoring"])), "PrometheusRule")
    alerts = {r["alert"]: r for group in rule["spec"]["groups"] for r in group["rules"] if "alert" in r}
    before = {r["alert"]: r for group in generated for r in group["rules"] if "alert" in r}
    assert alerts.keys() == before.keys() - {"LLMClientDisconnectsHigh"}
    assert (alerts["LLMQueueGrowing"]["for"], alerts["LLMQueueGrowing"]["labels"]["severity"]) == ("20m", "ticket")
    assert alerts["LLMUpstreamDown"]["for"] == before["LLMUpstreamDown"]["for"]
    assert all(r["labels"]["team"] == "inference" for r in alerts.values())
    assert alerts["LLMUpstreamDown"]["annotations"]["runbook_url"] == "https://runbooks.example.com/llm/LLMUpstreamDown.md"


def scaled_object_counts_only_pods_of_its_target():
    """Runs the queries of the ScaledObject in promtool, over pods of its target and other pods with similar names."""
    if not shutil.which("promtool-3"):
        raise Skip("no promtool-3 (see the stage components)")
    hashed = ("vllm-6c9d8b7f5d-x2x4k", "vllm-6c9d8b7f5d-p8vzq")
    cases_of = {"Deployment": (hashed, ("vllm-0", "vllm-0-1")), "StatefulSet": (("vllm-0", "vllm-1"), (*hashed, "vllm-0-1"))}
    cases_of |= {"LeaderWorkerSet": (("vllm-0", "vllm-0-1"), hashed), "Other": (hashed, ())}
    tests = []
    for kind, (target_pods, others) in cases_of.items():
        similar = ("vllm-large-6c9d8b7f5d-x2x4k", "vllm-large-0") if kind != "Other" else ("llm-0",)
        keda = {"enabled": True, "serverAddress": "http://p:9090"}
        target = {"apiVersion": "apps/v1", "kind": kind, "name": "vllm"}
        [scaled] = of_kind(documents(render({"autoscaling": {"namespace": "llm", "target": target, "keda": keda}})), "ScaledObject")
        assert scaled["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher", scaled["spec"]["fallback"]
        queue, burn = (trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
        series = [("slo:error_budget:ratio{slo=\"ttft\",service=\"llm\"}", "0.01x20")]
        for namespace, pod in [("llm", pod) for pod in (*target_pods, *others, *similar)] + [("other", target_pods[0])]:
            labels, in_target = f'namespace="{namespace}",pod="{pod}"', namespace == "llm" and pod in target_pods
            series += [
                (f'tokometer_in_flight{{{labels},phase="waiting_first_token"}}', "3x20" if in_target else "100x20"),
                (f"tokometer_build_info{{{labels}}}", "1x20"),
                (f'tokometer_slo_events_total{{{labels},slo="ttft",verdict="good"}}', "0+95x20" if in_target else "0x20"),
                (
                    f'tokometer_slo_events_total{{{labels},slo="ttft",verdict="bad",reason="late_first_token"}}',
                    "0+5x20" if in_target else "0+100x20",
                ),
            ]
        # 5 % bad requests are five times the allowed 1 %, times two pods.
        expected = [(queue, 6), (f"round({burn}, 0.001)", 10)]
        tests.append({
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series],
            "promql_expr_test": [{"expr": expr, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": value}]} for expr, value in expected],
        })
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "test.yaml"
        file.write_text(json.dumps({"tests": tests}))
        done = subprocess.run(["promtool-3", "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def without_the_sidecar_pods_are_unchanged():
    found = {d["kind"] for d in documents(render({"apiVersions": ["monitoring.coreos.com/v1"], "sidecar": {"enabled": False}}))}
    assert found <= {"PodMonitor", "PrometheusRule", "ConfigMap"} and "PrometheusRule" in found, found
    assert "Monitors, rules and dashboards only" in notes(render({"sidecar": {"enabled": False}}))
    off = {d["kind"] for d in documents(render({"policy": {"enabled": False}, "dashboards": {"enabled": False}}))}
    assert off == set(), off


def notes_warn_of_settings_with_a_cost():
    for values, words in [
        ({}, "raised to at least 330 s"),
        (cases()["redirect"], "NET_ADMIN"),
        (cases()["shadow-bind"], "SO_REUSEPORT"),
        (cases()["uds"], "runs as root, without capabilities, if the pod sets no user"),
        (cases()["explicit"], "targetPort: llm-traffic"),
        (cases()["tap"], "NET_RAW"),
        (cases()["configuration"], "--set-file prometheusRule.content"),
        (cases()["network-policy"], "it restricts the engine too"),
        (cases()["fail-closed"], "does not start"),
        (cases()["monitoring"], "scraped twice"),
        ({"policy": {"enabled": False}}, "NOTHING IS INJECTED"),
    ]:
        assert words in notes(render(values)), (values, notes(render(values)))
    assert "WARNING" not in notes(render(_sidecar(drain={"enabled": False})))


def _arguments(values, directory, address):
    """tokometer's arguments in a pod of each target, with the pod's address filled in."""
    for policy in of_kind(documents(render(values)), "MutatingAdmissionPolicy"):
        expressions = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}
        config = Path(directory) / f"{policy['metadata']['name']}.yaml"
        config.write_text(json.loads(expressions.get("config", '""')))
        yield json.loads(expressions["args"].replace("$(POD_IPS)", address).replace("/etc/tokometer/tokometer.yaml", str(config)))


def tokometer_accepts_every_argument_and_configuration():
    checked = 0
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=engine", "-keyout", "tls.key", "-out", "tls.crt"], cwd=directory, check=True, capture_output=True)
        for name, values in cases().items():
            for command, *arguments in _arguments(values, directory, "10.0.0.5,fd00::5"):
                if name == "tap":
                    assert (command, arguments) == ("tap", ["--port=8000", "--admin=:9464", "--set=observe.engine=vllm"]), arguments
                    continue
                assert command == "run"
                arguments = [argument.replace("/etc/tokometer-tls", directory) for argument in arguments]
                done = subprocess.run([BINARY, "check", *arguments], capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{name}: {arguments}: {done.stderr}"
                checked += 1
    assert checked >= 15, checked


def rendered_arguments_proxy_the_server_on_the_same_port():
    """Address split on loopback: 127.0.0.2 is the pod's address. The container's probes get a response."""
    server = start_sim("--rate", "1000")
    admin = free_port()
    values = _sidecar(port=server.port, adminPort=admin)
    with server, tempfile.TemporaryDirectory() as directory:
        [arguments] = _arguments(values, directory, "127.0.0.2")
        with Process("tokometer", [BINARY, *arguments]) as tokometer:
            container = included(values)["containers"]
            for probe in ("startupProbe", "livenessProbe"):
                http_get = container[0][probe]["httpGet"]
                assert http_get["port"] == admin
                tokometer.ready(f"http://127.0.0.1:{admin}{http_get['path']}")
            assert get(f"http://127.0.0.2:{server.port}/health")[0] == 200
            assert 'tokometer_connections_opened_total{' in get(f"http://127.0.0.1:{admin}/metrics")[1]
            server.kill()
            # The engine's own probe fails with its engine; the sidecar's does not.
            until(lambda: get(f"http://127.0.0.2:{server.port}/health")[0] == 0, "the listener closes with its server")
            assert get(f"http://127.0.0.1:{admin}{container[0]['livenessProbe']['httpGet']['path']}")[0] == 200
            # When the pod ends, the sidecar's preStop hook starts a drain, and the engine's hook waits for it to
            # finish.
            drain = container[0]["lifecycle"]["preStop"]["exec"]["command"]
            done = subprocess.run([BINARY, *drain[1:]], capture_output=True, text=True, check=False)
            assert drain[0] == "/tokometer" and done.returncode == 0, done.stderr
            assert get(f"http://127.0.0.1:{admin}/drain/wait", timeout=60)[0] == 200
            assert get(f"http://127.0.0.2:{server.port}/health")[0] == 0


def targets_can_have_their_own_image():
    digest = "sha256:" + "0" * 64
    targets = [{"name": name, "objectSelector": {"matchLabels": {"app": name}}, "image": image} for name, image in (("a", {}), ("b", {"tag": "1.2"}))]
    values = {"policy": {"enabled": True, "apiVersion": "v1"}, "image": {"registry": "ghcr.io", "digest": digest}, "sidecar": {"mode": "redirect"}, "targets": targets}
    found = documents(render(values))
    images = []
    for policy in of_kind(found, "MutatingAdmissionPolicy"):
        [image] = [variable["expression"] for variable in policy["spec"]["variables"] if variable["name"] == "image"]
        [redirect] = set(re.findall('image: "([^"]*-redirect[^"]*)"', json.dumps(policy).replace('\\"', '"')))
        images.append((json.loads(image), redirect))
    version = helm_chart.yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    expected = [(f"ghcr.io/tokometer@{digest}", f"ghcr.io/tokometer-redirect:{version}"), ("ghcr.io/tokometer:1.2", "ghcr.io/tokometer-redirect:1.2")]
    assert images == expected, images
    [job] = of_kind(found, "Job")
    assert [container["image"] for container in job["spec"]["template"]["spec"]["containers"]] == [image for image, _ in expected], job
    assert "pre-upgrade" in job["metadata"]["annotations"]["helm.sh/hook"], job


def another_chart_can_include_the_container():
    plain = included({})
    [container] = plain["containers"]
    assert plain["volumes"] == [] and "volumeMounts" not in container
    assert (container["name"], container["restartPolicy"]) == ("tokometer", "Always")
    assert container["securityContext"]["runAsNonRoot"] and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    context = included(_sidecar(runAsUser=None))["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] and "runAsUser" not in context
    values = _sidecar(mode="uds", config={"log": {"level": "debug"}})
    rendered = included(values)
    spec = {"containers": [{"name": "vllm"}], "initContainers": rendered["containers"], "volumes": rendered["volumes"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    assert helm_chart.kubernetes_problems(pod) == {}
    volumes, mounts = rendered["volumes"], rendered["containers"][0]["volumeMounts"]
    assert {v["name"] for v in volumes} == {m["name"] for m in mounts} == {"tokometer-socket", "tokometer-config"}


def real_collector_accepts_the_gateway_configuration():
    if not shutil.which("collector"):
        raise Skip("no OpenTelemetry Collector (component collector, which needs Go)")
    valid = {"endpoint": "https://otlp.example.com", "headers": {"authorization": "Bearer ${env:TOKEN}"}}
    for exporter, accepted in ((valid, True), ({**valid, "endpont": ""}, False)):
        found = documents(render({"collector": {"enabled": True, "exporters": {"otlphttp": exporter}}}))
        [text] = [d["data"]["collector.yaml"] for d in of_kind(found, "ConfigMap") if "collector.yaml" in d["data"]]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(text)
            config.flush()
            done = subprocess.run(["collector", "validate", f"--config={config.name}"], env={**os.environ, "TOKEN": "t"}, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == accepted, f"{text}: {done.stderr}"
        assert accepted or "endpont" in done.stderr, done.stderr


def values_and_schema_have_the_same_keys():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = helm_chart.yaml.safe_load((CHART / "values.yaml").read_text())
    unknown, missing = [], []

    def walk(path, value, definition):
        while "$ref" in definition:
            definition = schema["$defs"][definition["$ref"].rpartition("/")[2]]
        if definition.get("additionalProperties") is False and isinstance(value, dict):
            missing.extend(f"{path}.{key}" for key in definition["properties"].keys() - value.keys())
            unknown.extend(f"{path}.{key}" for key in value.keys() - definition["properties"].keys())
            for key in value.keys() & definition["properties"].keys():
                walk(f"{path}.{key}", value[key], definition["properties"][key])
        elif "properties" not in definition and "additionalProperties" not in definition and definition.get("type") == "object":
            unknown.append(f"{path} accepts any key")

    walk("", values, schema)
    # Kubernetes-defined structures, and the configuration, may be left empty.
    free = (".podMonitor.selector", ".sidecar.config", ".dashboards.instanceSelector", ".targets", ".collector.affinity", ".sidecar.resources", ".collector.resources")
    missing = [path for path in missing if not path.startswith(free)]
    assert not unknown and not missing, (unknown, missing)
