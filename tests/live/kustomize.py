"""The Kustomize component with a real kubectl: it changes a Deployment in the same way as `tokometer inject`."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from process import BINARY, Skip

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "inject" / "kustomize"

# Only inject adds the annotation with the undo instructions.
WITHOUT_ANNOTATIONS = """
resources: [injected.yaml]
patches:
  - target: {kind: Deployment, name: vllm}
    patch: |-
      - op: remove
        path: /spec/template/metadata/annotations
"""


def _kustomized(folder):
    if not shutil.which("kubectl"):
        raise Skip("no kubectl")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def component_keeps_the_servers_prestop_hook():
    def build(**labels):
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as directory:
            for name in ("deployment.yaml", "kustomization.yaml"):
                (Path(directory) / name).write_text((FOLDER / name).read_text())
            hook = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
            operations = [{"op": "add", "path": "/spec/template/spec/containers/0/lifecycle", "value": hook}]
            operations += [{"op": "add", "path": f"/metadata/labels/{key.replace('/', '~1')}", "value": value} for key, value in labels.items()]
            # These changes are in the base, so that the component patches a Deployment that already has them.
            (Path(directory) / "base").mkdir()
            (Path(directory) / "deployment.yaml").rename(Path(directory) / "base" / "deployment.yaml")
            patch = [{"target": {"kind": "Deployment", "name": "vllm"}, "patch": json.dumps(operations)}]
            (Path(directory) / "base" / "kustomization.yaml").write_text(json.dumps({"resources": ["deployment.yaml"], "patches": patch}))
            text = (Path(directory) / "kustomization.yaml").read_text().replace("deployment.yaml", "base")
            (Path(directory) / "kustomization.yaml").write_text(text)
            return subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, timeout=60)

    if not shutil.which("kubectl"):
        raise Skip("no kubectl")
    rejected = build()
    assert rejected.returncode != 0 and "lifecycle" in rejected.stderr, rejected
    done = build(**{"tokometer/prestop": "own"})
    assert done.returncode == 0, done.stderr
    assert "sleep" in done.stdout and "--host=127.0.0.1" in done.stdout and "/drain/wait" not in done.stdout, done.stdout


def component_refuses_pods_that_need_a_decision():
    probe = {"httpGet": {"path": "/health", "port": 8000}}

    def build(spec, **labels):
        manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"tokometer/inject": "true", **labels}}}
        manifest |= {"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": "vllm/vllm-openai:v0.33.0", "args": ["m"], "readinessProbe": probe}]}}}}
        manifest["spec"]["template"]["spec"]["containers"][0] |= spec.pop("container", {})
        manifest["spec"]["template"]["spec"] |= spec
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as directory:
            (Path(directory) / "deployment.yaml").write_text(json.dumps(manifest))
            (Path(directory) / "kustomization.yaml").write_text((FOLDER / "kustomization.yaml").read_text())
            return subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, timeout=60)

    if not shutil.which("kubectl"):
        raise Skip("no kubectl")
    rejected = build({"container": {"readinessProbe": {"exec": {"command": ["true"]}}}})
    assert rejected.returncode != 0 and "readinessProbe" in rejected.stderr, rejected
    done = build({"container": {"readinessProbe": {"exec": {"command": ["true"]}}}}, **{"tokometer/exposed": "true"})
    assert done.returncode == 0 and "name: tokometer\n" in done.stdout, done
    for name, label in (("livenessProbe", "tokometer/liveness"), ("startupProbe", "tokometer/startup")):
        rejected = build({"container": {name: probe}})
        assert rejected.returncode != 0 and name in rejected.stderr, rejected
        done = build({"container": {name: probe}}, **{label: "own"})
        assert done.returncode == 0 and "terminationGracePeriodSeconds: 30\n" in done.stdout, done
    rejected = build({"resources": {"limits": {"memory": "1Gi"}}})
    assert rejected.returncode != 0 and "resources" in rejected.stderr, rejected


def component_and_inject_create_equal_pods():
    by_component = _kustomized(FOLDER)
    injected = subprocess.run(
        [BINARY, "inject", "--image", "registry.example/tokometer:1", "-f", str(FOLDER / "deployment.yaml")],
        capture_output=True, text=True, timeout=60,
    )
    assert injected.returncode == 0 and "Deployment/other: skipped" in injected.stderr, injected.stderr
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "injected.yaml").write_text(injected.stdout)
        (Path(directory) / "kustomization.yaml").write_text(WITHOUT_ANNOTATIONS)
        # Formatted by the same program, for comparison.
        by_inject = _kustomized(directory)
    assert by_component == by_inject, f"the component produces\n{by_component}\nand inject\n{by_inject}"
    assert by_component.count("name: tokometer\n") == 1, "the sidecar does not occur exactly once"
    assert by_component.index("name: tokometer\n") < by_component.index("name: fetch\n"), "the sidecar is not the first"
