"""Dashboard queries, with variables filled in as Grafana does."""

import json
import math
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from process import BINARY

# Grafana's default where a panel sets no other value, with scrapes a few seconds apart.
RATE_INTERVAL = 15
POINTS = 120


def _run(*arguments):
    done = subprocess.run([BINARY, "dashboards", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"tokometer dashboards {' '.join(map(str, arguments))}: {done.stderr}"
    return done.stdout


def generate(directory, config):
    """Every dashboard that `tokometer dashboards` generates for this configuration, by uid."""
    _run("--out", str(directory), "--config", str(config))
    dashboards = [json.loads(file.read_text()) for file in sorted(Path(directory).glob("*.json"))]
    assert dashboards, f"no dashboard in {directory}"
    return {dashboard["uid"]: dashboard for dashboard in dashboards}


def may_be_empty(config):
    """Dashboard, panel and target that may return no data -> the reason."""
    reasons = {}
    for line in _run("--queries", "--config", str(config)).splitlines():
        query = json.loads(line)
        reasons[query["dashboard"], query["panel"], query["ref"]] = query["may_be_empty"]
    return reasons


@dataclass
class Query:
    """A target of a panel."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool
    exemplar: bool


def queries(dashboard):
    """Every target of every panel, including those in collapsed rows."""
    for panel in dashboard["panels"]:
        for member in [panel, *panel.get("panels", [])]:
            for target in member.get("targets", []):
                if target.get("expr"):
                    yield Query(dashboard["uid"], member["title"], target["refId"], target["expr"], bool(target.get("instant")), bool(target.get("exemplar")))


class Times:
    """The time range of a dashboard, in seconds since 1970."""

    def __init__(self, start, end):
        self.start, self.end = start, end
        self.step = max(2, math.ceil((end - start) / POINTS))
        self.rate = max(RATE_INTERVAL, self.step + 2)

    def builtin(self):
        span = math.ceil(self.end - self.start)
        return {"__rate_interval": f"{self.rate}s", "__interval": f"{self.step}s", "__range": f"{span}s", "__range_s": str(span), "__interval_ms": str(self.step * 1000)}


def fill(text, values):
    """Replaces `$name`, `${name}` and `${name:format}` by their values; an unknown name is an error."""

    def value(found):
        name = found[1] or found[2]
        if name in values:
            return values[name]
        raise KeyError(f"${name} is not a variable of this dashboard, in {text}")

    return re.sub(r"\$\{([a-zA-Z_]\w*)(?::\w+)?\}|\$([a-zA-Z_]\w*)", value, text)


def variables(dashboard, prometheus, times):
    """The value of each variable with everything selected, and the number of values that it finds."""
    values, found = times.builtin(), {}
    for variable in dashboard["templating"]["list"]:
        name, kind = variable["name"], variable["type"]
        if kind == "query":
            definition = variable["query"]
            definition = definition["query"] if isinstance(definition, dict) else definition
            label = re.fullmatch(r"label_values\((?:(.+),\s*)?(\w+)\)", definition.strip(), re.DOTALL)
            assert label, f"{dashboard['uid']}: ${name} has the unsupported query {definition!r}"
            match = fill(label[1], values) if label[1] else None
            selector = {"match[]": match} if match else {}
            options = prometheus.get_api(f"label/{label[2]}/values", start=times.start, end=times.end, **selector)
            found[name] = len(options)
            everything = variable.get("allValue") or "(" + "|".join(map(re.escape, options)) + ")"
            # A variable without `All` has its first value.
            values[name] = everything if variable.get("includeAll") else (options or [""])[0]
        elif kind != "datasource":
            values[name] = str(variable.get("current", {}).get("value") or variable.get("query", ""))
    return values, found


def series(prometheus, query, values, times):
    """The number of returned series that contain a number."""
    expr = fill(query.expr, values)
    if query.instant:
        found = [(labels, [value]) for labels, value in prometheus.query(expr, times.end)]
    else:
        found = prometheus.query_range(expr, times.start, times.end, times.step)
    return sum(any(not isinstance(number, float) or math.isfinite(number) for number in numbers) for _, numbers in found)


def exemplars(prometheus, query, values, times):
    """The number of returned exemplars with the trace of their request."""
    found = prometheus.get_api("query_exemplars", query=fill(query.expr, values), start=times.start, end=times.end)
    return sum("trace_id" in exemplar["labels"] for result in found for exemplar in result["exemplars"])
