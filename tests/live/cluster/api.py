"""A client of the Kubernetes API: reads, creates and deletes objects, and waits for changes with watches."""

import http.client
import json
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field

# Kind -> API path of its objects, and whether they are namespaced.
KINDS = {
    "ConfigMap": ("/api/v1", "configmaps", True),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices", True),
    "Event": ("/api/v1", "events", True),
    "MutatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", False),
    "Namespace": ("/api/v1", "namespaces", False),
    "Node": ("/api/v1", "nodes", False),
    "Pod": ("/api/v1", "pods", True),
    "Service": ("/api/v1", "services", True),
    "StatefulSet": ("/apis/apps/v1", "statefulsets", True),
}
PATCH = "application/strategic-merge-patch+json"


class Refused(Exception):
    """The API server rejected a request; `status` is the HTTP status."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass
class Response:
    object: dict
    warnings: list = field(default_factory=list)


def path(kind, namespace=None, name=None):
    group, plural, namespaced = KINDS[kind]
    scope = f"/namespaces/{namespace}" if namespaced and namespace else ""
    return f"{group}{scope}/{plural}" + (f"/{name}" if name else "")


class Api:
    """A client of one API server, as one user."""

    def __init__(self, server, token):
        self.address = urllib.parse.urlsplit(server).netloc
        self.headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        # The certificate is self-signed, and the network is private.
        self.tls = ssl._create_unverified_context()

    def _open(self, method, target, body=None, content="application/json", timeout=30.0):
        connection = http.client.HTTPSConnection(self.address, timeout=timeout, context=self.tls)
        text = json.dumps(body) if body is not None else None
        connection.request(method, target, text, self.headers | {"content-type": content})
        return connection, connection.getresponse()

    def request(self, method, target, body=None, content="application/json"):
        connection, response = self._open(method, target, body, content)
        try:
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            message = json.loads(text).get("message", text) if text.startswith("{") else text
            raise Refused(response.status, message)
        # Format of the Warning header: `299 - "text"`, with `\` before quotation marks.
        warnings = [value.split(" ", 2)[2].strip('"').replace('\\"', '"') for value in response.headers.get_all("warning") or []]
        return Response(json.loads(text) if text.startswith("{") else {"text": text}, warnings)

    def get(self, kind, namespace=None, name=None):
        """One object, or without a name the list of all objects of this kind."""
        found = self.request("GET", path(kind, namespace, name)).object
        return found if name else found["items"]

    def create(self, manifest, namespace=None, dry_run=False):
        """Creates an object; with `dry_run` as a dry run, which includes admission."""
        query = "?dryRun=All" if dry_run else ""
        return self.request("POST", path(manifest["kind"], namespace) + query, manifest)

    def patch(self, kind, namespace, name, change):
        return self.request("PATCH", path(kind, namespace, name), change, PATCH).object

    def delete(self, kind, namespace, name, **options):
        return self.request("DELETE", path(kind, namespace, name), options or None).object

    def _changes(self, target, version, seconds):
        """Yields the changes of the objects under a path since this version, for at most this many seconds."""
        query = urllib.parse.urlencode({"watch": "1", "resourceVersion": version, "timeoutSeconds": max(1, round(seconds))})
        connection, response = self._open("GET", f"{target}?{query}", timeout=seconds + 30)
        try:
            if response.status >= 300:
                raise Refused(response.status, response.read().decode())
            while line := response.readline():
                change = json.loads(line)
                if change["type"] == "ERROR":
                    # Usually the version is too old: the caller starts over.
                    return
                yield change
        finally:
            connection.close()

    def wait(self, kind, namespace, condition, expected, seconds=180.0):
        """Watches the objects of a kind until the condition on them (by name) holds; returns its value."""
        deadline = time.monotonic() + seconds
        target = path(kind, namespace)
        while True:
            listed = self.request("GET", target).object
            found = {item["metadata"]["name"]: item for item in listed["items"]}
            if value := condition(found):
                return value
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"not within {seconds:g} s: {expected(found) if callable(expected) else expected}"
            for change in self._changes(target, listed["metadata"]["resourceVersion"], remaining):
                name = change["object"]["metadata"]["name"]
                if change["type"] == "DELETED":
                    found.pop(name, None)
                else:
                    found[name] = change["object"]
                if value := condition(found):
                    return value
