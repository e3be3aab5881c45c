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
    """Selects the labeled pods of one test's namespace, so that other tests' pods are not affected."""
    return {
        "name": "default",
        "objectSelector": {"matchLabels": {"tokometer/inject": "true"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sidecar": sidecar,
    }


@contextlib.contextmanager
def installed(cluster, namespace, values=None, name=NAME, sample_pod=None, pods=None):
    """Installs a release in a test's namespace, and waits until the API server applies its policy to new pods like `sample_pod`.
    `pods` is the namespace of the pods, if it is another one."""
    apply(cluster, "install", namespace, {"targets": [target(pods or namespace)], **(values or {})}, name)
    try:
        wait_known(cluster, pods or namespace, sample_pod)
        yield
    finally:
        cluster.helm("uninstall", name, "--namespace", namespace, "--ignore-not-found", "--wait")


def wait_known(cluster, namespace, pod=None):
    """Waits until the API server applies the policy to new pods like this one."""
    until(lambda: workloads.has_sidecar(dry_run(cluster, namespace, pod=pod)), "the API server knows the policy", 120)


def dry_run(cluster, namespace, labels=workloads.LABEL, pod=None):
    """The pod that the API server would create now. A changed policy and its parameters take effect with a delay."""
    return cluster.api.create(pod or workloads.pod("dry-run", labels=labels), namespace, dry_run=True).object


def apply(cluster, command, namespace, values, name=NAME):
    """Runs `helm install` or `helm upgrade`. The API server applies the result with a delay."""
    values = {"image": image(), "dashboards": {"enabled": False}, "targets": [target(namespace)], **values}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        cluster.helm(command, name, str(CHART), "--namespace", namespace, "--values", file.name)
