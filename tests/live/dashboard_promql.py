"""Dashboard queries, checked by promtool: every query is valid PromQL for old and new Prometheus, and the spare capacity estimate is correct."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml
from process import BINARY, Skip

# Variables as Grafana fills them in with all values selected.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "($pod~)..$instance..": "(.*|~)...+.."}
POD = 'job="j",namespace="n",pod="p",instance="i"'


def _promtools():
    found = [name for name in ("promtool", "promtool-3") if shutil.which(name)]
    if not found:
        raise Skip("no promtool (see the stage components)")
    return found


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def _filled(expr):
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return re.sub(r'"\$\w+"', '".*"', expr).replace('instance=~".*"', 'instance=~".+"')


def _queries():
    return [json.loads(line) for line in _run(BINARY, "dashboards", "--queries").splitlines()]


def _query(dashboard, panel, ref="A"):
    found = [query["expr"] for query in _queries() if (query["dashboard"], query["panel"], query["ref"]) == (dashboard, panel, ref)]
    assert len(found) == 1, (dashboard, panel, ref)
    return _filled(found[0])


def every_dashboard_query_is_valid_promql():
    queries = _queries()
    rules = [{"record": f"query:{number}", "expr": _filled(query["expr"])} for number, query in enumerate(queries)]
    assert len(rules) > 150, len(rules)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "queries.yaml"
        file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
        for promtool in _promtools():
            print(f"    {promtool}: {_run(promtool, 'check', 'rules', str(file)).strip().splitlines()[-1].strip()}")


def _expect(series, samples):
    """Each item of `samples`: minute, expression, expected value or None for no sample."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": " ".join(map(str, values))} for name, values in series],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{minute}m", "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
            for minute, expr, value in samples
        ],
    }
    with tempfile.TemporaryDirectory() as directory:
        file, rules = Path(directory) / "test.yaml", Path(directory) / "rules.yaml"
        # Only the rules that the panels read.
        groups = yaml.safe_load(_run(BINARY, "rules"))["groups"]
        rules.write_text(json.dumps({"groups": [group for group in groups if group["name"] == "tokometer-dashboards"]}))
        file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
        for promtool in _promtools():
            _run(promtool, "test", "rules", str(file))


def _streams(slow, minutes=61):
    """Sixty streams end in each minute: at 45 tokens per second, or at 12 in the minutes `slow`."""
    buckets = {"15": [], "40": [], "50": [], "+Inf": []}
    total = late = 0
    for minute in range(minutes):
        total += 60
        late += 60 if minute in slow else 0
        for bound, values in buckets.items():
            values.append(late if bound in ("15", "40") else total)
    return [(f'tokometer_decode_tokens_per_second_bucket{{{POD},gen_ai_response_model="m",le="{le}"}}', values) for le, values in buckets.items()]


def _in_flight(values):
    return [(f'tokometer_in_flight{{{POD},phase="streaming"}}', values)]


def _floor():
    return [(f'tokometer_slo_threshold{{{POD},slo="decode_rate",threshold="decode_tokens_per_second"}}', [20] * 61)]


def spare_capacity_is_highest_good_concurrency_minus_in_flight():
    spare_capacity = _query("tokometer-queue", "Spare capacity (estimate)")
    # Eight concurrent streams meet the floor, sixteen do not, and five are in flight now.
    load = _in_flight([8] * 32 + [16] * 14 + [5] * 15)
    _expect(_floor() + load + _streams(range(28, 50)), [(60, spare_capacity, 3)])


def excess_concurrency_is_negative_spare_capacity():
    spare_capacity = _query("tokometer-queue", "Spare capacity (estimate)")
    _expect(_floor() + _in_flight([8] * 32 + [16] * 29) + _streams(range(28, 61)), [(60, spare_capacity, -8)])


def pod_always_below_the_floor_has_no_spare_capacity():
    spare_capacity = _query("tokometer-queue", "Spare capacity (estimate)")
    _expect(_floor() + _in_flight([8] * 61) + _streams(range(61)), [(60, spare_capacity, -8)])


def spare_capacity_is_absent_without_a_broken_or_configured_floor():
    spare_capacity = _query("tokometer-queue", "Spare capacity (estimate)")
    load = _in_flight([8] * 32 + [16] * 29)
    _expect(_floor() + load + _streams(()), [(60, spare_capacity, None)])
    _expect(load + _streams(range(28, 50)), [(60, spare_capacity, None)])


def _requests(good, bad):
    labels = f'{POD},slo="availability",model="m"'
    return [
        (f'tokometer_slo_events_total{{{labels},verdict="good"}}', good),
        (f'tokometer_slo_events_total{{{labels},verdict="bad",reason="http_5xx"}}', bad),
        (f'tokometer_slo_objective_ratio{{{POD},slo="availability"}}', [0.99] * 61),
    ]


def overview_burn_rate_is_bad_share_over_allowed_share():
    burn = _query("tokometer-overview", "Budget burn rate, 1 h")
    rising = [minute * 10 for minute in range(61)]
    # As many bad requests as good ones: fifty times the allowed one percent.
    _expect(_requests(rising, rising), [(60, f"round({burn})", 50)])


def _up():
    return [(f'tokometer_build_info{{{POD},version="0"}}', [1] * 61)]


def unused_engine_is_idle_and_unscraped_engine_has_no_data():
    for panel in ("Goodput", "Decode p10", "TTFT p99", "Failures"):
        value = _query("tokometer-overview", panel)
        _expect(_up() + _floor(), [(60, f"count(({value}) != ({value}))", 1)])
        _expect(_floor(), [(60, value, None)])
    tokens = _query("tokometer-overview", "Output")
    _expect(_up(), [(60, tokens, 0)])
    _expect(_floor(), [(60, tokens, None)])


def slow_tail_breaks_the_objective_only_below_the_floor():
    panel = ("tokometer-overview", "Decode p10")
    good, broken = _query(*panel, "A"), _query(*panel, "B")
    _expect(_up() + _floor() + _streams(()), [(60, f"count({good})", 1), (60, broken, None)])
    _expect(_up() + _floor() + _streams(range(61)), [(60, good, None), (60, f"count({broken})", 1)])


def hour_without_traffic_differs_from_hour_without_sidecar():
    burn = _query("tokometer-overview", "Budget burn rate, 1 h")
    # No traffic yields NaN, which is not equal to anything; without a series the result is empty.
    _expect(_requests([7] * 61, [0] * 61), [(60, f"count(({burn}) != ({burn}))", 1)])
    _expect(_floor(), [(60, burn, None)])
