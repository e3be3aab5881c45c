"""A real OpenTelemetry Collector (tests/components/collector), and the data it received."""

import json
import tempfile
from pathlib import Path

from process import Process, Skip, free_port

_CONFIG = """
extensions: {{ health_check: {{ endpoint: "127.0.0.1:{health}" }} }}
receivers: {{ otlp: {{ protocols: {{ http: {{ endpoint: "127.0.0.1:{http}" }} }} }} }}
exporters:
  file/metrics: {{ path: "{directory}/metrics.jsonl", flush_interval: 100ms }}
  file/traces: {{ path: "{directory}/traces.jsonl", flush_interval: 100ms }}
service:
  extensions: [health_check]
  telemetry: {{ metrics: {{ level: none }} }}
  pipelines:
    metrics: {{ receivers: [otlp], exporters: [file/metrics] }}
    traces: {{ receivers: [otlp], exporters: [file/traces] }}
"""


def _plain(attributes):
    """OTLP's list of typed values as a dictionary."""
    plain = {}
    for pair in attributes:
        [(kind, value)] = pair["value"].items()
        plain[pair["key"]] = int(value) if kind == "intValue" else value
    return plain


class OtelCollector(Process):
    """Receives OTLP over HTTP at `url`."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="tokometer-collector-")
        self.directory = Path(self._directory.name)
        http, health = free_port(), free_port()
        config = self.directory / "collector.yaml"
        config.write_text(_CONFIG.format(http=http, health=health, directory=self.directory))
        try:
            super().__init__("collector", ["collector", f"--config={config}"])
        except FileNotFoundError:
            self._directory.cleanup()
            raise Skip("no OpenTelemetry Collector (component collector, which needs Go)") from None
        self.url = f"http://127.0.0.1:{http}"
        self.ready(f"http://127.0.0.1:{health}/")

    def __exit__(self, *error):
        super().__exit__(*error)
        self._directory.cleanup()

    def _lines(self, name):
        file = self.directory / f"{name}.jsonl"
        complete_lines = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [json.loads(line) for line in complete_lines.splitlines()]

    def spans(self):
        """Every span: its name, kind, attributes, and those of its resource."""
        return [
            {
                "name": span["name"],
                "kind": span["kind"],
                "attributes": _plain(span.get("attributes", [])),
                "resource": _plain(resource_spans["resource"]["attributes"]),
            }
            for line in self._lines("traces")
            for resource_spans in line["resourceSpans"]
            for scope in resource_spans["scopeSpans"]
            for span in scope["spans"]
        ]

    def latest(self, metric):
        """The latest value of each series of a sum, by its resource, attributes and start: a new process counts from zero."""
        found = {}
        for line in self._lines("metrics"):
            for resource_metrics in line["resourceMetrics"]:
                resource = _plain(resource_metrics["resource"]["attributes"])
                for scope in resource_metrics["scopeMetrics"]:
                    for candidate in scope["metrics"]:
                        if candidate["name"] == metric:
                            for point in candidate["sum"]["dataPoints"]:
                                key = json.dumps([resource, _plain(point.get("attributes", [])), point["startTimeUnixNano"]], sort_keys=True)
                                value = float(point.get("asInt", point.get("asDouble")))
                                found[key] = max(found.get(key, (0, 0)), (int(point["timeUnixNano"]), value))
        return {key: value for key, (_, value) in found.items()}

    def total(self, metric, **attributes):
        """The sum of the latest values of the series that have these attributes."""
        expected = attributes.items()
        return sum(value for key, value in self.latest(metric).items() if expected <= json.loads(key)[1].items())
