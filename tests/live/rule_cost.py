"""What tokometer costs Prometheus: samples read by the rules of 1, 50 and 500 pods, by rule group, and the scrapes of 500 pods.

The pods' series are those of a real page (three models, two routes), repeated for each pod and backfilled with promtool.
`RULE_COST_PODS` selects the numbers of pods, `RULE_COST_RULES` another rule file."""

import gzip
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import yaml
from process import BINARY, Tokometer, get, until
from prometheus import Prometheus

MAX_SECONDS = 1800

PODS = [int(number) for number in os.environ.get("RULE_COST_PODS", "1,50,500").split(",")]
MODELS, ROUTES = ("m1", "m2", "m3"), ("chat", "completions")
PODS_PER_NAMESPACE = 50
SCRAPE_SECONDS = 30
SCRAPED_PODS = 500
# The maximum for 500 pods.
MAX_SAMPLES_PER_SECOND, MAX_CORES = 1_500_000, 1.0
# Time for which Prometheus evaluates the rules: every group at least once.
MEASURED_SECONDS = 330
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Server(http.server.BaseHTTPRequestHandler):
    """Streams completions of any model, as vLLM does."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chat = "chat" in self.path
        self.send_response(200)
        for header in (("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")):
            self.send_header(*header)
        self.end_headers()
        base = {"id": ("chatcmpl-" if chat else "cmpl-") + "0" * 32, "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": request["model"]}
        tokens = 40
        for number in range(tokens):
            choice = {"index": 0, "finish_reason": "stop" if number == tokens - 1 else None}
            self._event(json.dumps(base | {"choices": [choice | ({"delta": {"content": "x "}} if chat else {"text": "x "})]}))
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens, "prompt_tokens_details": {"cached_tokens": 2}}
        self._event(json.dumps(base | {"choices": [], "usage": usage}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data):
        data = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _page(**settings):
    """The page of a tokometer that served each model on each route."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Tokometer(server.server_port, **settings) as relay:
        for model in MODELS:
            for route in ROUTES:
                load = [BINARY, "load", "--url", f"http://127.0.0.1:{relay.port}", "--api", route, "--model", model, "--requests", "20", "--concurrency", "2"]
                subprocess.run(load, check=True, capture_output=True)
        counted = lambda: sum(float(line.rsplit(" ", 1)[1]) for line in lines() if line.startswith("tokometer_requests_total{"))  # noqa: E731
        lines = lambda: [line for line in get(f"http://127.0.0.1:{relay.admin}/metrics")[1].splitlines() if line and line[0] != "#"]  # noqa: E731
        until(lambda: counted() >= 20 * len(MODELS) * len(ROUTES), "every request is counted")
        text = lines()
    server.shutdown()
    return text


def _seconds(text):
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))


class _Rules:
    """A rule file, and the history of each series that its expressions read."""

    def __init__(self, file):
        self.groups = yaml.safe_load(file.read_text())["groups"]
        self.rules = [(group, rule) for group in self.groups for rule in group["rules"]]
        self.history = {}
        for _, rule in self.rules:
            expr = re.sub(r'"[^"]*"', '""', rule["expr"])
            for name in re.findall(r"\b[a-z_]+(?::[a-z0-9_]+)*\b", expr):
                self.history.setdefault(name, 600)
            for name, window in re.findall(r"([a-z_]\w*(?::\w+)*)(?:\{[^}]*\})?\[(\w+)", expr):
                self.history[name] = max(self.history[name], _seconds(window) + 600)

    def recorded(self):
        """Each recorded series that other rules read: name, labels, interval and history."""
        for group, rule in self.rules:
            if rule.get("record") in self.history:
                yield rule["record"], rule.get("labels", {}), _seconds(group["interval"]), self.history[rule["record"]]


def _pods(number):
    for pod in range(number):
        yield f'namespace="ns{pod // PODS_PER_NAMESPACE}",pod="vllm-{pod}",instance="10.0.{pod // 250}.{pod % 250}:9464"'


def _series(rules, lines, pods):
    """Every series that the rules read: name, labels, first value, increase, interval and history."""
    server = 'server_address="127.0.0.1",server_port="8001"'
    for pod in _pods(pods):
        yield "up", f'job="tokometer",{pod}', 1, 0, SCRAPE_SECONDS, rules.history["up"]
        for line in lines:
            selector, value = line.rsplit(" ", 1)
            name, _, labels = selector.partition("{")
            if name in rules.history:
                counts = name.endswith(("_total", "_bucket", "_count", "_sum"))
                labels = ",".join(filter(None, ['job="tokometer"', pod, labels.rstrip("}")]))
                yield name, labels, float(value), float(value) if counts else 0, SCRAPE_SECONDS, rules.history[name]
    for name, own, interval, history in rules.recorded():
        if name.startswith("slo:"):
            labels = ",".join(f'{key}="{value}"' for key, value in own.items())
            for namespace in range((pods + PODS_PER_NAMESPACE - 1) // PODS_PER_NAMESPACE):
                for model in MODELS:
                    yield name, f'namespace="ns{namespace}",model="{model}",{labels}', 3, 0, interval, history
        # Without budgets, their series do not exist.
        elif name.startswith("tokometer:") and "budget" not in name:
            process = name.startswith("tokometer:sidecar")
            for pod in _pods(pods):
                if "server:served" in name or "server:models" in name:
                    for model in MODELS:
                        yield name, f'{pod},{server},model="{model}"', 1, 0, interval, history
                else:
                    yield name, f'{pod},job="tokometer"' if process else f"{pod},{server}", 1, 0, interval, history


def _backfill(directory, series, end):
    """Blocks with these series until `end`: one set for a history of hours, one for days."""
    short, long = [], []
    for one in series:
        (short if one[5] <= 8 * 3600 else long).append(one)

    def write(name, chosen, block):
        file = Path(directory) / f"{name}.om"
        families = {}
        for one in chosen:
            families.setdefault(one[0], []).append(one)
        with file.open("w") as out:
            for family, members in families.items():
                out.write(f"# TYPE {family} unknown\n")
                for _, labels, first, more, interval, history in members:
                    count = history // interval
                    prefix = f"{family}{{{labels}}} "
                    out.writelines(f"{prefix}{first + more * n:g} {end - (count - n) * interval}\n" for n in range(count + 1))
            out.write("# EOF\n")
        done = subprocess.run(["promtool", "tsdb", "create-blocks-from", f"--max-block-duration={block}", "openmetrics", file, f"{directory}/data"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        print(f"    {name}: {len(chosen)} series, {file.stat().st_size / 1e6:.0f} MB of text", flush=True)
        file.unlink()

    write("hours", short, "18h")
    write("days", long, "1458h")


def _cost(prometheus, rules, at):
    """Samples and seconds of one evaluation, by group."""
    costs = {}
    for group, rule in rules.rules:
        stats = prometheus.get_api("query", query=rule["expr"], time=at, stats="all")["stats"]
        samples, seconds = stats["samples"]["totalQueryableSamples"], stats["timings"]["execTotalTime"]
        cost = costs.setdefault(group["name"], [_seconds(group["interval"]), 0, 0.0])
        cost[1], cost[2] = cost[1] + samples, cost[2] + seconds
    return costs


def _measured(prometheus):
    query = lambda name: float(get(f"{prometheus.url}/metrics")[1].split(f"\n{name} ")[1].split("\n")[0])  # noqa: E731
    return {"samples": query("prometheus_engine_query_samples_total"), "cpu": prometheus.cpu_seconds(), "time": time.monotonic()}


def rules_of_500_pods_read_few_samples():
    lines = _page()
    print(f"    the page has {len(lines)} series")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(os.environ.get("RULE_COST_RULES") or f"{directory}/rules.yaml")
        if not file.exists():
            file.write_text(subprocess.run([BINARY, "rules"], capture_output=True, text=True, check=True).stdout)
        rules = _Rules(file)
        for pods in PODS:
            _measure(Path(directory) / str(pods), rules, file, lines, pods)


def scraping_500_pods_costs_series_and_memory():
    """A Prometheus that scrapes the page of one pod as 500 pods, for each profile of the page."""
    print(f"    {SCRAPED_PODS} pods, scraped every {SCRAPE_SECONDS} s: profile, series, samples/s, MB/s, MB/s with gzip, cores, MB of memory")
    for profile in ("full", "fleet"):
        body = ("\n".join(_page(more={"prometheus": {"profile": profile}})) + "\n").encode()
        compressed = gzip.compress(body, 1)

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self, compressed=compressed):
                self.send_response(200)
                for header in (("content-type", "text/plain; version=0.0.4"), ("content-encoding", "gzip"), ("content-length", str(len(compressed)))):
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(compressed)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        targets = [
            {"targets": [f"127.0.0.1:{server.server_port}"], "labels": {"namespace": f"ns{pod // PODS_PER_NAMESPACE}", "pod": f"vllm-{pod}", "instance": f"10.0.0.{pod}:9464"}}
            for pod in range(SCRAPED_PODS)
        ]
        config = {"global": {"scrape_interval": f"{SCRAPE_SECONDS}s"}, "scrape_configs": [{"job_name": "tokometer", "static_configs": targets}]}
        with tempfile.TemporaryDirectory() as directory, Prometheus(directory, config) as prometheus:
            time.sleep(2 * SCRAPE_SECONDS)
            value = lambda name: float(get(f"{prometheus.url}/metrics")[1].split(f"\n{name} ")[1].split("\n")[0])  # noqa: E731
            appended, cpu = value('prometheus_tsdb_head_samples_appended_total{type="float"}'), prometheus.cpu_seconds()
            time.sleep(3 * SCRAPE_SECONDS)
            rate = (value('prometheus_tsdb_head_samples_appended_total{type="float"}') - appended) / (3 * SCRAPE_SECONDS)
            cores, series = (prometheus.cpu_seconds() - cpu) / (3 * SCRAPE_SECONDS), value("prometheus_tsdb_head_series")
            bytes_of = lambda text: len(text) * SCRAPED_PODS / SCRAPE_SECONDS / 1e6  # noqa: E731
            print(f"      {profile:6} {series:10,.0f} {rate:8,.0f} {bytes_of(body):6.2f} {bytes_of(compressed):6.2f} {cores:6.3f} {prometheus.rss_bytes() / 1e6:7,.0f}", flush=True)
        server.shutdown()


def _measure(directory, rules, file, lines, pods):
    directory.mkdir()
    # The series end in the future, so that the rules can be evaluated without scrapes.
    end = int(time.time()) + MEASURED_SECONDS + 240
    _backfill(directory, _series(rules, lines, pods), end)
    config = {"global": {"scrape_interval": "30s", "evaluation_interval": "30s"}}
    with Prometheus(directory, config | {"rule_files": []}) as prometheus:
        costs = _cost(prometheus, rules, end - 1)
    with Prometheus(directory, config | {"rule_files": [str(file.resolve())]}) as prometheus:
        before = _measured(prometheus)
        time.sleep(MEASURED_SECONDS)
        after = _measured(prometheus)
        # Series that exist in the future take no new sample; the rules are evaluated nevertheless.
        failed = [rule for rule in prometheus.rules() if rule["health"] == "err" and not rule["lastError"].startswith("out of ")]
    seconds = after["time"] - before["time"]
    samples, cores = (after["samples"] - before["samples"]) / seconds, (after["cpu"] - before["cpu"]) / seconds
    print(f"    {pods} pods: group, interval, samples per evaluation, samples/s, seconds per evaluation, cores")
    for name, (interval, read, took) in sorted(costs.items(), key=lambda cost: -cost[1][1] / cost[1][0]):
        print(f"      {name:42} {interval:4} s {read:12,} {read / interval:11,.0f} {took:8.3f} {took / interval:7.4f}")
    total = sum(read / interval for interval, read, _ in costs.values())
    print(f"      sum {total:,.0f} samples/s, {sum(took / interval for interval, _, took in costs.values()):.3f} cores by query time")
    print(f"      evaluated for {seconds:.0f} s: {samples:,.0f} samples/s, {cores:.3f} cores of the whole Prometheus", flush=True)
    assert not failed, [(rule["name"], rule.get("lastError")) for rule in failed]
    assert pods > 500 or (max(total, samples) <= MAX_SAMPLES_PER_SECOND and cores <= MAX_CORES), (total, samples, cores)
