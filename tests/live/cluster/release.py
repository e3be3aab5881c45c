"""A release of the chart, installed as a user would, for the duration of a test."""

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
    """Selects the labelled pods of one test's namespace, so that other tests' pods are not affected."""
    return {
        "name": "default",
        "objectSelector": {"matchLabels": {"tokometer/inject": "true"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sidecar": sidecar,
    }


@contextlib.contextmanager
def installed(cluster, namespace, values=None, name=NAME, known_by=None, pods=None):
    """Installs a release in a test's namespace; ready once the API server applies its policy to new pods like this one. `pods` is
    another namespace for the pods."""
    apply(cluster, "install", namespace, {"targets": [target(pods or namespace)], **(values or {})}, name)
    try:
        wait_known(cluster, pods or namespace, known_by)
        yield
    finally:
        cluster.helm("uninstall", name, "--namespace", namespace, "--ignore-not-found", "--wait")


def wait_known(cluster, namespace, pod=None):
    """Waits until the API server applies the policy to new pods like this one."""
    until(lambda: workloads.has_sidecar(tried(cluster, namespace, pod=pod)), "the API server knows the policy", 120)


def tried(cluster, namespace, labels=workloads.LABEL, pod=None):
    """The API server's result for a pod now. It learns of a policy and its parameters with a delay."""
    return cluster.api.make(pod or workloads.pod("tried", labels=labels), namespace, try_only=True).object


def apply(cluster, word, namespace, values, name=NAME):
    """`helm install` or `helm upgrade`. The API server learns of the result with a delay."""
    values = {"image": image(), "dashboards": {"enabled": False}, "targets": [target(namespace)], **values}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        cluster.helm(word, name, str(CHART), "--namespace", namespace, "--values", file.name)
