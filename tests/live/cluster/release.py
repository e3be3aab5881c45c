"""A release of the chart, installed as its user would, for as long as a test wants it."""

import contextlib
import json
import tempfile

from helm_chart import CHART
from process import until

from cluster import workloads
from cluster.images import TOKOMETER

NAME = "tokometer"


def image():
    registry, _, rest = TOKOMETER.partition("/")
    repository, _, tag = rest.partition(":")
    return {"registry": registry, "repository": repository, "tag": tag}


def target(namespace, **sidecar):
    """Labelled pods of one test's namespace, so that those of the others are not touched."""
    return {
        "name": "default",
        "objectSelector": {"matchLabels": {"tokometer/inject": "true"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sidecar": sidecar,
    }


@contextlib.contextmanager
def installed(cluster, namespace, values=None, name=NAME, known_by=None):
    """A release in the namespace of a test. It is there when the API server asks its policy of new pods, such as this one."""
    apply(cluster, "install", namespace, values or {}, name)
    try:
        until(lambda: workloads.has_sidecar(tried(cluster, namespace, pod=known_by)), "the API server knows the policy", 120)
        yield
    finally:
        cluster.helm("uninstall", name, "--namespace", namespace, "--ignore-not-found", "--wait")


def tried(cluster, namespace, labels=workloads.LABEL, pod=None):
    """What the API server makes of a pod now. It is slow to learn of a policy, and of what the policy is given."""
    return cluster.api.make(pod or workloads.pod("tried", labels=labels), namespace, try_only=True).object


def apply(cluster, word, namespace, values, name=NAME):
    """`helm install` or `helm upgrade`, which is done when new pods are made as it says."""
    values = {"image": image(), "dashboards": {"enabled": False}, "targets": [target(namespace)], **values}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        cluster.helm(word, name, str(CHART), "--namespace", namespace, "--values", file.name)
