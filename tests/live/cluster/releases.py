"""A release from installation to removal, and a real llama-server behind it."""

import json

import names
from process import get, metrics, total, until

from cluster import release, workloads
from cluster.images import LLAMA, TOKOMETER
from cluster.rig import cluster

# Kinds whose objects others create and delete meanwhile.
PASSING = ("events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses")


def a_real_llama_server_is_measured_to_the_last_token():
    node = cluster()
    node.take_llama_server()
    with node.namespace("llama") as namespace:
        sidecar = {"engine": "llama_cpp", "port": 8080}
        arguments = ["-m", "/models/tiny-chat.gguf", "--port", "8080", "-c", "8192", "-np", "2", "-t", "1", "--metrics", "--jinja", "--no-webui"]
        probe = workloads.READINESS | {"httpGet": {"path": "/health", "port": 8080}}
        server = {"name": "llama", "image": LLAMA, "args": arguments, "ports": [{"containerPort": 8080}], "readinessProbe": probe}
        with release.installed(node, namespace, {"targets": [release.target(namespace, **sidecar)]}, known_by=workloads.pod("tried", server)):
            node.api.make(workloads.deployment("llama", server), namespace)
            [pod] = workloads.wait_ready(node, namespace, "llama")
            assert {"name": "LLAMA_ARG_HOST", "value": "127.0.0.1"} in pod["spec"]["containers"][0]["env"], pod["spec"]
            workloads.answers(pod, port=8080, tokens=40)
            workloads.wait_figure(pod, 1, names.EXCHANGES, outcome=names.OK)
            theirs = metrics(f"http://{workloads.address(pod)}:8080/metrics")
            assert workloads.figure(pod, names.OUTPUT_TOKENS) == total(theirs, "llamacpp:tokens_predicted_total") > 0, "tokometer's count differs from the engine's"


def an_upgrade_changes_new_pods_and_the_image_of_running_ones_can_be_set():
    node = cluster()
    newer = TOKOMETER.rpartition(":")[0] + ":newer"
    node.rename_image(TOKOMETER, newer)
    with node.namespace("upgrade") as namespace, release.installed(node, namespace):
        node.api.make(workloads.pod("old"), namespace)
        [old] = workloads.wait_ready(node, namespace, "old")
        values = {"image": release.image() | {"tag": "newer"}, "sidecar": {"config": {"log": {"level": "debug"}}}}
        release.apply(node, "upgrade", namespace, values)
        image = lambda pod: pod["spec"]["initContainers"][0]["image"]  # noqa: E731
        settled = lambda pod: image(pod) == newer and "tokometer/config" in pod["metadata"].get("annotations", {})  # noqa: E731
        until(lambda: settled(release.tried(node, namespace)), "new pods use the new values", 120)
        node.api.make(workloads.pod("new"), namespace)
        [new] = workloads.wait_ready(node, namespace, "new")
        assert settled(new), new["spec"]
        workloads.answers(new)
        # A running pod's own configuration changes without a restart.
        node.kubectl("-n", namespace, "annotate", "pod", "new", "--overwrite", "tokometer/config=wedge: {decode: 77s}")
        until(lambda: "77s" in get(workloads.admin(new, "config"))[1], "the sidecar has read its new annotation", 180)
        [changed] = workloads.wait_ready(node, namespace, "new")
        assert workloads.status(changed, "tokometer")["restartCount"] == 0, changed["status"]
        [still] = workloads.wait_ready(node, namespace, "old")
        assert image(still) == TOKOMETER and workloads.status(still, "tokometer")["restartCount"] == 0, still["status"]
        # As in the guide: the model stays loaded.
        node.kubectl("-n", namespace, "set", "image", "pod/old", f"tokometer={newer}")
        after = workloads.wait_restarted(node, namespace, old, "tokometer")
        assert workloads.status(after, "tokometer")["restartCount"] == 1, after["status"]
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        workloads.answers(after)


def uninstalling_removes_everything_that_helm_created():
    node = cluster()
    with node.namespace("left") as namespace:
        before = _everything(node)
        much = {
            "dashboards": {"enabled": True}, "networkPolicy": {"enabled": True}, "sidecar": {"config": {"log": {"level": "debug"}}},
            "autoscaling": {"hpa": {"enabled": True}, "target": {"name": "vllm"}},
            "targets": [release.target(namespace), {"name": "other", "objectSelector": {"matchLabels": {"a": "b"}}}],
        }
        with release.installed(node, namespace, much):
            most = _everything(node)
            made = {what for what in most - before if what[0] != "secrets"}
            assert {"mutatingadmissionpolicies.admissionregistration.k8s.io", "configmaps", "networkpolicies.networking.k8s.io"} <= {kind for kind, _, _ in made}, made
            release.apply(node, "upgrade", namespace, {})
            few = {what for what in _everything(node) - before if what[0] != "secrets"}
            assert few < made, f"an upgrade to fewer objects leaves {few - made}"
            assert not [what for what in few if "other" in what[2] or what[0].startswith(("networkpolicies", "horizontal"))], few
            print(f"    {len(made)} objects, {len(few)} after an upgrade to fewer objects")
        after = _everything(node)
        assert after == before, f"left behind: {after - before}; removed: {before - after}"
        until(lambda: not workloads.has_sidecar(release.tried(node, namespace)), "the API server has removed the policy", 120)


def _everything(node):
    """(kind, namespace, name) of every object in the cluster."""
    kinds = node.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    found = node.kubectl("get", ",".join(kind for kind in kinds if kind not in PASSING), "--all-namespaces", "-o", "json", seconds=120)
    # Pods and objects created by controllers belong to other tests, whose namespaces may be terminating.
    return {_identity(item) for item in json.loads(found)["items"] if not item["metadata"].get("ownerReferences") and item["kind"] != "Pod"}


def _identity(item):
    group = item["apiVersion"].rpartition("/")[0]
    plural = item["kind"].lower() + "s" if not item["kind"].endswith("y") else item["kind"][:-1].lower() + "ies"
    return f"{plural}.{group}".rstrip("."), item["metadata"].get("namespace", ""), item["metadata"]["name"]
