"""Follows the documentation on a real cluster, as three readers would, and logs the time of each step (docs/reference/readers-test.md)."""

import asyncio
import json
import re
import tempfile
import time
from pathlib import Path

import alerts
import names
from documents import ROOT, commands
from helm_chart import CACHE
from process import MODEL, Process, Skip, until
from stream import Stream

from cluster import release, runbooks, workloads
from cluster.images import TOKOMETER
from cluster.rig import cluster
from cluster.shell import Shell

RUNBOOKS, GRAFANA = "https://runbooks.example.org/llm", "https://grafana.example.org"
# Silence bounds for wedge detection, far below the defaults.
WEDGE = {"decode": "5s", "prefill": "5s"}
CLIENTS = 4


def _ready(node, namespace, sidecar):
    """The pod of the Deployment, once the rollout is complete."""
    [pod] = workloads.wait_ready(node, namespace, "vllm")
    assert workloads.has_sidecar(pod) == sidecar, pod["spec"]
    return pod


def _template(node, namespace):
    """The Deployment's pod template without annotations, where `kubectl rollout restart` stores a timestamp."""
    template = node.api.get("Deployment", namespace, "vllm")["spec"]["template"]
    return {"labels": template["metadata"]["labels"], "spec": template["spec"]}


def platform_engineer_attaches_and_detaches_a_deployment_with_inject():
    node = cluster()
    with node.namespace("engineer") as namespace, tempfile.TemporaryDirectory() as directory, Shell(node, namespace, directory, log=True) as shell:
        manifest = Path(directory) / "vllm.json"
        manifest.write_text(json.dumps(workloads.deployment("vllm", labels={})))
        shell.check_run(f"kubectl apply -f {manifest.name}", "created")
        shell.check_run("kubectl rollout status deployment vllm")
        workloads.check_response(_ready(node, namespace, False))
        before = _template(node, namespace)
        page = commands(ROOT / "docs" / "how-to" / "attach.md")
        [check] = [command for command in page if "check --pod" in command]
        [inject] = [command for command in page if "tokometer inject --image" in command and command.endswith("kubectl apply -f -")]
        shell.check_run(check)
        shell.check_run(inject.replace("IMAGE", TOKOMETER), "injected")
        shell.check_run("kubectl rollout status deployment vllm")
        pod = _ready(node, namespace, True)
        workloads.check_response(pod)
        shell.note("one chat with the pod's own address and port: status 200")
        shell.check_run("kubectl port-forward deployment/vllm 9464 &")
        measured = f'{names.REQUESTS}{{'
        until(lambda: measured in shell.run("curl -s localhost:9464/metrics").stdout, "the chat is counted", 60)
        shell.check_run(f"curl -s localhost:9464/metrics | grep '^{names.REQUESTS}'", 'outcome="ok"')
        shell.check_run("kubectl get deployment vllm -o yaml | tokometer inject --remove | kubectl apply -f -", "configured")
        shell.check_run("kubectl rollout status deployment vllm")
        workloads.check_response(_ready(node, namespace, False))
        after = _template(node, namespace)
        assert after == before, f"the pods differ from the original ones: {after} {before}"
        shell.note("the Deployment's pods are the same as before; one chat: status 200")


def _freeze_engine(node, namespace, loop):
    """Freezes the engine of a pod in the middle of its streams; returns the pod. The clients' connections stay open without data."""
    pod, other = workloads.wait_ready(node, namespace, runbooks.APP, 2)
    workloads.check_response(other)

    async def open_streams():
        streams = [await Stream.open(workloads.PORT, host=workloads.address(pod), tokens=4000) for _ in range(CLIENTS)]
        assert all(await asyncio.wait_for(asyncio.gather(*(stream.read_events(3) for stream in streams)), 60))
        return streams

    streams = loop.run_until_complete(open_streams())
    node.kill_container(pod, "vllm", "SIGSTOP")
    return pod, streams


def _runbook(alert):
    """The runbook to which the alert links."""
    base, _, name = alert["annotations"]["runbook_url"].rpartition("/")
    assert base == RUNBOOKS, alert["annotations"]
    return ROOT / "docs" / "runbooks" / name


def paged_engineer_finds_the_cause_through_alert_links():
    """Uses only the annotations of the alert, the runbook that they link to, and its commands."""
    node = cluster()
    config = {"slo": {"rules": {"runbook_url": RUNBOOKS, "dashboard_url": GRAFANA}}, "wedge": WEDGE}
    values = {"sidecar": {"config": {"wedge": WEDGE}}}
    with node.namespace("paged") as namespace, release.installed(node, namespace, values), tempfile.TemporaryDirectory() as directory, alerts._OnCall() as on_call:
        node.api.create(workloads.deployment(runbooks.APP, workloads.server(rate=20), replicas=2), namespace)
        workloads.wait_ready(node, namespace, runbooks.APP, 2)
        with alerts._alertmanager(directory, on_call) as port:
            alerting = {"alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}}
            with runbooks.Incident(node, namespace, directory, log=True) as incident, runbooks._prometheus(node, namespace, directory, config, **alerting) as incident.prometheus:
                loop = asyncio.new_event_loop()
                pod, streams = _freeze_engine(node, namespace, loop)
                incident.began = time.monotonic()
                incident.note(f"the engine of {pod['metadata']['name']} freezes with {CLIENTS} open streams")
                _, alert = until(lambda: on_call.find("firing", alertname="LLMTokensStalled", severity="critical"), lambda: f"a page: {on_call.received}", 120)
                _check_diagnosis(incident, alert, pod)
                _, resolved = until(lambda: on_call.find("resolved", alertname="LLMTokensStalled", severity="critical"), "the page is resolved", 120)
                incident.note("Alertmanager reports the alert as resolved")
                pages = {(each["labels"]["alertname"], each["labels"]["severity"]) for _, each in on_call.received if each["labels"]["severity"] == "critical"}
                assert pages == {("LLMTokensStalled", "critical")}, f"one fault, one page: {pages}"
                for stream in streams:
                    loop.run_until_complete(stream.close())


def _check_diagnosis(incident, alert, pod):
    name = pod["metadata"]["name"]
    labels, annotations = alert["labels"], alert["annotations"]
    incident.note(f"{labels['severity']}: {annotations['summary']}")
    assert (labels["severity"], labels["namespace"]) == ("critical", incident.namespace), labels
    assert annotations["dashboard_url"].startswith(f"{GRAFANA}/d/tokometer-overview?"), annotations
    output = incident.check_run(annotations["first_step"], name)
    page = _runbook(alert)
    incident.note(f"the runbook {page.name}")
    blocks = runbooks._blocks(page)
    [first_step] = [block for block in blocks if block.lines[0] == incident.unfilled(annotations["first_step"])]
    assert not runbooks._difference(first_step.expected[0], output), output
    # The alert contains the namespace; the next query of the runbook returns the pod.
    queries = [line for block in blocks for line in block.lines if line.startswith("max by (pod, instance) (tokometer_engine_wedged")]
    found = incident.query(incident.filled(queries[0])).stdout
    assert re.findall(r'pod="([^"]+)"', found) == [name], found
    incident.note(f"{queries[0]} returns {name}")
    steps = {word: next(line for block in blocks for line in block.lines if word in line) for word in (".listeners[]", ".in_flight", "18000:8000", "localhost:18000", "delete pod")}
    state = json.loads(incident.check_run(incident.filled(steps[".listeners[]"], pod), "wedged"))
    assert state[1] == "wedged" and state[2] > state[3], state
    in_flight = json.loads(incident.check_run(incident.filled(steps[".in_flight"], pod)))
    assert (in_flight["streaming"], in_flight["waiting"]) == (CLIENTS, 0), in_flight
    # A direct request to the engine, without tokometer, gets no response either: the engine is the cause.
    incident.check_run(incident.filled(steps["18000:8000"], pod))
    direct = incident.run(incident.filled(steps["localhost:18000"], pod))
    assert direct.returncode == 28 and "timed out" in direct.stderr, (direct.returncode, direct.stderr)
    incident.note(f"$ {steps['localhost:18000'].split(' --header')[0]}: {direct.stderr.strip()}")
    incident.check_run(incident.filled(steps["delete pod"], pod), "deleted")
    workloads.wait_ready(incident.node, incident.namespace, runbooks.APP, 2)
    incident.note("two pods are ready again")


def newcomer_gets_the_first_value_from_their_own_server():
    """Runs the README's commands with a real llama-server in the node's network, where their ports are free."""
    node = cluster()
    server = CACHE / "bin" / "llama-server"
    if not server.exists():
        raise Skip("no llama-server")
    [run] = [command for command in commands(ROOT / "README.md") if command.startswith("tokometer run ")]
    upstream = re.search(r"--upstream \S*:(\d+)", run)[1]
    client = re.search(r"--listen \S*:(\d+)", run)[1]
    with tempfile.TemporaryDirectory() as directory, Shell(node, "default", directory, log=True) as shell:
        argv = [str(server), "-m", str(MODEL), "--port", upstream, "-c", "4096", "-t", "1"]
        with Process("llama-server", argv) as llama, Process("tokometer", ["env", f"PATH={shell.environment['PATH']}", *run.split()]) as tokometer:
            shell.note(f"$ {run}")
            llama.ready(f"http://127.0.0.1:{upstream}/health", 60)
            opened = "The server accepts connections: the listener is open."
            until(lambda: opened in tokometer.output(), lambda: f"the listener is open: {tokometer.output()}", 30)
            shell.note(f"the log of tokometer: {opened}")
            body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True})
            shell.check_run(f"curl -sN localhost:{client}/v1/chat/completions --json '{body}'", "data: [DONE]")
            page = "curl -s localhost:9464/metrics"
            until(lambda: f"{names.REQUESTS}{{" in shell.run(page).stdout, "the request is counted", 30)
            shell.check_run(f"{page} | grep '^{names.REQUESTS}'", 'outcome="ok"')
            shell.check_run(f"{page} | grep '^tokometer_time_to_first_token_seconds_sum'", "seconds_sum")
