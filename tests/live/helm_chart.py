"""The chart as rendered by Helm, and the schemas of its objects."""

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

from process import Skip

try:
    import helm_python
    import jsonschema
    import yaml
    from kubernetes_validate import utils as kubernetes
except ImportError:
    helm_python = None

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tokometer"
CACHE = Path(os.environ.get("TOKOMETER_TEST_CACHE") or Path.home() / ".cache" / "tokometer-tests")
# The mutating policy is v1 since 1.36; before that it is v1beta1, where enabled.
VERSIONS = ("1.34", "1.35", "1.36", "1.37")
FIRST_VERSION = {("admissionregistration.k8s.io/v1", kind): "1.36" for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")}
# Longer JSON and rule expressions are left out of the examples, because they are already files in this repository.
MAX_EXAMPLE_CHARACTERS = 4096


def needs_helm():
    if helm_python is None:
        raise Skip("no Helm engine (helm-python-sdk) or no Kubernetes schemas in this Python (see the stage components)")


def render(values=None, chart=CHART, name="tokometer", namespace="observability"):
    """Template -> text. Raises helm_python's errors."""
    needs_helm()
    if chart == CHART:
        return _chart().render(values or {}, name=name, namespace=namespace)
    with helm_python.Chart.load(str(chart)) as loaded:
        return loaded.render(values or {}, name=name, namespace=namespace)


@functools.cache
def _chart():
    return helm_python.Chart.load(str(without_links()))


def without_links():
    """A copy of the chart with files instead of symlinks: Helm logs a line for each link it reads, regardless of the log level."""
    return Path(_copy().name) / CHART.name


@functools.cache
def _copy():
    directory = tempfile.TemporaryDirectory(prefix="tokometer-chart-")
    shutil.copytree(CHART, Path(directory.name) / CHART.name)
    return directory


def documents(manifests):
    """Every object, ordered by template name, without the notes."""
    texts = [text for template, text in sorted(manifests.items()) if not template.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def notes(manifests):
    return next(text for template, text in manifests.items() if template.endswith("NOTES.txt"))


def cases():
    """Name -> values of each file in ci/."""
    needs_helm()
    return {file.name.removesuffix("-values.yaml"): yaml.safe_load(file.read_text()) for file in sorted((CHART / "ci").glob("*-values.yaml"))}


def example(manifests):
    """The committed form of a rendered chart."""

    def shorten(value):
        if isinstance(value, dict) and "expr" in value:
            value = {key: inner for key, inner in value.items() if key in ("alert", "record", "for", "labels")}
        if isinstance(value, dict):
            return {key: shorten(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [shorten(inner) for inner in value]
        if isinstance(value, str) and len(value) > MAX_EXAMPLE_CHARACTERS and value.lstrip().startswith("{"):
            return "(a file of dashboards/)"
        return value

    class Dumper(yaml.SafeDumper):
        pass

    # Expressions are formatted for human readers.
    Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))
    # An alias would hide that two objects contain the same.
    Dumper.ignore_aliases = lambda *_: True
    dump = functools.partial(yaml.dump_all, Dumper=Dumper, sort_keys=False, width=160, explicit_start=True)
    return dump([shorten(document) for document in documents(manifests)])


def _cache_schemas():
    """The package reads a file of several megabytes for each object; this caches it per version."""
    if not hasattr(kubernetes.schema_contents, "cache_info"):
        kubernetes.schema_contents = functools.cache(kubernetes.schema_contents)


@functools.cache
def _problem(version, text):
    try:
        kubernetes.validate(json.loads(text), version, strict=True)
    except kubernetes.ValidationError as error:
        return f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
    return None


def kubernetes_problems(document):
    """Validation errors of a built-in Kubernetes object, by version; every unknown key is an error."""
    _cache_schemas()
    first_version = FIRST_VERSION.get((document["apiVersion"], document["kind"]), VERSIONS[0])
    found = {version: _problem(version, json.dumps(document, sort_keys=True)) for version in VERSIONS if version >= first_version}
    return {version: problem for version, problem in found.items() if problem}


def is_builtin(document):
    group = document["apiVersion"].rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


@functools.cache
def _definitions():
    """(apiVersion, kind) -> schema of every CustomResourceDefinition in the component `crds`."""
    found = {}
    for file in sorted((CACHE / "crds").glob("*.yaml")):
        for definition in yaml.safe_load_all(file.read_text()):
            if definition and definition.get("kind") == "CustomResourceDefinition":
                spec = definition["spec"]
                for version in spec["versions"]:
                    schema = _strict(version["schema"]["openAPIV3Schema"])
                    found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _strict(schema):
    """A structural schema in which unknown keys, which the API server would drop, are errors."""
    if isinstance(schema, list):
        return [_strict(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _strict(inner) for key, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result["additionalProperties"] = False
    return result


def custom_problem(document):
    """The validation error of an operator's custom resource; None if it is valid."""
    schemas = _definitions()
    if not schemas:
        raise Skip("no definitions of the operators' objects (component crds, which needs Go)")
    schema = schemas.get((document["apiVersion"], document["kind"]))
    assert schema, f"no definition of {document['apiVersion']} {document['kind']}"
    errors = sorted(jsonschema.Draft7Validator(schema).iter_errors(document), key=str)
    return "; ".join(f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors) or None


def of_kind(found, kind):
    return [document for document in found if document["kind"] == kind]


def included(values):
    """Renders a chart that has this one as a dependency and includes its templates."""
    with tempfile.TemporaryDirectory() as directory:
        chart = Path(directory) / "serving"
        shutil.copytree(CHART, chart / "charts" / "tokometer")
        (chart / "templates").mkdir()
        (chart / "Chart.yaml").write_text("apiVersion: v2\nname: serving\nversion: 1.0.0\ndependencies: [{name: tokometer, version: '*'}]\n")
        # As described in the chart's README.
        (chart / "templates" / "pod.yaml").write_text(
            "kind: Included\napiVersion: v1\ncontainers:\n  -\n"
            '    {{- include "tokometer.container" .Subcharts.tokometer | nindent 4 }}\n'
            "volumes:\n"
            '  {{- include "tokometer.volumes" .Subcharts.tokometer | nindent 2 }}\n'
        )
        found = documents(render({"tokometer": {**values, "policy": {"enabled": False}}}, chart))
    return of_kind(found, "Included")[0]
