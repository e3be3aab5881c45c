"""Describes the state of a namespace's pods, to explain a failed test."""

MAX_EVENTS, MAX_LINES = 12, 12


def explain(cluster, namespace, error):
    """Prints the state, and adds the states of the containers to the error."""
    try:
        pods = cluster.api.get("Pod", namespace)
        states = [line for pod in pods for line in _states(pod)]
        print(f"    pods of {namespace}:", *states, "    events:", *_events(cluster, namespace), sep="\n      ")
        for pod in pods:
            for status in _statuses(pod):
                name = pod["metadata"]["name"], status["name"]
                log = cluster.kubectl("-n", namespace, "logs", name[0], "-c", name[1], f"--tail={MAX_LINES}", check=False, seconds=30)
                print(f"    last lines of {name[0]}/{name[1]}:", *log.splitlines(), sep="\n      ")
        # The kubelet's own log contains the reason why a container does not start.
        log = (cluster.directory / "log" / "kubelet.log").read_text(errors="replace").splitlines()
        print("    the kubelet:", *[line for line in log if f"{namespace}/" in line and line.startswith("E")][-MAX_LINES:], sep="\n      ")
        if hasattr(error, "add_note"):
            error.add_note("\n".join(states[:8]))
    except Exception as failure:  # noqa: BLE001 must not hide the test's own error
        print(f"    cannot describe {namespace} further: {failure!r}")


def _statuses(pod):
    return pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])


def _states(pod):
    yield f"{pod['metadata']['name']}: {pod['status']['phase']} {_unmet_conditions(pod)}".rstrip()
    for status in _statuses(pod):
        (state, details), *_ = (status.get("state") or {"unknown": {}}).items()
        last = status.get("lastState", {}).get("terminated", {})
        previous = f", before: {last.get('reason')} {last.get('exitCode')}" if last else ""
        yield f"  {status['name']}: {state} {details.get('reason', '')} {details.get('message', '')} restarts {status['restartCount']}{previous}"


def _unmet_conditions(pod):
    return ", ".join(f"{c['type']}: {c.get('message') or c.get('reason') or 'not yet'}" for c in pod["status"].get("conditions", []) if c["status"] != "True")


def _events(cluster, namespace):
    found = sorted(cluster.api.get("Event", namespace), key=lambda event: event["metadata"]["creationTimestamp"])
    return [f"{event['involvedObject']['name']}: {event.get('reason')} {event.get('message', '')[:300]}" for event in found[-MAX_EVENTS:]]
