"""The configuration snippets in the documents: each is accepted by its program."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import documents
import helm_chart
import names
from documents import ROOT
from helm_chart import CHART
from process import BINARY


def every_configuration_snippet_is_accepted():
    """Values of the chart, tokometer's own configuration, and that of Prometheus and its adapter, identified by their keys."""
    helm_chart.needs_helm()
    load = helm_chart.yaml.safe_load
    chart = load((CHART / "values.yaml").read_text())
    own = json.loads((ROOT / "config" / "schema.json").read_text())["properties"].keys()
    counts = {"values": 0, "configuration": 0, "prometheus": 0, "adapter": 0, "pod": 0, "mesh": 0}
    for file in documents.FILES:
        for snippet in documents.fenced(file, "yaml"):
            values = load(snippet)
            where = f"{file.name}: {snippet}"
            if values.keys() <= chart.keys():
                assert helm_chart.documents(helm_chart.render({"sidecar": {}, **values})), where
                counts["values"] += 1
            elif values.keys() <= own:
                with tempfile.TemporaryDirectory() as directory:
                    key = Path(directory) / "tenant-key"
                    key.write_text("a key that nobody knows, of 32 bytes")
                    key.chmod(0o600)
                    config = Path(directory) / "tokometer.yaml"
                    if "/etc/engine-tls" in snippet:
                        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=engine", "-keyout", f"{directory}/tls.key", "-out", f"{directory}/tls.crt"]
                        subprocess.run(command, check=True, capture_output=True, timeout=60)
                        (Path(directory) / "ca.crt").write_text((Path(directory) / "tls.crt").read_text())
                    config.write_text(snippet.replace("/etc/tokometer/tenant-key", str(key)).replace("/etc/engine-tls", directory))
                    done = subprocess.run([BINARY, "check", "--config", config], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, f"{where}: {done.stderr}"
                counts["configuration"] += 1
            elif values.get("kind") == "PeerAuthentication":
                # Istio's schema is not available here.
                assert values["apiVersion"] == "security.istio.io/v1" and values["spec"]["portLevelMtls"] == {"9464": {"mode": "DISABLE"}}, where
                counts["mesh"] += 1
            elif "scrape_configs" in values:
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
                    config.write(snippet)
                    config.flush()
                    documents.promtool("config", "--syntax-only", config.name)
                counts["prometheus"] += 1
            elif values.keys() == {"rules"}:
                # The template of prometheus-adapter, filled in: an expression over an existing series.
                [rule] = values["rules"]
                series = re.match(r"\w+", rule["seriesQuery"])[0]
                assert series == names.IN_FLIGHT and "<<.LabelMatchers>>" in rule["metricsQuery"], where
                assert rule["name"]["as"] == chart["autoscaling"]["hpa"]["metric"], where
                counts["adapter"] += 1
            else:
                # Part of a pod.
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": values}
                assert helm_chart.kubernetes_problems(pod) == {}, f"{where}: {helm_chart.kubernetes_problems(pod)}"
                counts["pod"] += 1
    assert all(counts.values()) and counts["values"] >= 9, counts
    print(f"    {counts}")


def every_named_value_exists():
    helm_chart.needs_helm()
    values = helm_chart.yaml.safe_load((CHART / "values.yaml").read_text())
    for guide in documents.FILES:
        for word in re.findall(r"`((?:sidecar|policy|targets|podMonitor|prometheusRule|dashboards|collector|autoscaling)\.[a-zA-Z.]+)`", guide.read_text()):
            value = values
            # In values.yaml, `config` is empty: the schema of the configuration defines its keys.
            for key in word.partition(".config.")[0].split("."):
                assert key in value, f"{guide.name}: unknown value {word}"
                value = value[key]


def every_query_is_valid_promql():
    checked = 0
    for file in documents.FILES:
        for query in (line for snippet in documents.fenced(file, "promql") for line in snippet.splitlines() if line.strip()):
            done = subprocess.run(["promtool-3", "promql", "format", "--experimental", query], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{file.name}: {query}: {done.stderr}"
            checked += 1
    assert checked >= 5, checked
