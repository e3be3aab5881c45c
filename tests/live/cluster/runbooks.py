"""Every command of docs/runbooks on the node: a Deployment with traffic and failures, a Prometheus with the rules, and the chart as the
pages assume it (the release `tokometer` in the namespace `observability`)."""

import asyncio
import contextlib
import copy
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from documents import PROGRAMS, ROOT, fenced
from process import BINARY, Skip, until
from prometheus import Prometheus
from stream import Stream

from cluster import release, settings, traffic, workloads
from cluster.images import TOKOMETER
from cluster.rig import cluster
from cluster.shell import Shell

PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
RELEASE, APP, SKIPPED, MODEL, TENANT = "observability", "vllm", "skipped", "sim", "acme"
# The durations of the rules are divided by this.
SCALE = 60
# A second tag of the same image, which Kubernetes treats as another version.
OTHER = TOKOMETER.rpartition(":")[0] + ":other"
# Every objective, tenants, prices and a budget.
CONFIG = {
    "slo": {"models": [MODEL]},
    "tenants": {"enabled": True, "from_headers": ["x-tenant"], "names": {TENANT: TENANT}},
    "prices": {"currency": "USD", "models": [{"model": "*", "input_per_million": 0.5, "output_per_million": 1.5}]},
    "budgets": [{"name": "day", "tokens_per_day": 1000000}],
}
# Commands that change something; they run after all others. The test waits for their results.
CHANGES = re.compile(r"^(kubectl (annotate|delete|rollout|scale|cordon|uncordon|patch|set|exec .* --container tokometer) |helm (upgrade|rollback) |tokometer inject )")
# The commands among them that replace pods or containers.
REPLACES = re.compile(r"^kubectl (delete|rollout (undo|restart)|scale|patch|exec) ")
# Commands that fail on this node: a part of the command -> the expected error.
UNSUPPORTED = {"kubectl top ": "Metrics API not available", " -- nvidia-smi": '"nvidia-smi": executable file not found'}
# Parts of commands that have no output in this test, and the reasons.
EMPTY = {
    " offset 1d": "Prometheus is younger than a day",
    "[1d:5m]": "Prometheus is younger than the step",
    " > 0": "every connection is observed",
    "count by (job) (up == 0)": "every target responds",
    "tokometer_engine_wedged": "no engine hangs",
    "ALERTS{": "no alert fires",
    "tokometer_engine_preemptions_total": "the simulator preempts no request",
    "tokometer_cached_tokens_total": "the simulator reports no cached tokens",
    "component=collector": "the collector is not enabled",
    "kubectl get networkpolicy": "there is none",
}


@dataclass
class Block:
    """The commands or queries of one block, and the texts that follow as their expected output."""

    page: str
    lines: list
    expected: list = field(default_factory=list)


def _blocks(page):
    """The indented blocks of a page; a fenced text belongs to the block before it."""
    found, fenced_lines, before = [], None, ""
    for line in [*page.read_text().splitlines(), ""]:
        if line.lstrip().startswith("```"):
            fenced_lines = None if fenced_lines is not None else []
            if fenced_lines is not None:
                found[-1].expected.append(fenced_lines)
        elif fenced_lines is not None:
            fenced_lines.append(line)
        elif re.match(r" {4,}\S", line) and (not before.strip() or before is found[-1].lines[-1]):
            if not before.strip():
                found.append(Block(page.stem, []))
            found[-1].lines.append(line)
            before = line
            continue
        before = line
    for block in found:
        block.lines = [line.strip() for line in block.lines]
    # Commands within a sentence.
    quoted = re.findall(r"`((?:kubectl|curl|helm) [^`]*[A-Z]{3}[^`]*)`", page.read_text())
    return found + [Block(page.stem, [line]) for line in quoted]


class Incident(Shell):
    """What a reader of the pages can use: the alert's labels, a shell, and Prometheus."""

    prometheus = None

    def pod(self, app=APP):
        """The oldest ready pod of an app, to which the failures are applied before the first command."""
        found = [pod for pod in self.node.api.get("Pod", self.namespace) if pod["metadata"]["labels"].get("app") == app and "deletionTimestamp" not in pod["metadata"]]
        return min(found, key=lambda pod: (not workloads.ready(pod), pod["metadata"]["creationTimestamp"]))

    def unfilled(self, text):
        """The text with words in capitals in place of the alert's labels."""
        return text.replace(self.namespace, "NAMESPACE")

    def filled(self, text, pod=None):
        """The text with this incident's values in place of the words in capitals."""
        pod = pod or self.pod()
        values = {
            "NAMESPACE": self.namespace, "POD": pod["metadata"]["name"], "INSTANCE": f"{workloads.address(pod)}:{workloads.ADMIN}", "DEPLOYMENT": APP,
            "REPLICAS": "2", "NODE": settings.NODE, "MODEL": MODEL, "SLO": "ttft", "BUDGET": "day", "FILE": "injected.yaml",
            "REGISTRY": TOKOMETER.rpartition("/")[0], "VERSION": OTHER.rpartition(":")[2], "PREVIOUS": TOKOMETER.rpartition(":")[2],
            "COLLECTOR_NAMESPACE": RELEASE, "COLLECTOR": "collector.invalid",
        }
        return re.sub(r"\b[A-Z][A-Z_]+\b", lambda word: values.get(word[0], word[0]), text)

    def query(self, expr):
        return subprocess.run(["promtool-3", "query", "instant", self.prometheus.url, expr], capture_output=True, text=True, timeout=60)


def _shape(text):
    """The part that all outputs of a command share: the labels of a query, the columns of a table, or the fields of an object."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    if lines[0].startswith("{") and "=>" in lines[0]:
        return "labels", set(re.findall(r'(\w+)="', text))
    if lines[0].startswith("{"):
        return "fields", set(re.findall(r'"(\w+)":', text))
    if re.fullmatch(r"[A-Z][A-Z()a-z -]+", lines[0]) and lines[0].split()[0].isupper():
        return "columns", set(lines[0].split())
    if lines[0].rstrip().endswith(":"):
        return "fields", set(re.findall(r"^ *(?:- )?([A-Z]?[\w/ -]+):", text, re.M))
    return None


def _difference(expected, actual):
    """The difference between the shapes of the expected and the actual output; None if there is none."""
    wanted, found = _shape("\n".join(expected)), _shape(actual)
    if wanted is None:
        return None
    if wanted[0] == "fields":
        missing = [name for name in wanted[1] if not re.search(rf'^ *(?:- )?"?{re.escape(name)}"?:|"{re.escape(name)}":', actual, re.M)]
        return f"no {missing}" if missing else None
    if found is None or found[0] != wanted[0]:
        return f"no {wanted[0]}"
    return None if wanted[1] <= found[1] and (wanted[0] == "columns" or wanted[1] == found[1]) else f"{found[1]} instead of {wanted[1]}"


@contextlib.contextmanager
def _deployment(node, namespace):
    """The Deployment with its sidecar, and a pod that the policy refuses."""
    # The namespace is kept, because Helm does not delete a namespace that `--create-namespace` created.
    if RELEASE not in {item["metadata"]["name"] for item in node.api.get("Namespace")}:
        node.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RELEASE}})
    with traffic._prometheus_operator(node), release.installed(node, RELEASE, {"sidecar": {"config": CONFIG}}, pods=namespace):
        # Two revisions, so that the second can be undone.
        node.api.create(workloads.deployment(APP, workloads.server("--request-metrics"), replicas=0), namespace)
        node.api.patch("Deployment", namespace, APP, {"spec": {"replicas": 2, "template": {"metadata": {"annotations": {"revision": "2"}}}}})
        node.api.create(workloads.pod(SKIPPED, workloads.server("--port", "8001", readinessProbe=workloads.READINESS | {"httpGet": {"path": "/health", "port": 8001}})), namespace)
        node.api.create(workloads.service(APP), namespace)
        workloads.wait_ready(node, namespace, APP, 2)
        workloads.wait_ready(node, namespace, SKIPPED)
        yield


def _restart_containers(node, namespace, pod):
    """Kills the sidecar and the engine of the pod, so that `logs --previous` has output; returns the restarted pod."""
    for container in ("tokometer", "vllm"):
        node.kill_container(pod, container)
        pod = workloads.wait_restarted(node, namespace, pod, container)
    return pod


async def _send_requests(pod):
    """Sends requests with each outcome: successful ones, and at least one that misses each objective. Returns one that stays open."""
    faults = [None, None, None, "status:503", "error-event", "cut", "stall:6", "slow-headers:3"]
    options = {"host": workloads.address(pod), "headers": {"x-tenant": TENANT}, "tokens": 200}
    streams = [await Stream.open(workloads.PORT, fault=fault, **options) for fault in faults]
    aborted, waiting = [await Stream.open(workloads.PORT, fault="hang:600", **options) for _ in range(2)]
    await asyncio.wait_for(asyncio.gather(*(stream.read_rest() for stream in streams)), 60)
    aborted.abort()
    for stream in (*streams, aborted):
        await stream.close()
    return waiting


def _scrape_configs(node, namespace):
    """The documented scrape configuration for a Prometheus without the operator, with this cluster's credentials, and the same for vLLM's page."""
    found = [text for file in (ROOT / "docs").rglob("*.md") for text in fenced(file, "yaml") if "kubernetes_sd_configs" in text]
    [config] = yaml.safe_load(found[0])["scrape_configs"]
    config["kubernetes_sd_configs"][0] |= {"kubeconfig_file": node.environment["KUBECONFIG"], "namespaces": {"names": [namespace]}}
    engine = copy.deepcopy(config) | {"job_name": "vllm"}
    engine["relabel_configs"][0]["regex"] = "http"
    return [config, engine]


@contextlib.contextmanager
def _prometheus(node, namespace, directory, config, **more):
    """A Prometheus that discovers the pods, with the rules of this configuration and shorter times."""
    if not shutil.which("promtool-3"):
        raise Skip("no promtool (component promtool-3)")
    settings_file, rules = Path(directory) / "tokometer.yaml", Path(directory) / "tokometer.rules.yaml"
    settings_file.write_text(json.dumps(config))
    rules.write_text(node.run(BINARY, "rules", "--config", str(settings_file), "--time-scale", str(SCALE)).stdout)
    prometheus_config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": _scrape_configs(node, namespace),
    }
    with Prometheus(Path(directory) / "prometheus", prometheus_config | more) as prometheus:
        until(lambda: len(prometheus.query("tokometer_build_info")) == 2, "both pods are scraped", 60)
        yield prometheus


def every_runbook_command_runs():
    node = cluster()
    node.rename_image(TOKOMETER, OTHER)
    with node.namespace("runbooks") as namespace, tempfile.TemporaryDirectory() as directory, _deployment(node, namespace):
        with Incident(node, namespace, directory) as incident, _prometheus(node, namespace, directory, CONFIG) as incident.prometheus:
            pod = _restart_containers(node, namespace, incident.pod())
            blocks = [block for page in PAGES for block in _blocks(page)]
            loop = asyncio.new_event_loop()
            waiting = loop.run_until_complete(_send_requests(pod))
            # Rates need two scrapes.
            rates = 'rate(tokometer_wait_without_first_token_seconds_count{outcome="client_abort_before_first_token"}[1m]) and on () rate(tokometer_slo_events_total{slo="goodput",verdict="bad"}[1m])'
            until(lambda: incident.prometheus.query(rates), "the aborted request is scraped", 60)
            failures = _run_readonly_commands(incident, blocks)
            loop.run_until_complete(waiting.close())
            failures += _run_changing_commands(incident, blocks)
            assert not failures, f"{len(failures)} commands:\n" + "\n".join(failures)


def _run_readonly_commands(incident, blocks):
    """Runs each command that changes nothing once; returns the failures."""
    done, failures, empty = set(), [], 0
    for block in blocks:
        for line in block.lines:
            # The commands of this page apply to a pod without tokometer.
            command = incident.filled(line, incident.pod(SKIPPED) if block.page == "LLMSidecarMissing" and "/proxy/" not in line else None)
            if command in done or CHANGES.match(command):
                continue
            done.add(command)
            result = incident.run(command) if command.split()[0] in PROGRAMS else incident.query(command)
            missing_feature = next((error for part, error in UNSUPPORTED.items() if part in command), None)
            if missing_feature:
                failures += [] if missing_feature in result.stderr else [f"{block.page}: {command}: not {missing_feature}: {result.stderr}"]
            elif result.returncode != 0:
                failures.append(f"{block.page}: {command}: {result.stderr.strip() or result.stdout}")
            elif not (result.stdout or result.stderr).strip() and " > " not in command and not command.endswith("&"):
                empty += 1
                failures += [] if any(part in line for part in EMPTY) else [f"{block.page}: {command}: no output"]
            elif block.expected and line is block.lines[-1] and (why := _difference(block.expected[0], result.stdout)):
                failures.append(f"{block.page}: {command}: {why}:\n{result.stdout[:600]}")
    print(f"    {len(done)} commands and queries that change nothing, {empty} without output")
    return failures


def _run_changing_commands(incident, blocks):
    """Runs each command that changes something once, and waits until the Deployment is ready again; returns the failures."""
    node, namespace = incident.node, incident.namespace
    (incident.directory / "values.yaml").write_text("{}")
    manifest = workloads.deployment("throwaway", replicas=1, labels={})
    injected = subprocess.run([BINARY, "inject", "--image", TOKOMETER], input=json.dumps(manifest), capture_output=True, text=True, check=True, timeout=60)
    (incident.directory / "injected.yaml").write_text(injected.stdout)
    incident.run(f"kubectl apply --namespace {namespace} -f injected.yaml")
    done, failures, is_installed = set(), [], True
    for block in blocks:
        for line in block.lines:
            # Compare the unfilled lines, because the name of a replaced pod differs each time.
            if line in done or not CHANGES.match(line):
                continue
            done.add(line)
            command = incident.filled(line).replace("kubectl apply -f", f"kubectl apply --namespace {namespace} -f")
            if not (is_installed or command.startswith("helm")):
                # Restore the values of the installation, so that new pods get the sidecar.
                release.apply(node, "upgrade", RELEASE, {"targets": [release.target(namespace)], "sidecar": {"config": CONFIG}})
                release.wait_known(node, namespace)
            is_installed = not command.startswith("helm")
            result = incident.run(command)
            if result.returncode != 0:
                failures.append(f"{block.page}: {command}: {result.stderr.strip() or result.stdout}")
            if REPLACES.match(command):
                node.kubectl("--namespace", namespace, "rollout", "status", "deployment", APP, "--timeout=240s")
    print(f"    {len(done)} commands that change something")
    unschedulable = [item["spec"].get("unschedulable") for item in node.api.get("Node")]
    assert unschedulable == [None], "the node does not accept pods again"
    return failures


def runbook_log_lines_match_the_program():
    """Needs no node: the first sentence of each expected line is in the source."""
    source = "\n".join(file.read_text() for folder in ("src", "crates") for file in (ROOT / folder).rglob("*.rs"))
    checked = 0
    for block in [block for page in PAGES for block in _blocks(page)]:
        for target, message in re.findall(r"\b(?:WARN|ERROR) ([\w:]+): (.+)", "\n".join(sum(block.expected, []))):
            sentence = re.split(r"(?<=[a-z])[.:;] | \w+=", message)[0]
            assert sentence in source, f"{block.page}: {sentence}"
            module = ROOT / ("src" if target.startswith("tokometer::") else f"crates/{target.partition('::')[0].removeprefix('tokometer_')}/src") / target.partition("::")[2].replace("::", "/")
            assert module.with_suffix(".rs").exists() or (module / "mod.rs").exists(), f"{block.page}: {target}"
            checked += 1
    assert checked >= 4, checked
