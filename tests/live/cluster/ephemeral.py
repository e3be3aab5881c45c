"""`tokometer tap` in an ephemeral container of running pods: the commands of docs/how-to/tap.md, as written."""

import json
import re
import shlex
import tempfile

import names
from documents import ROOT, blocks
from process import get, metrics, total, until
from terminal import Terminal

from cluster import workloads
from cluster.images import TOKOMETER
from cluster.rig import cluster

REQUESTS, TOKENS = 12, 30
# The exit code of a usage error; a missing capability counts as one.
NOT_PERMITTED = 2
NON_ROOT = {"runAsUser": 65532, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def _commands():
    """The commands of the page that attach to a pod: the short one for pods that run as root, and the two commands for any pod."""
    lines = [line for block in blocks(ROOT / "docs" / "how-to" / "tap.md") for line in block]
    custom, short = [line for line in lines if line.startswith("kubectl debug") and "tokometer tap" in line]
    [write_profile] = [line for line in lines if line.startswith("echo") and "NET_RAW" in line]
    return short, write_profile, custom


def _fill_in(command, namespace, pod):
    """The command with this namespace, pod and image filled in."""
    for word, value in {"POD": pod, "IMAGE": TOKOMETER, "CONTAINER": "vllm"}.items():
        command = re.sub(rf"\b{word}\b", value, command)
    return command.replace("kubectl", f"kubectl --namespace {namespace}", 1)


def _pods(node, namespace):
    """A pod that runs as root, and one that runs as another user without any capability."""
    node.api.create(workloads.pod("root", labels={}, securityContext={"runAsUser": 0}), namespace)
    node.api.create(workloads.pod("user", workloads.server(securityContext=workloads.RESTRICTED), labels={}, securityContext=NON_ROOT), namespace)
    return [workloads.wait_ready(node, namespace, app)[0] for app in ("root", "user")]


def _debugger(node, namespace, name):
    """The kubelet's status of the newest ephemeral container, and the pod."""
    pod = node.api.get("Pod", namespace, name)
    states = pod["status"].get("ephemeralContainerStatuses", [])
    newest = pod["spec"].get("ephemeralContainers", [{}])[-1].get("name")
    return next((state for state in states if state["name"] == newest), {}), pod


def _check_measured(node, namespace, pod, commands):
    """Runs the commands in a terminal, sends requests, and quits with `q`."""
    name = pod["metadata"]["name"]
    with tempfile.TemporaryDirectory() as directory:
        with Terminal(120, 30, **{key: node.environment[key] for key in ("PATH", "KUBECONFIG")}, HOME=directory) as terminal:
            terminal.type(f"cd {shlex.quote(directory)}")
            for command in commands:
                terminal.type(_fill_in(command, namespace, name) + "; echo ended=$?")
                terminal.wait_for("ended=0" if command.startswith("echo") else "q quit", seconds=60)
            for _ in range(REQUESTS):
                workloads.check_response(pod, tokens=TOKENS)
            workloads.wait_metric_value(pod, REQUESTS, names.REQUESTS, outcome=names.OK)
            page = metrics(workloads.admin(pod))
            assert total(page, names.OUTPUT_TOKENS) == REQUESTS * TOKENS, total(page, names.OUTPUT_TOKENS)
            assert total(page, "tokometer_capture_packets_lost_total") == 0
            assert total(page, "target_info", tokometer_capture_mode="tap") == 1
            packets = total(page, "tokometer_capture_packets_total")
            terminal.press("q")
            terminal.wait_for("ended=0", seconds=60)
    ended = lambda: _debugger(node, namespace, name)[0].get("state", {}).get("terminated")  # noqa: E731
    assert until(ended, "the ephemeral container has ended", 60)["exitCode"] == 0, ended()
    print(f"    {name}: {REQUESTS} requests of {TOKENS} tokens, {packets:g} packets, 0 lost")


def _check_unchanged(node, namespace, before):
    """The pod is the same, nothing restarted, nothing listens, and requests still pass."""
    name = before["metadata"]["name"]
    after = node.api.get("Pod", namespace, name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and workloads.ready(after), after["status"]
    assert after["spec"]["containers"] == before["spec"]["containers"], name
    for status in after["status"]["containerStatuses"]:
        assert status["restartCount"] == 0, status
    assert get(workloads.admin(after)) == (0, ""), f"the admin port of {name} still responds"
    workloads.check_response(after)


def tap_in_an_ephemeral_container_measures_every_request():
    node = cluster()
    short, write_profile, custom = _commands()
    with node.namespace("ephemeral") as namespace:
        root, user = _pods(node, namespace)
        _check_measured(node, namespace, root, [short])
        _check_measured(node, namespace, user, [write_profile, custom])
        for pod in (root, user):
            _check_unchanged(node, namespace, pod)


def tap_without_net_raw_names_the_capability_and_the_fix():
    node = cluster()
    short, _, _ = _commands()
    plain = short.replace(" -it", "").replace(" --top", "")
    with node.namespace("not-permitted") as namespace:
        _, user = _pods(node, namespace)
        # A pod without a security context, whose image runs as a user other than root.
        node.api.create(workloads.pod("plain", labels={}), namespace)
        workloads.wait_ready(node, namespace, "plain")
        for pod, profile in (("user", "general"), ("user", "netadmin"), ("user", "restricted"), ("plain", "general"), ("plain", "sysadmin")):
            command = _fill_in(plain, namespace, pod).replace("--profile=general", f"--profile={profile}")
            node.run(*shlex.split(command))
            state = until(lambda: _debugger(node, namespace, pod)[0].get("state", {}).get("terminated"), f"the container of {profile} has ended", 60)
            name = _debugger(node, namespace, pod)[0]["name"]
            log = node.kubectl("--namespace", namespace, "logs", pod, "--container", name)
            assert state["exitCode"] == NOT_PERMITTED, (profile, state, log)
            assert "the capability NET_RAW is missing" in log, (profile, log)
            [fix] = re.findall(r"\{.*\}", log)
            assert json.loads(fix)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_RAW"]}, log
        _check_unchanged(node, namespace, user)
