"""The Prometheus endpoint and OTLP agree: one real Prometheus scrapes the first and receives the second."""

import asyncio
import json
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

import names
from process import Process, Skip, Tokometer, free_port, get, start_sim, until
from stream import Stream, send_request

# The header that injects a fault is also the tenant, so that each kind of fault is a tenant.
ACCOUNTING = {
    "tenants": {"enabled": True, "from_headers": [names.SIM_FAULT], "label": "plain", "max": 4},
    "prices": {"models": [{"model": "*", "input_per_million": 0.3, "output_per_million": 0.7}]},
    "budgets": [{"name": "tokens", "tokens_per_day": 1000}, {"name": "money", "cost_per_day": 0.5}],
}
ACCOUNTING_METRICS = ("tokometer_tenant_output_tokens_total", "tokometer_cost_total", "tokometer_unpriced_total", "tokometer_budget_spent_total", "tokometer_budget_limit")

# Labels and metrics added by Prometheus itself, and those that represent the resource.
EXTERNAL_METRICS = ("up", "scrape_", "target_info", "otel_scope_info")
IDENTITY = ("__name__", "job", "instance")

CONFIG = """
global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: scraped
    scrape_protocols: [{protocol}]
    static_configs: [{{ targets: ["127.0.0.1:{admin}"] }}]
storage:
  tsdb: {{ out_of_order_time_window: 10m }}
"""


def _start_prometheus(directory, port, admin, protocol):
    try:
        known = subprocess.run(["prometheus", "--help"], capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        raise Skip("no prometheus") from None
    if "otlp-receiver" not in known.stdout + known.stderr:
        raise Skip("this build of prometheus has no OTLP receiver (with Go, tests/components/fetch.sh builds one)")
    config = Path(directory) / "prometheus.yml"
    config.write_text(CONFIG.format(admin=admin, protocol=protocol))
    argv = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/data"]
    argv += [f"--web.listen-address=127.0.0.1:{port}", "--web.enable-otlp-receiver", "--log.level=warn"]
    return Process("prometheus", argv)


def _query(port, selector):
    """The latest sample of every matching series."""
    status, body = get(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(selector)}")
    assert status == 200, body
    return json.loads(body)["data"]["result"]


def _bound(value):
    return float(value.replace("+Inf", "inf"))


def _series(port, selector):
    """(name, labels without job and instance) -> value."""
    found = {}
    for series in _query(port, selector):
        metric = series["metric"]
        name = metric["__name__"]
        if name.startswith(EXTERNAL_METRICS):
            continue
        labels = {
            key: _bound(value) if key == "le" else value
            for key, value in metric.items()
            if key not in IDENTITY and not key.startswith("otel_scope_")
        }
        found[name, tuple(sorted(labels.items()))] = float(series["value"][1])
    return found


def _text(key):
    name, labels = key
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels) + "}"


def _differences(scraped, pushed):
    """Series that exist on only one side, and series with different values."""
    differences = [f"only scraped: {_text(key)} = {scraped[key]:g}" for key in scraped.keys() - pushed.keys()]
    lasting = (key for key in pushed.keys() - scraped.keys() if not key[0].startswith(names.TRANSIENT))
    differences += [f"only pushed: {_text(key)} = {pushed[key]:g}" for key in lasting]
    for key in scraped.keys() & pushed.keys():
        moving = key[0].startswith(names.VARYING)
        # Sums of seconds are added in a different order on each side.
        if not moving and abs(scraped[key] - pushed[key]) > 1e-9 * max(1.0, abs(scraped[key])):
            differences.append(f"{_text(key)}: scraped {scraped[key]}, pushed {pushed[key]}")
    # Buckets last: the sum and count of their histogram show most differences.
    return sorted(differences, key=lambda line: ("_bucket{" in line, line))


async def _mixed_traffic(port):
    """Sends requests of every kind that produce different series; returns their number."""
    faults = [None, None, "status:400", "status:503", "status:500", "error-event:4", "cut:4", "reset:4", "no-done", "empty", "bad-json:2"]
    requests = [send_request(port, tokens=10 + 7 * n, fault=fault) for n, fault in enumerate(faults)]
    requests += [send_request(port, tokens=30, stream=False) for _ in range(3)]
    await asyncio.gather(*requests)
    for fault in ("hang", None):
        stream = await Stream.open(port, tokens=2000, fault=fault)
        if fault:
            await stream.reader.readuntil(b"\r\n\r\n")
        else:
            await stream.read_events(5)
        stream.abort()
    return len(requests) + 2


def scrape_and_push_have_equal_counts_and_sums():
    with tempfile.TemporaryDirectory() as directory, start_sim(*names.SIM_QUICK) as sim:
        port = free_port()
        push = f"http://127.0.0.1:{port}/api/v1/otlp/v1/metrics"
        with Tokometer(sim.port, otlp_metrics=push, resource={"service.name": "pushed"}, more=ACCOUNTING) as relay:
            with _start_prometheus(directory, port, relay.admin, "OpenMetricsText1.0.0") as prometheus:
                prometheus.ready(f"http://127.0.0.1:{port}/-/ready")
                count = asyncio.run(_mixed_traffic(relay.port))
                relay.wait_for_records(count)
                state = {}

                def agree():
                    state["scraped"] = _series(port, '{job="scraped"}')
                    state["pushed"] = _series(port, '{job="pushed"}')
                    total = sum(v for (n, _), v in state["pushed"].items() if n == names.REQUESTS)
                    return total == count and not _differences(state["scraped"], state["pushed"])

                def difference():
                    differences = _differences(state["scraped"], state["pushed"])
                    return f"both exporters agree; {len(differences)} differences:\n      " + "\n      ".join(differences[:40])

                until(agree, difference, 30)
                metrics = {name for name, _ in state["scraped"]}
                missing = set(ACCOUNTING_METRICS) - metrics
                assert not missing, f"{missing} in {sorted(metrics)}"
                tenants = {dict(labels).get("tenant", "") for name, labels in state["scraped"] if name.startswith("tokometer_tenant_")}
                assert len(tenants) == 4 + 2, f"four listed tenants, the others, and those without one: {tenants}"
                compared = [key for key in state["scraped"] if not key[0].startswith(names.VARYING)]
                print(f"    {len(compared)} series equal, {len(state['scraped'])} in all, of {len(metrics)} sample names")


def prometheus_accepts_every_page_format():
    with tempfile.TemporaryDirectory() as directory, start_sim(*names.SIM_UNPACED) as sim, Tokometer(sim.port) as relay:
        asyncio.run(send_request(relay.port, tokens=30))
        relay.wait_for_records(1)
        for protocol in ("PrometheusProto", "OpenMetricsText1.0.0", "PrometheusText0.0.4"):
            port = free_port()
            with tempfile.TemporaryDirectory(dir=directory) as data:
                with _start_prometheus(data, port, relay.admin, protocol) as prometheus:
                    prometheus.ready(f"http://127.0.0.1:{port}/-/ready")
                    until(lambda: _query(port, 'up{job="scraped"} == 1'), f"a scrape as {protocol}", 20)
                    until(lambda: _query(port, f"{names.REQUESTS} == 1"), f"the request, scraped as {protocol}", 20)


def page_is_strict_openmetrics():
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
    from prometheus_client.parser import text_string_to_metric_families as text

    with start_sim(*names.SIM_UNPACED) as sim, Tokometer(sim.port) as relay:
        count = asyncio.run(_mixed_traffic(relay.port))
        relay.wait_for_records(count)
        url = f"http://127.0.0.1:{relay.admin}/metrics"
        status, page = get(url, "application/openmetrics-text; version=1.0.0")
        assert status == 200 and page.endswith("# EOF\n"), page[-80:]
        strict = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in openmetrics(page) for s in f.samples}
        status, page = get(url, "text/plain; version=0.0.4")
        assert status == 200 and "# EOF" not in page
        plain = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in text(page) for s in f.samples}

        def comparable(samples):
            return {
                (name, tuple((k, _bound(v) if k == "le" else v) for k, v in labels)): value
                for (name, labels), value in samples.items()
                if not name.startswith(names.VARYING) and name != "target_info"
            }

        assert comparable(strict) == comparable(plain), set(comparable(strict).items()) ^ set(comparable(plain).items())
        total = sum(value for (name, _), value in strict.items() if name == names.REQUESTS)
        assert total == count, (total, count)
