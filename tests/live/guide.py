"""The documents from a newcomer's perspective: every command that needs no cluster is run as written.

Stand-ins for `helm` and `kubectl` store files instead of using a cluster (tests/live/stand_ins): the first contains
Helm's own engine, the second accepts only valid objects.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import documents
import helm_chart
import names
from documents import ROOT
from namespace import Namespace
from process import BINARY, Skip, until

STAND_INS = Path(__file__).resolve().parent / "stand_ins"
DEPLOYMENT = ROOT / "tests" / "fixtures" / "inject" / "deployment.yaml"
# Values that a reader substitutes for placeholders in capitals.
PLACEHOLDERS = {
    "REGISTRY/tokometer": "registry.example/tokometer",
    "NAMESPACE": "llm",
    "IMAGE": "registry.example/tokometer:1",
    "POD": "vllm-0",
    "NEW": "0.2.0",
    # A path that only an administrator can write to.
    "/var/lib/grafana/dashboards": "dashboards",
}

INSTALL = "helm install tokometer charts/tokometer --namespace observability --create-namespace --set image.repository=REGISTRY/tokometer"
INSTALL_WITHOUT_SIDECAR = "helm install tokometer charts/tokometer --namespace observability --create-namespace --set sidecar.enabled=false"
LABEL = """kubectl -n NAMESPACE patch deployment vllm --type merge -p '{"spec":{"template":{"metadata":{"labels":{"tokometer/inject":"true"}}}}}'"""
CHECK_POD = "kubectl get deployment vllm -o yaml | tokometer check --pod -"
INJECT = "kubectl get deployment vllm -o yaml | tokometer inject --image IMAGE --explain | kubectl apply -f -"
NEW_IMAGE = "kubectl -n NAMESPACE set image pod/POD tokometer=REGISTRY/tokometer:NEW"
RULES = "tokometer rules --config tokometer.yaml --format prometheusrule > rules.yaml"
UPGRADE = "helm upgrade tokometer charts/tokometer --namespace observability --reuse-values --set-file prometheusRule.content=rules.yaml"
CUSTOM_RULES = "tokometer rules --config tokometer.yaml > tokometer.rules.yaml"
TRIAL_RULES = "tokometer rules --time-scale 60 > trial.rules.yaml"
INHIBITION = "tokometer rules --format alertmanager > inhibit.yaml"
DASHBOARDS = "tokometer dashboards --out /var/lib/grafana/dashboards --config tokometer.yaml"
QUERIES = "tokometer dashboards --queries"
RUN = "tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001"
RUN_WITH_SPANS = "tokometer run --listen :8000 --upstream :8001 --otlp-receiver 127.0.0.1:4317 --set otlp.endpoint=http://collector:4318"
REQUEST_COUNTS = "curl -s localhost:9464/metrics | grep tokometer_requests_total"
VERIFY = "tokometer verify --relay http://127.0.0.1:8000 --upstream http://127.0.0.1:8001"
HELP = "make help"
REPLAY = "tokometer replay production.pcap"

# Commands of the tutorial, in order.
SIM = "tokometer sim --listen 127.0.0.1:8001 --max-concurrency 4 --request-metrics"
RUN_LOCAL = "tokometer run --listen 127.0.0.1:8000 --upstream 127.0.0.1:8001"
CHAT = """curl -s localhost:8000/v1/chat/completions -H 'content-type: application/json' -d '{"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}'"""
FIRST_VALUE = "curl -s localhost:9464/metrics | grep 'tokometer_requests_total.*outcome=\"ok\"'"
FOUR_CLIENTS = "tokometer load --url http://127.0.0.1:8000 --concurrency 4 --for 10m"
PROMETHEUS = "prometheus --config.file=prometheus.yml"
TWELVE_CLIENTS = "tokometer load --url http://127.0.0.1:8000 --concurrency 12 --for 10m"
FIRING = "curl -s localhost:9090/api/v1/alerts"
SLOWEST = "curl -s 'localhost:9464/requests?limit=1'"
SIM_WITH_SLOTS = "tokometer sim --listen 127.0.0.1:8001 --max-concurrency 32 --request-metrics"
CHECK_CONFIG = "tokometer check --config tokometer.yaml"

# Commands that cannot run here, and where they are run instead.
ELSEWHERE = {
    "docker build -t REGISTRY/tokometer:0.1.0 . && docker push REGISTRY/tokometer:0.1.0": "a registry (tests/image.sh builds the image)",
    "kubectl -n NAMESPACE rollout status deployment vllm": "a cluster",
    "until kubectl -n NAMESPACE run try --image=vllm --labels=tokometer/inject=true --dry-run=server -o yaml -- serve | grep 'name: tokometer$'; do sleep 1; done": "a cluster",
    "kubectl -n NAMESPACE get pods -l tokometer/inject=true -o 'custom-columns=POD:.metadata.name,IP:.status.podIP,INIT:.spec.initContainers[*].name'": "a cluster",
    "kubectl -n NAMESPACE exec POD -c tokometer -- /tokometer verify --relay http://IP:8000 --upstream http://127.0.0.1:8000": "a cluster",
    "kubectl -n NAMESPACE port-forward deployment/vllm 9464 &": "a cluster",
    "kubectl -n NAMESPACE exec POD -c tokometer -- /tokometer drain --wait": "a cluster (the LLMSidecarParseFallback runbook contains it)",
    'kubectl -n NAMESPACE annotate pod POD --overwrite "tokometer/config=$(cat tokometer.yaml)"': "a cluster (tests/live/cluster/releases.py)",
    "tcpdump -i any -s 0 -B 65536 -w production.pcap 'tcp port 8000'": "root (tests/fixtures/pcap/record.sh)",
    "kubectl debug POD -n NAMESPACE --image nicolaka/netshoot --container capture --profile=general -- sleep 3600": "a cluster",
    "kubectl exec POD -n NAMESPACE -c capture -- tcpdump -i any -s 0 -B 65536 -U -w - 'tcp port 8000' > production.pcap": "a cluster",
    "tokometer run --listen 0.0.0.0:8000 --upstream 127.0.0.1:8001 --rewrite include_usage,traceparent,request_id": "free ports (tests/live/rewrite.py runs it on others)",
    "tokometer top": "a terminal (tests/live/top.py)",
    "tokometer tap --port 8000 --top": "the capability NET_RAW (tests/it/tap runs it)",
    "kubectl debug POD -it --image IMAGE --target CONTAINER --profile=general -- tokometer tap --port 8000 --top": "a cluster (tests/live/cluster/ephemeral.py)",
    """echo '{"securityContext":{"runAsUser":0,"runAsNonRoot":false,"capabilities":{"drop":["ALL"],"add":["NET_RAW"]}}}' > tap.json""": "the next command needs a cluster",
    "kubectl debug POD -it --image IMAGE --target CONTAINER --profile=general --custom tap.json -- tokometer tap --port 8000 --top": "a cluster (tests/live/cluster/ephemeral.py)",
    "cargo install --locked --path .": "minutes of compiling",
    "docker build -t tokometer . && docker run --rm -it -p 9464:9464 tokometer demo": "Docker (tests/image.sh builds the image and runs its demo)",
    "docker run --network host tokometer run --listen :8000 --upstream :8001": "Docker (tests/image.sh builds and runs the image)",
    "tokometer demo": "a terminal (tests/live/top.py draws it, tests/it/demo.rs runs it)",
    "cargo run --release -- demo": "minutes of compiling (tests/it/demo.rs runs the demo)",
    "make test": "this test is part of it",
    "make test-all": "this test is part of it",
    "make check": "make test runs the same stages",
    "make bench": "fifty minutes",
    "cargo bench --bench relay -- --render": "measurements from make bench",
    "cargo build --release --manifest-path benches/peers/pingora-proxy/Cargo.toml --target-dir target/peers": "minutes of compiling (make bench)",
}
# Blocks that are not commands: their first lines.
NO_COMMANDS = {
    "count by (version) (tokometer_build_info)",
    "lost = request rate before the outage x duration of the outage - evaluated requests - waiting requests",
    "for + (long window x burn rate x (1 - T))",
    "ttft_network_share = (request transfer + round trip) / (request transfer + round trip + TTFT)",
    "Deployment/vllm: injected",
    "components:",
    "initContainers:",
    "ok",
    "clients -> proxy (listen, relay) -> inference server",
    "engine --OTLP--> tokometer --OTLP, the same bytes--> collector",
    "client ──mTLS──▶ Envoy or ztunnel ──plain, pod IP:8000──▶ tokometer ──127.0.0.1:8000──▶ engine",
    "engine_spans:",
    "(input - cached) * input_per_million + cached * cached_input_per_million + output * output_per_million",
    "chat my-model                SERVER    from the first byte of the request to the end of the response",
    "direct:  http://127.0.0.1:8001, model sim on vLLM",
    "direct, ms  proxied, ms   added, ms",
}

# Commands that were started, and reasons why others could not be.
_started, _skipped = set(), []


def _fill_placeholders(command):
    for placeholder, value in PLACEHOLDERS.items():
        command = re.sub(rf"(?<!\w){re.escape(placeholder)}(?!\w)", value, command)
    return command


class Reader:
    """A reader in a checkout of this repository, with a configuration, and with the Deployment `vllm` in a cluster."""

    def __init__(self, command_prefix=()):
        helm_chart.needs_helm()
        self.command_prefix = command_prefix
        self._directory = tempfile.TemporaryDirectory(prefix="tokometer-guide-")
        self.directory = Path(self._directory.name)
        (self.directory / "bin").mkdir()
        (self.directory / "bin" / "tokometer").symlink_to(Path(BINARY).resolve())
        for name in ("charts", "config", "Makefile"):
            (self.directory / name).symlink_to(ROOT / name)
        (self.directory / "tokometer.yaml").write_text('{"slo": {"ttft": [{"name": "mine", "max": "900ms"}]}}')
        self.put("default", "deployment-vllm", helm_chart.yaml.safe_load(DEPLOYMENT.read_text()))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOKOMETER_", "OTEL_"))}
        path = f"{self.directory}/bin:{STAND_INS}:{os.environ['PATH']}"
        self.environment = {**inherited, "STAND_IN": str(self.directory / "cluster"), "PATH": path}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._directory.cleanup()

    def _argv(self, command):
        _started.add(command)
        return [*self.command_prefix, "bash", "-euo", "pipefail", "-c", _fill_placeholders(command)]

    def run(self, command, code=0):
        """Standard output and error of a command, which must exit with this code."""
        done = subprocess.run(self._argv(command), cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"{command}: exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout, done.stderr

    @contextlib.contextmanager
    def running(self, command, exit_code=0):
        """A command that runs until it is stopped by SIGTERM, and then exits with this code."""
        with tempfile.TemporaryFile("w+") as log:
            child = subprocess.Popen(self._argv(command), cwd=self.directory, env=self.environment, stdout=log, stderr=log)
            try:
                yield child
                assert child.poll() is None, f"{command}: exited with {child.returncode}"
            finally:
                child.terminate()
                code = child.wait(30)
                log.seek(0)
                text = log.read()
            assert code == exit_code, f"{command}: exit code {code} after SIGTERM: {text[-2000:]}"

    def fetch(self, url, body=None):
        """Curl's output in the network of the commands; "" while there is no response."""
        more = ["-H", "content-type: application/json", "-d", json.dumps(body)] if body else []
        argv = [*self.command_prefix, "curl", "-sf", "--max-time", "20", *more, url]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout if done.returncode == 0 else ""

    def file(self, name):
        return (self.directory / name).read_text()

    def put(self, namespace, name, content):
        file = self.directory / "cluster" / "objects" / namespace / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))

    def stored(self, namespace, name):
        return json.loads(self.file(f"cluster/objects/{namespace}/{name}.json"))

    def released(self):
        text = json.loads(self.file("cluster/releases/observability/tokometer.json"))["manifest"]
        return [document for document in helm_chart.yaml.safe_load_all(text) if document]


def chart_installs_and_its_policy_selects_the_label():
    with Reader() as reader:
        notes, _ = reader.run(INSTALL)
        assert "NOTHING IS INJECTED" not in notes and "default: vllm on port 8000 by address-split" in notes, notes
        [policy] = helm_chart.of_kind(reader.released(), "MutatingAdmissionPolicy")
        selector = policy["spec"]["matchConstraints"]["objectSelector"]["matchLabels"]
        reader.put("llm", "deployment-vllm", helm_chart.yaml.safe_load(DEPLOYMENT.read_text()))
        reader.run(LABEL)
        labels = reader.stored("llm", "deployment-vllm")["spec"]["template"]["metadata"]["labels"]
        assert labels == {"app": "vllm", **selector}, (labels, selector)
        [image] = [variable["expression"] for variable in policy["spec"]["variables"] if variable["name"] == "image"]
        assert image.startswith('"registry.example/tokometer'), f"the image of the command is not that of the sidecar: {image}"


def without_the_policy_pods_are_unchanged():
    with Reader() as reader:
        notes, _ = reader.run(INSTALL_WITHOUT_SIDECAR)
        assert "Monitors, rules and dashboards only" in notes, notes
        assert not {d["kind"] for d in reader.released()} & {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}


def piped_inject_changes_the_deployment_as_documented():
    with Reader() as reader:
        reader.run(CHECK_POD)
        _, report = reader.run(INJECT)
        [shown] = [block for block in documents.blocks(ROOT / "docs" / "how-to" / "attach.md") if block[0].startswith("Deployment/vllm")]
        lines = report.splitlines()
        for line in shown:
            assert any(real.startswith(line.removesuffix("...")) for real in lines), f"{line!r} is not reported: {report}"
        spec = reader.stored("default", "deployment-vllm")["spec"]["template"]["spec"]
        assert spec["initContainers"][0]["image"] == "registry.example/tokometer:1" and "--host=127.0.0.1" in spec["containers"][0]["args"], spec
        # A pod of the Deployment, in which only the sidecar is changed.
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vllm-0"}, "spec": spec}
        reader.put("llm", "pod-vllm-0", pod)
        reader.run(NEW_IMAGE)
        changed = reader.stored("llm", "pod-vllm-0")["spec"]
        assert changed["initContainers"][0].pop("image") == "registry.example/tokometer:0.2.0"
        spec["initContainers"][0].pop("image")
        assert changed == spec, "more than the image has changed"


def chart_contains_rules_of_custom_objectives():
    with Reader() as reader:
        reader.run(INSTALL)
        reader.run(RULES)
        reader.run(UPGRADE)
        # Helm detects no operator here and reports that, but still stores the values.
        values = json.loads(reader.file("cluster/releases/observability/tokometer.json"))["values"]
        rules = reader.file("rules.yaml")
        assert values == {"image": {"repository": "registry.example/tokometer"}, "prometheusRule": {"content": rules}}, values
        assert "mine" in rules, "the objective is in no rule"
        for command, file in ((CUSTOM_RULES, "tokometer.rules.yaml"), (TRIAL_RULES, "trial.rules.yaml")):
            reader.run(command)
            assert "SUCCESS" in documents.promtool("rules", reader.directory / file), command
        reader.run(INHIBITION)
        assert reader.file("inhibit.yaml") == (documents.ROOT / "config" / "rules" / "alertmanager.yaml").read_text()


def dashboards_are_written_to_the_grafana_directory():
    with Reader() as reader:
        reader.run(DASHBOARDS)
        written = sorted(file.name for file in (reader.directory / "dashboards").glob("*.json"))
        assert written == sorted(file.name for file in (ROOT / "dashboards").glob("*.json")), written
        listed, _ = reader.run(QUERIES)
        assert listed.count("tokometer_") > 20, listed[:500]
        assert "make test" in reader.run(HELP)[0]


def tcpdump_capture_is_read():
    with Reader() as reader:
        shutil.copy(ROOT / "tests" / "fixtures" / "pcap" / "veth.pcap", reader.directory / "production.pcap")
        shown, _ = reader.run(REPLAY)
        assert "5 requests, 0 gaps, 0 truncated packets" in shown and shown.count(" ok ") == 3, shown


def _separate_network():
    """A network in which the ports of the documented commands are free."""
    try:
        if not shutil.which("curl"):
            raise Skip("no curl")
        return Namespace((8000, 8001, 9464, 4317, 9090))
    except Skip as reason:
        _skipped.append(str(reason))
        raise


def proxied_request_is_counted_and_verified():
    with _separate_network() as namespace, Reader(namespace.command_prefix) as reader:
        namespace.start("sim", [BINARY, "sim", "--listen", "127.0.0.1:8001", *names.SIM_UNPACED])
        until(lambda: reader.fetch("http://127.0.0.1:8001/v1/models"), "the server responds", 30)
        with reader.running(RUN):
            until(lambda: reader.fetch("http://127.0.0.1:9464/readyz"), "the relay is ready", 30)
            body = {"model": "sim", "max_tokens": 5, "messages": [{"role": "user", "content": "Say hello."}]}
            assert "usage" in reader.fetch("http://127.0.0.1:8000/v1/chat/completions", body)
            until(lambda: reader.fetch("http://127.0.0.1:9464/metrics").count(f"{names.REQUESTS}{{") >= 1, "the request is counted")
            shown, _ = reader.run(REQUEST_COUNTS)
            assert any(line.endswith(" 1") for line in shown.splitlines() if line.startswith(names.REQUESTS)), shown
            # The warning equals the one in the document, because the simulator sends no usage.
            report, _ = reader.run(VERIFY)
            shown = [line for block in documents.blocks(ROOT / "docs" / "how-to" / "verify.md") for line in block if line.startswith("WARN")]
            assert [line for line in report.splitlines() if line.startswith("WARN      usage")] == shown != [], (report, shown)
            assert "added, ms" in report and "byte for byte" in report, report
        with reader.running(RUN_WITH_SPANS):
            until(lambda: reader.fetch("http://127.0.0.1:9464/readyz"), "the relay is ready", 30)


def tutorial_leads_to_an_alert_and_its_cause():
    """Each step of docs/start/tutorial.md, with the outcome that the page promises."""
    if not shutil.which("prometheus"):
        _skipped.append("no prometheus")
        raise Skip("no prometheus (component prometheus)")
    tutorial = ROOT / "docs" / "start" / "tutorial.md"
    with _separate_network() as namespace, Reader(namespace.command_prefix) as reader, contextlib.ExitStack() as running:
        def start(command, exit_code=0):
            return running.enter_context(reader.running(command, exit_code))

        def alerts(state):
            found = json.loads(reader.run(FIRING)[0])["data"]["alerts"]
            return [alert for alert in found if alert["labels"]["alertname"] == "LLMTTFTErrorBudgetBurn" and alert["state"] == state]

        simulator = contextlib.ExitStack()
        running.push(simulator)
        simulator.enter_context(reader.running(SIM))
        start(RUN_LOCAL)
        until(lambda: reader.fetch("http://127.0.0.1:8000/v1/models"), "the proxy forwards", 30)
        assert "usage" in json.loads(reader.run(CHAT)[0])
        until(lambda: reader.fetch("http://127.0.0.1:9464/metrics").count('outcome="ok"'), "the request is counted")
        value, _ = reader.run(FIRST_VALUE)
        assert len(value.splitlines()) == 1 and value.endswith(" 1\n"), value
        start(FOUR_CLIENTS, -15)
        until(lambda: json.loads(reader.fetch("http://127.0.0.1:9464/live/snapshot"))["in_flight"]["streaming"] == 4, "four streams", 30)
        reader.run(TRIAL_RULES)
        [settings] = documents.fenced(tutorial, "yaml")
        (reader.directory / "prometheus.yml").write_text(settings)
        start(PROMETHEUS)
        until(lambda: reader.fetch("http://127.0.0.1:9090/-/ready"), "Prometheus is ready", 60)
        with reader.running(TWELVE_CLIENTS, -15):
            [alert] = until(lambda: alerts("firing"), "the alert fires", 90)
            assert "(target 99 %)" in alert["annotations"]["summary"] and alert["annotations"]["first_step"], alert
            [slowest, *_] = json.loads(reader.run(SLOWEST)[0])["slowest_first_token"]
            assert slowest["phase_queue_ms"] > 0.9 * slowest["time_to_first_token_ms"] > 2000, slowest
            simulator.close()
            simulator.enter_context(reader.running(SIM_WITH_SLOTS))
            until(lambda: not alerts("firing"), "the alert resolves", 150)


def check_explains_configured_objectives():
    with Reader() as reader:
        explained, _ = reader.run(CHECK_CONFIG)
        assert "mine 99 %, ttft_seconds 0.9" in explained, explained


def every_command_was_run_or_has_a_reason():
    """The last test: commands that the tests above did not start must be in ELSEWHERE."""
    shown, others = set(), set()
    for file in documents.FILES:
        shown.update(documents.commands(file))
        others.update(block[0].strip() for block in documents.blocks(file) if not documents.is_shell(block))
    assert others == NO_COMMANDS, f"blocks that are not commands: {others ^ NO_COMMANDS}"
    stale = (_started | ELSEWHERE.keys()) - shown
    assert not stale, f"not found in any document: {stale}"
    missing = shown - _started - ELSEWHERE.keys()
    if missing and _skipped:
        raise Skip(f"{len(missing)} commands were not run: {'; '.join(_skipped)}")
    assert not missing, f"neither run nor in ELSEWHERE: {missing}"
    print(f"    {len(_started)} commands run as written, {len(ELSEWHERE)} not, each with its reason")
