"""An OTLP receiver in the cluster's network, and the data that the sidecars sent."""

import re
from collections import Counter

from collector import Collector
from span_trees import counters, spans

from cluster.settings import NODE_IP

SERVER_SPAN = 2  # SpanKind of opentelemetry-proto 1.9.
POD_ATTRIBUTES = ("k8s.pod.name", "k8s.namespace.name", "k8s.node.name", "k8s.pod.uid")


class Receiver(Collector):
    def __init__(self):
        super().__init__(NODE_IP)

    def sidecar(self, **values):
        """Chart values that export everything to this receiver, at short intervals."""
        intervals = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "500"}
        return {"otlp": {"endpoint": self.url}, "env": [{"name": name, "value": value} for name, value in intervals.items()], **values}

    def requests(self):
        """Every request for which a span was received."""
        return [span for body in self.traces() for span in spans(body) if span["kind"] == SERVER_SPAN]

    def outcomes(self, *pods):
        """Outcome -> number of requests of these pods, by spans."""
        return Counter(span["attributes"]["tokometer.outcome"] for span in self.requests() if span["resource"]["k8s.pod.name"] in pods)

    def counter_total(self, name, *pods):
        """The total of a counter over all of these pods, from the last push of each of its series."""
        last = {}
        for body in [body for _, path, body in list(self.pushes) if path == "/v1/metrics"]:
            for resource, metric, attributes, value in counters(body):
                if metric == name and resource["k8s.pod.name"] in pods:
                    # A restarted process counts from 0 again, as a new instance.
                    last[tuple(sorted(resource.items())), tuple(sorted(attributes.items()))] = value
        return sum(last.values())


def tokens(response):
    """Output tokens of a streamed response, from the server's usage."""
    return int(re.search(rb'"completion_tokens": ?(\d+)', response)[1])
