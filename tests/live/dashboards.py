"""Every query of every panel and rule, run on a real Prometheus that scraped real traffic: each returns data."""

import collections
import os
import re
import tempfile
import time

import dashboard_queries
import fleet
import names
from process import Skip
from process import start_llama_server
from process import until
from simulated_users import Phase
from simulated_users import UserGroup
from simulated_users import run_users

# Long enough for one-minute windows, which subqueries evaluate in steps.
SECONDS = int(os.environ.get("DASHBOARDS_SECONDS", "150"))
MAX_SECONDS = SECONDS + 150
FAULTS = {"status:503": 0.04, "status:400": 0.03, "error-event:4": 0.03, "cut:5": 0.03, "reset:5": 0.02, "stall:1.5": 0.05, "hang:2": 0.04, "bad-json:2": 0.02, "garbage": 0.01}


def _one_slot():
    return start_llama_server("--alias", "other", slots=1)


def _user_groups(port):
    """Two groups within their server's capacity, one that waits for a slot, and one whose server goes down; one server gets no requests."""
    busy, slow, down, queue = map(port, ("chat-busy", "chat-slow", "chat-gone", "other-queue"))
    return [
        UserGroup(busy, "chat", [Phase(0.3, 5), Phase(0.6, 14, abort_share=0.05), Phase(1, 10, FAULTS, abort_share=0.12)]),
        UserGroup(slow, "chat", [Phase(1, 4)], tokens=(20, 60)),
        UserGroup(down, "chat", [Phase(1, 3)]),
        UserGroup(queue, "other", [Phase(0.3, 1), Phase(1, 6)], tokens=(100, 500), pause=2),
    ]


# Metrics of the newest GenAI names, which are not the default.
NOT_IN_THIS_RUN = re.compile("gen_ai_client_inference_operation")


def _check_rules(prometheus):
    """Checks that every rule evaluates without an error and every recorded series exists; returns the alerts that fired."""
    until(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), "every rule was evaluated", 30)
    rules = prometheus.rules()
    failing = [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")]
    problems = [f"{rule['group']}, {rule['name']}: {rule.get('lastError') or rule['health']}" for rule in failing]
    recorded = [rule for rule in rules if rule["type"] == "recording"]
    for rule in recorded:
        # Series are recorded for either even or odd days, so one of the two is missing.
        labels = {label: value for label, value in rule.get("labels", {}).items() if label != "day"}
        matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
        name = rule["name"]
        # Of a histogram, either the classic or the native form has series.
        if name.startswith("fleet:"):
            matchers = '__name__=~"' + re.sub("(_bucket|_sum|_count)?:rate", "(_bucket|_sum|_count)?:rate", name) + '"'
            name = ""
        # No engine is frozen in this run.
        if rule["name"] != "tokometer:server:wedged" and not NOT_IN_THIS_RUN.search(rule["name"]) and not prometheus.query(f"{name}{{{matchers}}}"):
            problems.append(f"{rule['group']}, {rule['name']}{{{matchers}}}: no series")
    alerts = collections.Counter((rule["name"], rule["state"]) for rule in rules if rule["type"] == "alerting")
    fired = {name for name, state in alerts if state != "inactive"}
    print(f"    {len(recorded)} recorded series and {alerts.total()} alerts evaluate; fired: {', '.join(sorted(fired))}")
    assert not problems, "\n      ".join(["rules:", *problems])
    return fired


def _query_panels(prometheus, generated, empty_reasons, times):
    """(dashboard, panel, target) -> series, for every query of every dashboard."""
    counts, problems, linked = {}, [], 0
    for dashboard in generated.values():
        values, found = dashboard_queries.variables(dashboard, prometheus, times)
        problems += [f"{dashboard['uid']}: ${name} has no values" for name, count in found.items() if not count]
        for query in dashboard_queries.queries(dashboard):
            key = (query.dashboard, query.panel, query.ref)
            try:
                counts[key] = dashboard_queries.series(prometheus, query, values, times)
                linked += dashboard_queries.exemplars(prometheus, query, values, times) if query.exemplar else 0
            except ValueError as error:
                problems.append(f"{key}: {error}")
        for annotation in dashboard.get("annotations", {}).get("list", []):
            if annotation.get("expr"):
                prometheus.query_range(dashboard_queries.fill(annotation["expr"], values), times.start, times.end, times.step)
    panels = collections.defaultdict(list)
    for key, count in counts.items():
        panels[key[:2]].append((count, empty_reasons.get(key)))
    # Targets with different reasons to be empty, such as `good` and `broken`: not all of them may be empty at once.
    empty = [key for key, results in panels.items() if not any(count for count, _ in results) and len(set(results)) > 1]
    problems += [f"{key}: none of its queries has data" for key in empty]
    problems += [f"{key}: not listed by --queries" for key in counts.keys() - empty_reasons.keys()]
    problems += [f"{key}: listed by --queries, but in no dashboard" for key in empty_reasons.keys() - counts.keys()]
    return counts, linked, problems


def _print_table(counts, empty_reasons):
    for dashboard in dict.fromkeys(dashboard for dashboard, _, _ in counts):
        print(f"    {dashboard}")
        panels = collections.defaultdict(list)
        for (at, panel, ref), count in counts.items():
            if at == dashboard:
                panels[panel].append((count, empty_reasons.get((at, panel, ref))))
        for panel, results in panels.items():
            needs = sorted({reason for count, reason in results if reason and not count})
            print(f"      {panel:56} -> {' + '.join(str(count) for count, _ in results)}" + "".join(f" (may be empty: {reason})" for reason in needs))


def every_panel_and_every_rule_gets_data_from_a_real_run():
    with tempfile.TemporaryDirectory(prefix="dashboards-") as directory, fleet.Fleet(_one_slot) as pods:
        classic = pods.scraped(f"{directory}/classic", fleet.rules(directory), scrape_protocols=["OpenMetricsText1.0.0"])
        try:
            native = pods.scraped(f"{directory}/native", f"{directory}/rules.yaml", scrape_protocols=["PrometheusProto"], scrape_native_histograms=True)
        except Skip as reason:
            native, skip_reason = None, f"classic histograms pass; {reason}"
        started = time.time()
        run_users(_user_groups(pods.port), SECONDS, [(0.25, pods.pods["chat-gone"].server.kill)])
        # The data scraped while requests were being sent.
        times = dashboard_queries.Times(started, time.time() - 2)

        fired = _check_rules(classic)
        if native:
            fired &= _check_rules(native)
        assert names.UPSTREAM_DOWN in fired, fired
        config = f"{directory}/tokometer.yaml"
        generated, empty_reasons = dashboard_queries.generate(f"{directory}/generated", config), dashboard_queries.may_be_empty(config)
        counts, linked, problems = _query_panels(classic, generated, empty_reasons, times)
        _print_table(counts, empty_reasons)
        problems += [f"{key}: no data" for key, count in counts.items() if not count and not empty_reasons.get(key)]
        assert not problems, "\n      ".join(["panels:", *map(str, problems)])
        assert linked > 0, "no exemplar leads to a trace"

        if not native:
            raise Skip(skip_reason)
        # The same queries without `_bucket` series, as if Prometheus stored only native or converted histograms.
        natives, _, problems = _query_panels(native, generated, empty_reasons, times)
        panels = {key[:2] for key, count in counts.items() if count} - {key[:2] for key, count in natives.items() if count}
        problems += [f"{dashboard}, {panel}: no data from native histograms" for dashboard, panel in sorted(panels)]
        assert not problems, "\n      ".join(["panels on native histograms:", *map(str, problems)])
        print(f"    {len(counts)} queries of {len(generated)} dashboards; {linked} exemplars lead to traces; native histograms give the same panels")
