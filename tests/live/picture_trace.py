"""`make picture-trace`: updates docs/images/trace.png, one slow request in a trace UI. Not part of `make test`."""

import http.client
import json
import os
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from browser import Browser
from process import Process, Skip, Tokometer, free_port, start_llama_server, until

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "trace.png"
CACHE = Path(os.environ.get("TOKOMETER_TEST_CACHE", Path.home() / ".cache" / "tokometer-tests"))
REQUESTS, TOKENS = 4, 1200

def _phoenix(directory):
    program = CACHE / "phoenix" / "bin" / "phoenix"
    if not program.exists():
        raise Skip("no Arize Phoenix (tests/components/fetch.sh phoenix)")
    port = free_port()
    os.environ |= {"PHOENIX_PORT": str(port), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_GRPC_PORT": str(free_port())}
    os.environ |= {"PHOENIX_WORKING_DIR": directory, "PHOENIX_TELEMETRY_ENABLED": "false", "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false"}
    server = Process("phoenix", [str(program), "serve"])
    server.port = port
    return server.ready(f"http://127.0.0.1:{port}/healthz", 120)


def _send_request(port, number, together):
    # Each prompt is different, so that no cache holds it.
    prompt = f"{number} " + "The quick brown fox jumps over the lazy dog. " * 100
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": TOKENS}
    body |= {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    together.wait()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json", "x-request-id": f"shown-{number}"})
    assert connection.getresponse().read()


def _slowest(port):
    """Project and trace of the longest span; None until all have arrived."""
    query = "{projects{edges{node{id spans(first:100){edges{node{name latencyMs parentId trace{id traceId}}}}}}}}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}/graphql", json.dumps({"query": query}).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as response:
        data = json.load(response)["data"]
    for project in (edge["node"] for edge in data["projects"]["edges"]):
        roots = [edge["node"] for edge in project["spans"]["edges"] if edge["node"]["parentId"] is None]
        if len(roots) == REQUESTS:
            return project["id"], max(roots, key=lambda span: span["latencyMs"])["trace"]["traceId"]
    return None


def draws_a_slow_request_in_a_trace_ui():
    with tempfile.TemporaryDirectory(prefix="phoenix-") as directory, _phoenix(directory) as phoenix, Browser(directory, 1400, 640) as browser:
        to_phoenix = f"http://127.0.0.1:{phoenix.port}/v1/traces"
        with start_llama_server("--alias", "tiny", slots=1) as server, Tokometer(server.port, otlp_traces=to_phoenix) as relay:
            together = threading.Barrier(REQUESTS)
            with ThreadPoolExecutor(REQUESTS) as pool:
                list(pool.map(lambda number: _send_request(relay.port, number, together), range(REQUESTS)))
            relay.wait_for_records(REQUESTS)
            relay.terminate()
            assert relay.wait(10) == 0
        project, trace = until(lambda: _slowest(phoenix.port), "the traces are in the UI", 30)
        browser.open(f"http://127.0.0.1:{phoenix.port}/projects/{project}/traces/{trace}", "document.body.innerText.includes('decode')")
        browser.click("button[aria-label='Collapse side navigation']")
        browser.click("[role=tab]", "Attributes")
        first = "[...document.querySelectorAll('td')].find(e => e.innerText.includes('gen_ai.latency'))"
        until(lambda: browser.evaluate(f"!!{first}"), "the span's attributes are shown", 30)
        browser.evaluate(f"{first}.scrollIntoView({{block: 'start'}})")
        until(lambda: browser.evaluate(f"{first}.getBoundingClientRect().y < 500"), "they are scrolled into view", 30)
        PICTURE.parent.mkdir(exist_ok=True)
        browser.picture(PICTURE)
    print(f"    {PICTURE.name}: {PICTURE.stat().st_size} bytes")
