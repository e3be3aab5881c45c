"""A small fleet: tokometers in front of servers that work, queue, fail and are down, scraped like the pods of a cluster."""

import contextlib
import json
import subprocess
from pathlib import Path

from cluster_exporters import ClusterExporters
from process import BINARY, Tokometer, free_port, start_sim
from prometheus import Prometheus

# Objectives that the slow server, the saturated server and the faults violate and the other servers meet, plus
# features that are off by default.
SETTINGS = {
    "slo": {
        "availability": [{"name": "availability", "target_percent": 99.5}],
        "ttft": [{"name": "ttft", "target_percent": 95, "max": "1s"}],
        "decode_rate": [{"name": "decode_rate", "target_percent": 90, "min_tokens_per_second": 20}],
        "stall": [{"name": "stall", "target_percent": 99, "max_gap": "1s"}],
        "goodput": [{"name": "goodput", "target_percent": 90}],
        "rules": {"runbook_url": "https://runbooks.example.org"},
    },
    "telemetry": {"prompt_classes": {"input_length": True, "cache_hit": True}},
    "tenants": {"enabled": True, "label": "plain"},
    "prices": {
        "models": [
            {"model": "chat", "input_per_million": 0.5, "output_per_million": 1.5},
            {"model": "other", "input_per_million": 0.2, "output_per_million": 0.6},
        ]
    },
    "budgets": [{"name": "all-tokens", "tokens_per_day": 2_000_000}, {"name": "cost", "cost_per_day": 5}],
}
# The labels that PodMonitors set from Kubernetes metadata.
RELABEL = [
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
    {"source_labels": ["__meta_kubernetes_pod_ip"], "replacement": "$1:9464", "target_label": "instance"},
]
# A port on which nothing listens.
UNREACHABLE = "http://127.0.0.1:9/v1/traces"


# The namespace of each model's pods.
NAMESPACES = {"chat": "prod", "other": "batch"}


class Pod:
    """A server, the tokometer in front of it, and their names in a cluster."""

    def __init__(self, name, model, server, relay):
        self.name, self.model, self.server, self.relay = name, model, server, relay
        self.namespace = NAMESPACES[model]


class Fleet(contextlib.ExitStack):
    """Five pods, four of one model and one of another; `with` starts and stops them."""

    def __init__(self, other):
        """`other` starts the other model's server."""
        super().__init__()
        self.other = other

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return super().__enter__()

    def _start(self):
        chat = ("--model", "chat", "--request-metrics", "--ttft-ms", "150", "--cached-share", "0.3")
        self.pods, spans = {}, f"127.0.0.1:{free_port()}"
        for name, model, start in (
            ("chat-busy", "chat", lambda: start_sim(*chat, "--rate", "45", "--max-concurrency", "8")),
            ("chat-slow", "chat", lambda: start_sim(*chat, "--rate", "12", "--tokens-per-chunk", "2", "--otlp-traces-endpoint", f"http://{spans}")),
            ("chat-idle", "chat", lambda: start_sim(*chat)),
            ("chat-gone", "chat", lambda: start_sim(*chat, "--rate", "45")),
            ("other-queue", "other", self.other),
        ):
            server = self.enter_context(start())
            # One sidecar cannot push its spans, and counts the lost ones; another receives its engine's spans.
            more = {"chat-busy": {"otlp_traces": UNREACHABLE}, "chat-slow": {"otlp_receiver": spans}}.get(name, {})
            relay = Tokometer(server.port, scrape={"enabled": True, "interval": "1s"}, more=SETTINGS, **more)
            self.pods[name] = Pod(name, model, server, self.enter_context(relay))
        self.cluster = self.enter_context(ClusterExporters(self.pods))

    def port(self, name):
        """The port for clients."""
        return self.pods[name].relay.port

    def scraped(self, directory, rules=None, **form):
        """A Prometheus that scrapes all pods and evaluates these rules, every two seconds."""
        groups = [
            {
                "targets": [f"127.0.0.1:{pod.relay.admin}"],
                "labels": {
                    "__meta_kubernetes_namespace": pod.namespace,
                    "__meta_kubernetes_pod_name": pod.name,
                    "__meta_kubernetes_pod_container_name": "tokometer",
                    "__meta_kubernetes_pod_ip": f"10.0.0.{number}",
                },
            }
            for number, pod in enumerate(self.pods.values(), 1)
        ]
        job = {"job_name": "tokometer", "static_configs": groups, "relabel_configs": RELABEL, **form}
        cluster = {"job_name": "cluster", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{self.cluster.port}"]}]}
        config = {"global": {"scrape_interval": "2s", "evaluation_interval": "2s"}, "scrape_configs": [job, cluster]}
        if rules:
            config["rule_files"] = [str(Path(rules).resolve())]
        return self.enter_context(Prometheus(directory, config))


def rules(directory):
    """The rule file for these settings, evaluated often enough for a short run; `tokometer.yaml` with the settings is next to it."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    config, file = Path(directory) / "tokometer.yaml", Path(directory) / "rules.yaml"
    config.write_text(json.dumps(SETTINGS))
    done = subprocess.run([BINARY, "rules", "--config", config, "--format", "prometheus"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file.write_text("\n".join(_shortened(done.stdout.splitlines())) + "\n")
    return file


def _shortened(lines):
    """Shortens evaluation intervals, and the steps of subqueries. Of windows, only that of the step rules is shortened, which equals their interval."""
    step = False
    for line in lines:
        step = ":step5m" in line if line.startswith("  - ") else step
        if line.startswith("  interval: "):
            line = {"  interval: 30s": "  interval: 2s", "  interval: 2m": "  interval: 4s", "  interval: 5m": "  interval: 10s"}[line]
        line = line.replace(":5m]", ":10s]").replace(":1m]", ":2s]")
        yield line.replace("[5m]", "[10s]") if step else line
