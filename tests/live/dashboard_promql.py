"""Dashboard queries, checked by promtool: every query is valid PromQL for old and new Prometheus, and the room estimate is correct."""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from process import BINARY, Skip

# Variables as Grafana fills them in with all values selected.
CHOSEN = {"$__rate_interval": "5m", "$__range": "1h"}
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
    for name, value in CHOSEN.items():
        expr = expr.replace(name, value)
    return re.sub(r'"\$\w+"', '".*"', expr).replace('instance=~".*"', 'instance=~".+"')


def _queries():
    return [json.loads(line) for line in _run(BINARY, "dashboards", "--queries").splitlines()]


def _query(dashboard, panel, ref="A"):
    found = [one["expr"] for one in _queries() if (one["dashboard"], one["panel"], one["ref"]) == (dashboard, panel, ref)]
    assert len(found) == 1, (dashboard, panel, ref)
    return _filled(found[0])


def every_query_of_every_dashboard_is_promql():
    queries = _queries()
    rules = [{"record": f"query:{at}", "expr": _filled(one["expr"])} for at, one in enumerate(queries)]
    assert len(rules) > 150, len(rules)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "queries.yaml"
        file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
        for promtool in _promtools():
            print(f"    {promtool}: {_run(promtool, 'check', 'rules', str(file)).strip().splitlines()[-1].strip()}")


def _expect(series, asked):
    """Each item of `asked`: minute, expression, expected value or None for no sample."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": " ".join(map(str, values))} for name, values in series],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{at}m", "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
            for at, expr, value in asked
        ],
    }
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "test.yaml"
        file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
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


def room_is_the_most_that_kept_the_floor_less_what_is_in_flight():
    room = _query("tokometer-queue", "Spare capacity (estimate)")
    # Eight are fine, sixteen are too many, five are in flight now.
    load = _in_flight([8] * 32 + [16] * 14 + [5] * 15)
    _expect(_floor() + load + _streams(range(28, 50)), [(60, room, 3)])


def more_than_kept_the_floor_is_room_below_nothing():
    room = _query("tokometer-queue", "Spare capacity (estimate)")
    _expect(_floor() + _in_flight([8] * 32 + [16] * 29) + _streams(range(28, 61)), [(60, room, -8)])


def a_pod_that_never_kept_the_floor_has_no_room():
    room = _query("tokometer-queue", "Spare capacity (estimate)")
    _expect(_floor() + _in_flight([8] * 61) + _streams(range(61)), [(60, room, -8)])


def nothing_is_told_of_room_where_the_floor_was_never_broken_or_nobody_set_one():
    room = _query("tokometer-queue", "Spare capacity (estimate)")
    load = _in_flight([8] * 32 + [16] * 29)
    _expect(_floor() + load + _streams(()), [(60, room, None)])
    _expect(load + _streams(range(28, 50)), [(60, room, None)])


def _exchanges(good, bad):
    of = f'{POD},slo="availability",model="m"'
    return [
        (f'tokometer_slo_events_total{{{of},verdict="good"}}', good),
        (f'tokometer_slo_events_total{{{of},verdict="bad",reason="http_5xx"}}', bad),
        (f'tokometer_slo_objective_ratio{{{POD},slo="availability"}}', [0.99] * 61),
    ]


def the_burn_rate_of_the_overview_is_the_bad_share_by_the_allowed_one():
    burn = _query("tokometer-overview", "Budget burn rate, 1 h")
    rising = [minute * 10 for minute in range(61)]
    # As many bad as good: fifty times the allowed one percent.
    _expect(_exchanges(rising, rising), [(60, f"round({burn})", 50)])


def _up():
    return [(f'tokometer_build_info{{{POD},version="0"}}', [1] * 61)]


def an_engine_that_nobody_asks_is_idle_and_one_that_is_not_scraped_has_no_data():
    for panel in ("Goodput", "Decode p10", "TTFT p99", "Failures"):
        value = _query("tokometer-overview", panel)
        _expect(_up() + _floor(), [(60, f"count(({value}) != ({value}))", 1)])
        _expect(_floor(), [(60, value, None)])
    tokens = _query("tokometer-overview", "Output")
    _expect(_up(), [(60, tokens, 0)])
    _expect(_floor(), [(60, tokens, None)])


def a_slow_tail_below_the_floor_breaks_the_objective_and_one_above_does_not():
    panel = ("tokometer-overview", "Decode p10")
    good, broken = _query(*panel, "A"), _query(*panel, "B")
    _expect(_up() + _floor() + _streams(()), [(60, f"count({good})", 1), (60, broken, None)])
    _expect(_up() + _floor() + _streams(range(61)), [(60, good, None), (60, f"count({broken})", 1)])


def a_quiet_hour_is_told_from_one_without_a_sidecar():
    burn = _query("tokometer-overview", "Budget burn rate, 1 h")
    # No traffic yields NaN, which is not equal to anything; without a series the result is empty.
    _expect(_exchanges([7] * 61, [0] * 61), [(60, f"count(({burn}) != ({burn}))", 1)])
    _expect(_floor(), [(60, burn, None)])
