"""A release from installation to removal, and a real llama-server behind it."""

import json

import names
from process import get, metrics, total, until

from cluster import release, workloads
from cluster.images import LLAMA, TOKOMETER
from cluster.rig import cluster

# Kinds whose objects other components create and delete meanwhile.
TRANSIENT = ("events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses")


def real_llama_server_counts_are_exact():
    node = cluster()
    node.import_llama_server()
    with node.namespace("llama") as namespace:
        sidecar = {"engine": "llama_cpp", "port": 8080}
        arguments = ["-m", "/models/tiny-chat.gguf", "--port", "8080", "-c", "8192", "-np", "2", "-t", "1", "--metrics", "--jinja", "--no-webui"]
        probe = workloads.READINESS | {"httpGet": {"path": "/health", "port": 8080}}
        server = {"name": "llama", "image": LLAMA, "args": arguments, "ports": [{"containerPort": 8080}], "readinessProbe": probe}
        with release.installed(node, namespace, {"targets": [release.target(namespace, **sidecar)]}, sample_pod=workloads.pod("dry-run", server)):
            node.api.create(workloads.deployment("llama", server), namespace)
            [pod] = workloads.wait_ready(node, namespace, "llama")
            assert {"name": "LLAMA_ARG_HOST", "value": "127.0.0.1"} in pod["spec"]["containers"][0]["env"], pod["spec"]
            workloads.check_response(pod, port=8080, tokens=40)
            workloads.wait_metric_value(pod, 1, names.REQUESTS, outcome=names.OK)
            engine_metrics = metrics(f"http://{workloads.address(pod)}:8080/metrics")
            assert workloads.metric_value(pod, names.OUTPUT_TOKENS) == total(engine_metrics, "llamacpp:tokens_predicted_total") > 0, "tokometer's count differs from the engine's"


def upgrade_changes_new_pods_and_running_pods_can_switch_images():
    node = cluster()
    newer = TOKOMETER.rpartition(":")[0] + ":newer"
    node.rename_image(TOKOMETER, newer)
    with node.namespace("upgrade") as namespace, release.installed(node, namespace):
        node.api.create(workloads.pod("old"), namespace)
        [old] = workloads.wait_ready(node, namespace, "old")
        values = {"image": release.image() | {"tag": "newer"}, "sidecar": {"config": {"log": {"level": "debug"}}}}
        release.apply(node, "upgrade", namespace, values)
        image = lambda pod: pod["spec"]["initContainers"][0]["image"]  # noqa: E731
        has_new_values = lambda pod: image(pod) == newer and "tokometer/config" in pod["metadata"].get("annotations", {})  # noqa: E731
        until(lambda: has_new_values(release.dry_run(node, namespace)), "new pods use the new values", 120)
        node.api.create(workloads.pod("new"), namespace)
        [new] = workloads.wait_ready(node, namespace, "new")
        assert has_new_values(new), new["spec"]
        workloads.check_response(new)
        # A running pod's own configuration changes without a restart.
        node.kubectl("-n", namespace, "annotate", "pod", "new", "--overwrite", "tokometer/config=wedge: {decode: 77s}")
        until(lambda: "77s" in get(workloads.admin(new, "config"))[1], "the sidecar has read its new annotation", 180)
        [changed] = workloads.wait_ready(node, namespace, "new")
        assert workloads.status(changed, "tokometer")["restartCount"] == 0, changed["status"]
        [unchanged] = workloads.wait_ready(node, namespace, "old")
        assert image(unchanged) == TOKOMETER and workloads.status(unchanged, "tokometer")["restartCount"] == 0, unchanged["status"]
        # The command of the guide. The engine must not restart.
        node.kubectl("-n", namespace, "set", "image", "pod/old", f"tokometer={newer}")
        after = workloads.wait_restarted(node, namespace, old, "tokometer")
        assert workloads.status(after, "tokometer")["restartCount"] == 1, after["status"]
        assert workloads.status(after, "vllm")["restartCount"] == 0, after["status"]
        workloads.check_response(after)


def upgrade_to_an_image_that_cannot_be_pulled_changes_nothing():
    node = cluster()
    with node.namespace("pull") as namespace, release.installed(node, namespace):
        image = {**release.image(), "tag": "missing"}
        try:
            release.apply(node, "upgrade", namespace, {"image": image, "prePull": {"timeoutSeconds": 15}})
        except AssertionError as error:
            assert "pre-pull" in str(error) or "pre-upgrade" in str(error), error
        else:
            raise AssertionError("the upgrade succeeded")
        # What the API server would create later, too.
        node.api.create(workloads.pod("new"), namespace)
        [new] = workloads.wait_ready(node, namespace, "new")
        assert new["spec"]["initContainers"][0]["image"] == TOKOMETER, new["spec"]


def uninstalling_removes_everything_that_helm_created():
    node = cluster()
    with node.namespace("left") as namespace:
        before = _everything(node)
        values = {
            "dashboards": {"enabled": True}, "networkPolicy": {"enabled": True}, "sidecar": {"config": {"log": {"level": "debug"}}},
            "autoscaling": {"hpa": {"enabled": True}, "target": {"name": "vllm"}},
            "targets": [release.target(namespace), {"name": "other", "objectSelector": {"matchLabels": {"a": "b"}}}],
        }
        with release.installed(node, namespace, values):
            with_values = _everything(node)
            created = {item for item in with_values - before if item[0] != "secrets"}
            assert {"mutatingadmissionpolicies.admissionregistration.k8s.io", "configmaps", "networkpolicies.networking.k8s.io"} <= {kind for kind, _, _ in created}, created
            release.apply(node, "upgrade", namespace, {})
            remaining = {item for item in _everything(node) - before if item[0] != "secrets"}
            assert remaining < created, f"an upgrade to fewer objects adds {remaining - created}"
            assert not [item for item in remaining if "other" in item[2] or item[0].startswith(("networkpolicies", "horizontal"))], remaining
            print(f"    {len(created)} objects, {len(remaining)} after an upgrade to fewer objects")
        after = _everything(node)
        assert after == before, f"left behind: {after - before}; removed: {before - after}"
        until(lambda: not workloads.has_sidecar(release.dry_run(node, namespace)), "the API server has removed the policy", 120)


def _everything(node):
    """(kind, namespace, name) of every object in the cluster."""
    kinds = node.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    found = node.kubectl("get", ",".join(kind for kind in kinds if kind not in TRANSIENT), "--all-namespaces", "-o", "json", seconds=120)
    # Pods and objects created by controllers belong to other tests, whose namespaces may be terminating.
    return {_identity(item) for item in json.loads(found)["items"] if not item["metadata"].get("ownerReferences") and item["kind"] != "Pod"}


def _identity(item):
    group = item["apiVersion"].rpartition("/")[0]
    plural = item["kind"].lower() + "s" if not item["kind"].endswith("y") else item["kind"][:-1].lower() + "ies"
    return f"{plural}.{group}".rstrip("."), item["metadata"].get("namespace", ""), item["metadata"]["name"]
