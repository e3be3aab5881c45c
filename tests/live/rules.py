"""Every alert of `tokometer rules`, with promtool's unit tests: it fires after the calculated time, and not otherwise."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml
from process import BINARY, Skip

NAMES = {"availability": "Availability", "ttft": "TTFT", "decode_rate": "DecodeRate", "stall": "Stall", "goodput": "Goodput"}
# Both promtools run each test; those that cover days take a minute.
MAX_SECONDS = 300

# Severity, hours of the long window, burn rate over 30 days, minutes until the alert fires. Two pairs of windows share
# an alert: the pair that is exceeded first fires it.
BURNS = [("critical", 1, 14.4, 2), ("critical", 6, 6, 2), ("warning", 24, 3, 60), ("warning", 72, 1, 60)]
TARGETS = [90, 93, 95, 99, 99.5, 99.9]
POD = 'namespace="n",pod="p",instance="i",job="j"'


# The old release of the machine's distribution, and the newest release: ranges are left-open since Prometheus 3.
PROMTOOLS = ("promtool", "promtool-3")


def _promtool(*arguments):
    """The output of each promtool; all run concurrently."""
    programs = [name for name in PROMTOOLS if shutil.which(name)]
    if not programs:
        raise Skip("no promtool (see the stage components)")
    pipe = subprocess.PIPE
    running = [(name, subprocess.Popen([name, *arguments], stdout=pipe, stderr=subprocess.STDOUT, text=True)) for name in programs]
    results = [(name, process.communicate()[0], process.returncode) for name, process in running]
    for name, text, code in results:
        assert code == 0, f"{name}: {text[-4000:]}"
    return "".join(text for _, text, _ in results)


def old_and_new_promtool_run_every_test():
    versions = {}
    for name in PROMTOOLS:
        if not shutil.which(name):
            raise Skip(f"no {name} (see the stage components): the rules are tested without it")
        done = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        versions[name] = (done.stdout + done.stderr).split("version ")[1].split()[0]
    print(f"    {versions}")
    assert versions["promtool-3"].startswith("3."), versions


def _rules(directory, slo=None, form="prometheus"):
    config, file = Path(directory) / "tokometer.yaml", Path(directory) / f"{form}.yaml"
    config.write_text(json.dumps({"slo": slo} if slo else {}))
    done = subprocess.run([BINARY, "rules", "--config", config, "--format", form], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file.write_text(done.stdout)
    return file


def _objectives(targets):
    """One availability objective per target, and nothing else."""
    none = {kind: [] for kind in NAMES if kind != "availability"}
    return {**none, "availability": [{"name": _slo_name(target), "target_percent": target} for target in targets]}


def _slo_name(target):
    return f"a{target}".replace(".", "-")


def _run(slo, tests, evaluation_interval="1m"):
    """Each test: interval, series and expectations as (time, expression, expected value or None for no sample)."""
    with tempfile.TemporaryDirectory() as directory:
        rules = _rules(directory, slo)
        # No alert reads the series that are recorded for dashboards.
        groups = [group for group in yaml.safe_load(rules.read_text())["groups"] if group["name"] != "tokometer-dashboards"]
        rules.write_text(json.dumps({"groups": groups}))
        test_file = {
            "rule_files": [str(rules)],
            "evaluation_interval": evaluation_interval,
            "tests": [
                {
                    "interval": interval,
                    "input_series": [{"series": name, "values": values} for name, values in series],
                    "promql_expr_test": [
                        {
                            "expr": expr,
                            "eval_time": f"{at:g}m" if at == int(at) else f"{int(at * 60)}s",
                            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
                        }
                        for at, expr, value in expected
                    ],
                }
                for interval, series, expected in tests
            ],
        }
        file = Path(directory) / "test.yaml"
        file.write_text(json.dumps(test_file))
        _promtool("test", "rules", str(file))


def _firing(name, matchers=""):
    return f'count(ALERTS{{alertname="{name}",alertstate="firing"{matchers}}})'


def _fired_within(name, window, matchers=""):
    return f'count(count_over_time(ALERTS{{alertname=~"{name}",alertstate="firing"{matchers}}}[{window}]))'


def _events(slo, good, bad, reason="http_5xx"):
    labels = f'slo="{slo}",model="m",{POD}'
    return [
        (f'tokometer_slo_events_total{{{labels},verdict="good"}}', good),
        (f'tokometer_slo_events_total{{{labels},verdict="bad",reason="{reason}"}}', bad),
    ]


def _steps(*parts):
    """The samples of a counter, from parts of (increase per step, number of steps)."""
    total, text = 0, []
    for increase, steps in parts:
        text.append(f"{total}+{increase:g}x{steps - 1}" if increase else f"{total}x{steps - 1}")
        total += increase * steps
    return " ".join(text)


def all_formats_render_and_all_expressions_are_promql():
    with tempfile.TemporaryDirectory() as directory:
        print("    " + _promtool("check", "rules", str(_rules(directory))).strip().replace("\n", " "))
        for form in ("prometheusrule", "sloth", "pyrra", "openslo"):
            assert _rules(directory, form=form).stat().st_size > 1000, form


def total_outage_pages_within_ten_minutes_for_any_target():
    series = [s for target in TARGETS for s in _events(_slo_name(target), _steps((60, 60), (0, 60)), _steps((0, 60), (60, 60)))]
    alert = "LLMAvailabilityErrorBudgetBurn"
    expected = []
    for target in TARGETS:
        matchers = f',slo="{_slo_name(target)}",severity="critical"'
        expected += [(60, _firing(alert, matchers), None)]
        expected += [(70, f"{_firing(alert, matchers)} > bool 0", 1)]
    _run(_objectives(TARGETS), [("1m", series, expected)])


def each_objective_kind_fires_its_own_page():
    tests = []
    for slo, word in NAMES.items():
        series = _events(slo, _steps((60, 60), (0, 60)), _steps((0, 60), (60, 60)), "stalled")
        alert = f"LLM{word}ErrorBudgetBurn"
        others = f'count(ALERTS{{alertname=~"LLM.*ErrorBudgetBurn",alertname!="{alert}",alertstate="firing"}})'
        placed = _firing(alert, ',namespace="n",model="m"')
        tests.append(("1m", series, [(59, _firing(alert), None), (70, f"{placed} > bool 0", 1), (70, others, None)]))
    _run(None, tests)


def critical_burn_rate_windows_fire_at_the_calculated_time():
    # A target of 90 % is omitted: its limit for 1h is 90 % bad requests, and the test sends at most 88 %.
    _check_burn_rate_windows(BURNS[:1], [95, 99, 99.9], 1)
    _check_burn_rate_windows(BURNS[1:2], [90, 95, 99, 99.9], 2)


def warning_burn_rate_windows_fire_at_the_calculated_time():
    # promtool evaluates groups in any order. With a step of four minutes, a recorded sample is at most five minutes old
    # when an alert queries it.
    _check_burn_rate_windows(BURNS[2:], [99], 4)


def _check_burn_rate_windows(burns, targets, step):
    """At a constant share of bad requests, the long window exceeds its limit after limit / share of its length."""
    alert = "LLMAvailabilityErrorBudgetBurn"
    for severity, hours, factor, pending in burns:
        series, expected = [], []
        # Many requests, so that the shares are integers and the low-traffic guard does not suppress the alert.
        per_step = 10_000 * step
        # Good requests for the length of the longest window of this severity, so that this window is not exceeded first.
        longest = max(hours for other, hours, *_ in BURNS if other == severity)
        before, bad = longest * 60 // step + 1, int(1.2 * (hours * 60 + pending) / step) + 10
        for target in targets:
            limit = min(factor * (100 - target) / 100, 0.9)
            share = min(1.25 * limit, 0.88)
            good = _steps((per_step, before), (per_step * (1 - share), bad))
            series += _events(_slo_name(target), good, _steps((0, before), (per_step * share, bad)))
            due = before * step + limit / share * hours * 60 + pending
            slack = 2 * step + hours * 60 * 0.01
            matchers = f',slo="{_slo_name(target)}",severity="{severity}"'
            # Checked at evaluation times: there are no samples between two distant evaluations.
            early, late = int((due - slack) // step * step), int(-(-(due + slack) // step) * step)
            expected += [(early, _firing(alert, matchers), None), (late, _firing(alert, matchers), 1)]
            print(f"    {target:5} %: {share:8.3%} bad, above {limit:.3%} in {hours}h: due after {due - before * step:.0f} min")
        _run(_objectives(targets), [(f"{step}m", series, expected)], f"{step}m")


def low_traffic_sends_no_page():
    """No page for one bad request of three in an hour, for a night's only request, or for four bad requests in a row."""
    burns, targets = "LLM.*ErrorBudgetBurn", [90, 99, 99.9]
    # In steps of two minutes.
    cases = {
        "one bad of three in an hour": ([(0, 100), (1, 1), (0, 15), (1, 1), (0, 200)], [(0, 105), (1, 1), (0, 211)]),
        "the only request of a night": ([(0, 317)], [(0, 105), (1, 1), (0, 211)]),
        "four bad requests in a row": ([(0, 317)], [(0, 105), (2, 2), (0, 210)]),
    }
    tests = []
    for good, bad in cases.values():
        series = [s for target in targets for s in _events(_slo_name(target), _steps(*good), _steps(*bad))]
        tests.append(("2m", series, [(632, _fired_within(burns, "11h"), None)]))
    # Only the low-traffic guard suppresses these alerts: with more bad requests, the alert fires.
    series = [s for target in targets for s in _events(_slo_name(target), _steps((0, 317)), _steps((0, 105), (3, 3), (0, 209)))]
    tests.append(("2m", series, [(632, f"{_fired_within(burns, '11h')} > bool 0", 1)]))
    _run(_objectives(targets), tests, "2m")


def _unsteady_fleet(samples):
    """Events of five pods with different shares of bad requests: one runs throughout, one restarts three times, one comes
    after two thirds, one goes after three quarters, and of one, every tenth scrape and three scrapes in a row fail."""
    def pod(name, bad, good, values):
        labels = f'slo="a99",model="m",namespace="n",pod="{name}",instance="{name}",job="j"'
        verdicts = (('verdict="bad",reason="http_5xx"', bad), ('verdict="good"', good))
        return [(f"tokometer_slo_events_total{{{labels},{verdict}}}", values(rate)) for verdict, rate in verdicts]

    def unreachable(rate):
        tens = [f"{rate * start}+{rate}x8 _" for start in range(0, samples, 10)]
        middle = len(tens) // 2
        # Within a window of 5 minutes; the requests of a gap between two of them are lost.
        tens[middle] = f"{rate * 10 * middle}+{rate}x4 _x3 {rate * (10 * middle + 8)}+{rate}x1"
        return " ".join(tens)

    return [
        *pod("steady", 2, 100, lambda rate: f"0+{rate}x{samples}"),
        *pod("restarts", 3, 50, lambda rate: " ".join([f"0+{rate}x{samples // 4 - 1}"] * 4)),
        *pod("comes", 20, 40, lambda rate: f"_x{samples * 2 // 3} 0+{rate}x{samples // 3}"),
        *pod("goes", 1, 200, lambda rate: f"0+{rate}x{samples * 3 // 4} stale"),
        *pod("unreachable", 5, 60, unreachable),
    ]


def recorded_windows_equal_the_raw_expressions():
    """Within 1 % of the expressions over the pods' counters, at several times while pods restart, come, go and cannot be scraped."""
    selected = 'tokometer_slo_events_total{slo="a99"%s}'
    for minutes, scrape, evaluated, windows in ((720, 30, "1m", ("5m", "30m", "1h", "2h", "6h")), (5760, 60, "5m", ("1d", "3d"))):
        expected = []
        for share in (0.55, 0.6, 0.7, 0.8, 0.95):
            at = minutes * share - minutes * share % 5
            for window in windows:
                bad, every = (f"sum by (namespace, model) (increase({selected % verdict}[{window}]))" for verdict in (',verdict="bad"', ""))
                recorded = f"max by (namespace, model) (slo:sli_error:ratio_rate{window})"
                expected.append((at, f"sum(abs({recorded} / ({bad} / {every}) - 1) < bool 0.01)", 1))
                recorded = f"max by (namespace, model) (slo:sli_bad:increase{window})"
                expected.append((at, f"sum(abs({recorded} / {bad} - 1) < bool 0.03)", 1))
        _run(_objectives([99]), [(f"{scrape}s", _unsteady_fleet(minutes * 60 // scrape), expected)], evaluated)


def page_resolves_after_an_outage():
    """A total outage of 20 minutes: the page lasts until no pair of windows is exceeded."""
    series = _events("a99", _steps((60, 120), (0, 20), (60, 460)), _steps((0, 120), (60, 20), (0, 460)))
    alert = "LLMAvailabilityErrorBudgetBurn"
    matchers = ',severity="critical"'
    # The limit of 1h and 5m is 14.4 %: 5m falls below it after 5 min. The limit of 6h and 30m is 6 %: 30m falls below
    # it after 29 min.
    firing = _firing(alert, matchers)
    _run(_objectives([99]), [("1m", series, [(139, firing, 1), (160, firing, 1), (180, firing, None)])])


def exhausted_budget_alert_weighs_requests_not_hours():
    """An hour of heavy traffic with 2 % bad spends the budget of 99 %, even after a long idle night of only good requests."""
    name = "LLMErrorBudgetExhausted"
    spent = _events("a99", _steps((1, 600), (9800, 60)), _steps((0, 600), (200, 60)))
    remaining = 'round(max(slo:period_error_budget_remaining:ratio{slo="a99"}), 0.1)'
    within_budget = _events("a99", _steps((1, 600), (9990, 60)), _steps((0, 600), (10, 60)))
    few = _events("a99", _steps((1, 100)), _steps((0, 50), (1, 4), (0, 46)))
    _run(
        _objectives([99]),
        [
            ("1m", spent, [(600, _firing(name), None), (600, remaining, 1), (655, _firing(name), 1), (655, remaining, -1)]),
            ("1m", within_budget, [(655, _fired_within(name, "11h"), None), (655, remaining, 0.9)]),
            ("1m", few, [(95, _fired_within(name, "2h"), None)]),
        ],
        # promtool ignores the intervals of groups. This interval is nearly that of the budget rules, because more samples
        # would add up to higher counts, but below the 5 minutes after which Prometheus 3 takes a sample as missing.
        "4m59s",
    )


def missing_objective_fires_its_alert():
    """The alert fires for a namespace that stops evaluating the objective. If no namespace evaluates it, the alert fires for all namespaces."""
    name = "LLMSLOMetricAbsent"
    labels = lambda namespace: f'{{slo="a99",model="m",namespace="{namespace}",pod="p",verdict="good"}}'  # noqa: E731
    info = lambda namespace: (f'tokometer_build_info{{namespace="{namespace}",pod="p"}}', "1x200")  # noqa: E731
    evaluated = (f"tokometer_slo_events_total{labels('here')}", "0+1x200")
    stopped = (f"tokometer_slo_events_total{labels('gone')}", "0+1x60 stale")
    firing_in = lambda namespace: _firing(name, f',namespace="{namespace}"')  # noqa: E731
    _run(_objectives([99]), [
        ("1m", [], [(100, _fired_within(name, "2h"), None)]),
        ("1m", [info("here"), info("other")], [(9, _firing(name), None), (12, firing_in("here"), 1), (12, firing_in("other"), 1)]),
        ("1m", [info("here"), info("other"), evaluated], [(100, _fired_within(name, "2h"), None)]),
        ("1m", [info("here"), info("gone"), evaluated, stopped], [
            (65, _firing(name), None), (75, firing_in("gone"), 1), (75, firing_in("here"), None),
        ]),
    ])


def _flat(value, steps=120):
    return f"{value}x{steps}"


def _pod(name, labels=""):
    return f"{name}{{{labels}{',' if labels else ''}{POD}}}"


def _buckets(instance, slow):
    """Streams of one server: at 20 to 25, or at 80 to 100 tokens per second."""
    labels = f'namespace="n",pod="{instance}",instance="{instance}",gen_ai_response_model="m"'
    name = "tokometer_decode_tokens_per_second"
    counts = [("15", 0), ("25", 30 if slow else 0), ("75", 30 if slow else 0), ("100", 30), ("+Inf", 30)]
    series = [(f'{name}_bucket{{{labels},le="{le}"}}', f"0+{count}x120") for le, count in counts]
    return [*series, (f"{name}_count{{{labels}}}", "0+30x120")]


def _alert_cases():
    """Alert -> series that make it fire, the last minute at which it must not fire, the minute at which it must fire, and
    series on which it must never fire."""
    in_flight = 'tokometer_in_flight{phase="%s",%s}'
    requests_total = "tokometer_requests_total"
    waiting, streaming = in_flight % ("waiting_first_token", POD), in_flight % ("streaming", POD)
    info = _pod("tokometer_build_info", 'version="x"')
    info_of_pod = (info, _flat(1))
    reload = _pod("tokometer_config_last_reload_successful")
    ended = lambda outcome, operation="chat": _pod(requests_total, f'outcome="{outcome}",gen_ai_operation_name="{operation}"')  # noqa: E731
    up = f'up{{{POD}}}'
    pod_skipped = 'kube_pod_annotations{namespace="n",pod="p",annotation_tokometer_skipped="the value of the engine flag --port is not 8000"}'
    pod_labels = 'kube_pod_labels{namespace="n",pod="p",label_tokometer_inject="true"}'
    phase = lambda phase: f'kube_pod_status_phase{{namespace="n",pod="p",phase="{phase}"}}'  # noqa: E731
    running = (phase("Running"), _flat(1))
    # vLLM's metrics page is a separate target.
    vllm = 'namespace="n",pod="p",instance="p:8000",job="vllm"'
    served = lambda handler="/v1/chat/completions": f'http_requests_total{{{vllm},method="POST",handler="{handler}",status="2xx"}}'  # noqa: E731
    engine = (f"vllm:num_requests_running{{{vllm}}}", _flat(1))
    choices = f'vllm:request_success_total{{{vllm},finished_reason="stop"}}'
    detached = lambda reason: _pod("tokometer_observer_detached_total", f'reason="{reason}"')  # noqa: E731
    failures, opened = _pod("tokometer_connect_failures_total", 'reason="refused"'), _pod("tokometer_connections_opened_total")
    of_port = lambda port, name: _pod(name, f'server_address="127.0.0.1",server_port="{port}"')  # noqa: E731
    reachable, wedged = _pod("tokometer_engine_reachable"), _pod("tokometer_engine_wedged")
    lag, started = _pod("tokometer_event_loop_lag_seconds"), _pod("process_start_time_seconds")
    restarts = 'kube_pod_init_container_status_restarts_total{namespace="n",pod="p",container="tokometer"}'
    fleet = [s for pod in ("a", "b", "c") for s in _buckets(pod, False)]
    return {
        # Requests in flight do not fire the alert while the engine is not reported as wedged.
        "LLMTokensStalled": (
            [(wedged, "0x30 1x90"), (info, _flat(1))], 30, 33,
            [[(wedged, _flat(0)), (streaming, _flat(1)), (info, _flat(1))]],
        ),
        "LLMQueueGrowing": (
            [(waiting, "0x30 0+2x90")], 35, 55,
            [[(waiting, _flat(20))], [(waiting, "0+0.04x120")], [(waiting, "60-1x50 10x70")]],
        ),
        "LLMPodSlowOutlier": ([*fleet, *_buckets("d", True)], 15, 35, [[*fleet, *_buckets("d", False)], _buckets("d", True)]),
        "LLMTruncatedStreams": (
            [(ended("ok"), "0+20x120"), (ended("truncated"), "0x30 0+1x90")], 30, 45,
            [
                [(ended("ok"), "0+1000x120"), (ended("truncated"), "0+1x120")], [(ended("ok"), "0+1x120"), (ended("truncated"), "0x30 1x90")],
                [(ended("ok"), "0+20x120"), (ended("truncated", "other"), "0+1x120")],
            ],
        ),
        "LLMTruncatedStreams among probes": (
            [(ended("ok", "other"), "0+1000x120"), (ended("ok"), "0+20x120"), (ended("truncated"), "0x30 0+1x90")], 30, 45, [],
        ),
        "LLMUpstreamDown": (
            [(failures, "0x30 0+5x90"), (opened, "0+5x120")], 30, 35,
            [
                [(failures, "0+1x120"), (opened, "0+5x120")], [(failures, "0x30 1x90"), (opened, "0x30 1x90")],
                # A server that loads its model for the first time, and one that is reachable.
                [(reachable, "0x120")], [(reachable, "0x20 1x100")],
            ],
        ),
        # The alert still fires when the last success is more than an hour ago.
        "LLMUpstreamDown after success": ([(reachable, "1x30 0x90")], 30, 33, []),
        "LLMUpstreamDown still": ([(reachable, "1x30 0x400")], 30, 400, []),
        # One data-parallel rank of two: connections to the other rank, or its first start, do not suppress the alert.
        "LLMUpstreamDown rank": (
            [
                (of_port(8000, "tokometer_connect_failures_total"), "0x30 0+5x90"),
                *((of_port(port, "tokometer_connections_opened_total"), f"0+{n}x120") for port, n in ((8000, 5), (8001, 100))),
            ],
            30, 35, [],
        ),
        "LLMUpstreamDown rank after success": (
            [(of_port(8000, "tokometer_engine_reachable"), "1x30 0x90"), (of_port(8001, "tokometer_engine_reachable"), "0x120")], 30, 33,
            [[(of_port(8000, "tokometer_engine_reachable"), _flat(1)), (of_port(8001, "tokometer_engine_reachable"), _flat(0))]],
        ),
        "LLMClientDisconnectsHigh": (
            [(ended("ok"), "0+10x120"), (ended("client_abort_mid_stream"), "0x30 0+5x90")], 45, 65,
            [
                [(ended("ok"), "0+10x120"), (ended("client_abort_mid_stream"), "0+1x120")], [(ended("client_abort_before_first_token"), "0x60 5x60")],
                [(ended("ok"), "0+10x120"), (ended("client_abort_before_first_token", "other"), "0+5x120")],
            ],
        ),
        "LLMClientDisconnectsHigh among probes": (
            [(ended("ok", "other"), "0+100x120"), (ended("ok"), "0+10x120"), (ended("client_abort_mid_stream"), "0x30 0+5x90")], 45, 65, [],
        ),
        "LLMSidecarDown": (
            [(up, "1x30 0x300"), (info, "1x30 stale")], 33, 37,
            [[(up, _flat(1)), (info, _flat(1))], [('up{job="other",instance="o"}', _flat(0)), (info, _flat(1))]],
        ),
        "LLMSidecarDown still": ([(up, "1x30 0x300"), (info, "1x30 stale")], 33, 300, []),
        "LLMSidecarMissing": (
            [(pod_labels, _flat(1)), (pod_skipped, _flat(1)), running], 8, 12,
            [
                [(pod_labels, _flat(1)), (info, _flat(1)), running], [('kube_pod_labels{namespace="n",pod="p"}', _flat(1)), running],
                # A pod that has not started, and one that has ended.
                *([(pod_labels, _flat(1)), (phase("Running"), _flat(0)), (phase(other), _flat(1))] for other in ("Pending", "Succeeded", "Failed")),
            ],
        ),
        "LLMSidecarBypassed": (
            [(served(), "0+60x120"), engine, (ended("ok"), "0+30x120"), (ended("ok", "other"), "0+60x120")], 14, 35,
            [
                [(served(), "0+30x120"), engine, (ended("ok"), "0+30x120")], [(served(), "0x60 4x60"), engine, (ended("ok"), _flat(0))],
                # Two choices for each request, requests for lists of models, and another program in the pod.
                [(choices, "0+60x120"), (served(), "0+30x120"), engine, (ended("ok"), "0+30x120")],
                [(served("/v1/models"), "0+60x120"), engine, info_of_pod], [(served(), "0+60x120"), info_of_pod],
                # Another alert covers pods without tokometer.
                [(served(), "0+60x120"), engine],
            ],
        ),
        # No request has ever passed through tokometer.
        "LLMSidecarBypassed entirely": ([(served(), "0+60x120"), engine, info_of_pod], 14, 35, []),
        "LLMSidecarBypassed address in use": (
            [(_pod("tokometer_listening", 'state="address_in_use"'), _flat(1))], 14, 17,
            [[(_pod("tokometer_listening", 'state="open"'), _flat(1))]],
        ),
        "LLMSidecarTelemetryDropped": (
            [(_pod("tokometer_telemetry_spans_dropped_total"), "0x30 0+1x90")], 35, 45,
            [[(_pod("tokometer_telemetry_spans_dropped_total"), _flat(7)), (_pod("tokometer_telemetry_exports_failed_total", 'signal="traces"'), _flat(3))]],
        ),
        "LLMSidecarParseFallback": (
            [(detached("malformed_request"), "0x30 0+1x90")], 35, 45,
            [[(detached("upgraded"), "0+9x120")], [(detached("malformed_request"), "0x30 4x90")]],
        ),
        "LLMSidecarRestarting": (
            [(restarts, "0x10 1x9 2x9 3x90")], 20, 35,
            [[(restarts, "0x10 1x110"), (started, "100x10 200x110"), (info, _flat(1))], [(started, "1+1x120")]],
        ),
        "LLMSidecarConfigInvalid": ([(reload, "1x30 0x90")], 33, 37, [[(reload, _flat(1))], [(reload, "1x30 0x3 1x87")]]),
        "LLMSidecarOverheadHigh": ([(lag, "0.0001x30 0.02x90")], 35, 50, [[(lag, _flat(0.001))]]),
    }


def one_down_server_opens_a_ticket_and_half_down_pages():
    """Of four servers in a namespace one, two or three hang or are unreachable."""
    series_of = lambda name, pod: f'{name}{{namespace="n",pod="{pod}",instance="{pod}",job="j"}}'  # noqa: E731
    tests = []
    for alert, metric, bad, good in (("LLMTokensStalled", "tokometer_engine_wedged", 1, 0), ("LLMUpstreamDown", "tokometer_engine_reachable", 0, 1)):
        for affected in (1, 2, 3):
            series = [(series_of(name, pod), _flat(1)) for name in ("tokometer_build_info", "tokometer_listening") for pod in "abcd"]
            series += [(series_of(metric, pod), f"{good}x30 {bad if n < affected else good}x90") for n, pod in enumerate("abcd")]
            page = f'count(ALERTS{{alertname="{alert}",severity="critical",alertstate="firing",namespace="n",pod=""}})'
            ticket = f'count(ALERTS{{alertname="{alert}",severity="warning",alertstate="firing",pod!=""}})'
            tests.append(("1m", series, [(60, ticket, affected), (60, page, 1 if affected >= 2 else None), (29, _firing(alert), None)]))
    # The same for the data-parallel ranks of two pods.
    series_of_rank = lambda name, pod, port: (  # noqa: E731
        f'{name}{{namespace="n",pod="{pod}",instance="{pod}",job="j",server_address="127.0.0.1",server_port="{port}"}}'
    )
    ranks = [(pod, port) for pod in "ab" for port in (8000, 8001)]
    for affected in (1, 2):
        series = [(series_of_rank("tokometer_listening", *rank), _flat(1)) for rank in ranks]
        # One rank of each pod.
        unreachable = ranks[::2][:affected]
        reachable = [(rank, "1x30 0x90" if rank in unreachable else _flat(1)) for rank in ranks]
        series += [(series_of_rank("tokometer_engine_reachable", *rank), samples) for rank, samples in reachable]
        ticket = _firing("LLMUpstreamDown", ',severity="warning",server_port="8000"')
        page = _firing("LLMUpstreamDown", ',severity="critical"')
        tests.append(("1m", series, [(60, ticket, affected), (60, page, 1 if affected == 2 else None)]))
    _run({"enabled": False}, tests)


def _server(pod, model="m"):
    """Labels of one pod's series, and the series of a server that served this model."""
    labels = f'namespace="n",pod="{pod}",instance="{pod}",job="j"'
    requests = f'tokometer_requests_total{{{labels},gen_ai_response_model="{model}",gen_ai_operation_name="chat",outcome="ok"}}'
    return labels, requests


def _alerts(name, severity, matchers=""):
    return f'count(ALERTS{{alertname="{name}",severity="{severity}",alertstate="firing"{matchers}}})'


def outage_alert_lasts_as_long_as_the_outage():
    """Outages of 5 minutes, 2 and 26 hours. Prometheus fails to scrape for 3 and for 20 minutes meanwhile, tokometer restarts once."""
    labels, requests = _server("p")
    tests = []
    for minutes in (5, 120, 26 * 60):
        up, reachable, served = f"1x{20 + minutes + 60}", f"1x19 0x{minutes - 1} 1x60", f"0+5x19 95x{minutes + 60}"
        if minutes >= 120:
            # From minute 60 of the outage: 3 failed scrapes; from minute 80: 20 failed scrapes, then a new process.
            reachable = f"1x19 0x39 stale _x2 0x16 stale _x19 0x{minutes - 81} 1x60"
            served = "0+5x19 95x59 stale"
            up = f"1x59 0x2 1x16 0x19 1x{minutes}"
        series = [
            (f"tokometer_engine_reachable{{{labels}}}", reachable), (f"tokometer_listening{{{labels}}}", reachable.replace("0x", "1x")),
            (f"up{{{labels}}}", up), (requests, served),
        ]
        for severity, matchers in (("critical", ',namespace="n",model="m",pod=""'), ("warning", ',pod="p",model="m"')):
            firing = _alerts("LLMUpstreamDown", severity, matchers)
            begin, end = 23, 20 + minutes
            # Firing at every minute of the outage: no flapping.
            lasting = f"count_over_time(({firing})[{minutes - 4}m:1m])"
            tests.append(("1m", series, [
                (20, firing, None), (begin, firing, 1), (end - 1, f"{lasting} >= bool {minutes - 4}", 1), (end + 2, firing, None),
            ]))
    _run({"enabled": False}, tests)


def outage_of_a_whole_model_is_a_page():
    tests = []
    page = lambda model: _alerts("LLMUpstreamDown", "critical", f',namespace="n",model="{model}"')  # noqa: E731
    any_page = _alerts("LLMUpstreamDown", "critical")
    tickets = _alerts("LLMUpstreamDown", "warning")
    stalled = lambda severity: _alerts("LLMTokensStalled", severity)  # noqa: E731

    def fleet(servers, state="0x60"):
        """Servers as (pod, model, whether it fails after 30 minutes)."""
        series = []
        for pod, model, fails in servers:
            labels, requests = _server(pod, model)
            series += [(f"tokometer_listening{{{labels}}}", _flat(1)), (requests, "0+5x120"), (f"tokometer_engine_wedged{{{labels}}}", _flat(0))]
            series += [(f"tokometer_engine_reachable{{{labels}}}", f"1x30 {state}" if fails else _flat(1))]
        return series

    three = [("a", "x", True), ("b", "y", False), ("c", "z", False)]
    tests.append(("1m", fleet(three), [(29, any_page, None), (33, page("x"), 1), (33, any_page, 1), (33, tickets, 1), (85, page("x"), 1)]))
    tests.append(("1m", fleet([("a", "x", True)]), [(33, page("x"), 1), (33, any_page, 1)]))
    twenty = [(f"p{n}", "x", n == 0) for n in range(20)]
    tests.append(("1m", fleet(twenty), [(60, any_page, None), (60, tickets, 1)]))
    # Deleted while it is down, as when the model is scaled to zero.
    tests.append(("1m", fleet([("a", "x", True)], "0x10 stale"), [(38, page("x"), 1), (50, any_page, None), (50, tickets, None)]))
    # A frozen engine of three models with one server each.
    frozen = [(name, "0x30 1x90") if "wedged" in name and 'pod="a"' in name else (name, v) for name, v in fleet([(p, m, False) for p, m, _ in three])]
    tests.append(("1m", frozen, [(29, stalled("critical"), None), (33, stalled("critical"), 1), (33, stalled("warning"), 1)]))
    _run({"enabled": False}, tests)


def lost_requests_burn_the_budget_unless_another_server_is_healthy():
    """One server of two is down for 2 hours, or both are. The lost requests are estimated at the rate of 60 per minute."""
    tests = []
    for dead in (1, 2):
        series = []
        for number, pod in enumerate("ab"):
            labels, requests = _server(pod)
            fails = number < dead
            series += [
                (f"tokometer_listening{{{labels}}}", _flat(1, 500)), (requests, "0+60x500"),
                (f"tokometer_engine_reachable{{{labels}}}", "1x199 0x119 1x180" if fails else _flat(1, 500)),
                (f'tokometer_slo_events_total{{slo="a99",model="m",{labels},verdict="good"}}', _steps((60, 200), (0, 120), (60, 180)) if fails else _steps((60, 500))),
                (f'tokometer_slo_events_total{{slo="a99",model="m",{labels},verdict="bad",reason="http_5xx"}}', _flat(0, 500)),
                (f'tokometer_slo_lost_events_total{{slo="a99",model="m",{labels}}}', _steps((0, 200), (60, 120), (0, 180)) if fails else _flat(0, 500)),
            ]
        bad = "sum(slo:sli_bad:increase6h)"
        firing = _firing("LLMAvailabilityErrorBudgetBurn", ',severity="critical",model="m"')
        if dead == 1:
            expected = [(330, f"{bad} < bool 1", 1), (330, firing, None)]
        else:
            truth = 2 * 60 * 120
            expected = [(330, f"abs({bad} - {truth}) < bool {truth * 0.05}", 1), (210, firing, 1), (319, firing, 1), (319, f"count_over_time(({firing})[108m:1m]) >= bool 108", 1)]
        tests.append(("1m", series, expected))
    _run(_objectives([99]), tests)


def every_alert_fires_and_stays_silent_as_specified():
    tests = []
    for case, (series, not_yet, due, silent_cases) in _alert_cases().items():
        name = case.partition(" ")[0]
        unlabeled = _firing(name, ',namespace="",pod="",model=""')
        expected = [(not_yet, _fired_within(name, "2h"), None), (due, f"{_firing(name)} > bool 0", 1), (due, unlabeled, None)]
        tests.append(("1m", series, expected))
        tests += [("1m", silent, [(119, _fired_within(name, "2h"), None)]) for silent in silent_cases]
    _run({"enabled": False}, tests)
    print(f"    {len(_alert_cases())} alerts, {len(tests)} cases")


def daily_budget_alerts_warn_fire_and_resolve_at_midnight():
    """The series have one sample per minute, from midnight on. The group is evaluated every 5 minutes, its interval."""
    limit = 1_000_000
    labels = f'budget="daily",unit="tokens",{POD}'
    burning, exhausted = "LLMTokenBudgetBurn", "LLMTokenBudgetExhausted"
    day = 24 * 60
    budget = lambda *steps: [  # noqa: E731
        (f"tokometer_budget_spent_total{{{labels}}}", _steps(*steps)), (f"tokometer_budget_limit{{{labels}}}", _flat(limit, 3000)),
    ]
    silent_until = lambda minutes: [(at, _fired_within(f"{burning}|{exhausted}", f"{at}m"), None) for at in minutes]  # noqa: E731
    today, by_midnight = "max(tokometer:budget_spent:today)", "max(tokometer:budget_spent:by_midnight)"
    cases = {
        # Usage of 1.2 times the budget in a day: predicted when a tenth is used, after 120 minutes, plus 15 minutes.
        # Exhausted after 1200 minutes.
        "20 percent too much": (budget((limit * 1.2 / day, day + 60)), [
            (115, _fired_within(burning, "115m"), None), (150, _firing(burning), 1),
            (1190, _firing(exhausted), None), (1190, _firing(burning), 1), (1215, _firing(exhausted), 1), (1215, _firing(burning), None),
            (600, f"round({today}, 1000)", 500_000), (600, f"round({by_midnight}, 10000)", limit * 1.2),
            # Resolved at midnight: of the previous day, the new day includes only the 5 minutes before midnight.
            (day + 10, _firing(exhausted), None), (day + 50, f"round({today}, 1000)", 46_000),
        ]),
        "90 percent each day": (budget((limit * 0.9 / day, 2 * day)), silent_until((day - 5, 2 * day - 5))),
        # An hour's burst at ten times the rate, early: less than a tenth of the budget.
        "a burst at night": (budget((0, 60), (1500, 60), (100, 900)), silent_until((1000,))),
        # Ten minutes at ten times the rate: the hourly rate rises, but the day's budget suffices.
        "a burst at noon": (budget((300, 720), (3500, 10), (300, 400)), silent_until((1100,))),
        # Not predicted, but the exhausted alert fires.
        "exhausted within minutes": (budget((0, 30), (250_000, 5), (0, 200)), [
            (25, _fired_within(exhausted, "25m"), None), (45, _firing(exhausted), 1), (230, _firing(exhausted), 1),
        ]),
        # Two servers of one namespace: each is below its share, together they exceed the budget.
        "two servers": (
            [(s.replace('instance="i"', f'instance="{i}"'), v) for i in "ij" for s, v in budget((limit * 0.6 / day, day))],
            [(600, f"round({today}, 1000)", 500_000), (600, _firing(burning), 1)],
        ),
        "no budget": ([], silent_until((100,))),
    }
    _run({"enabled": False}, [("1m", series, expected) for series, expected in cases.values()], "5m")
    print(f"    {len(cases)} cases: {', '.join(cases)}")


def every_alert_has_a_test():
    with tempfile.TemporaryDirectory() as directory:
        text = _rules(directory).read_text()
    alerts = {line.split(":")[1].strip() for line in text.splitlines() if line.strip().startswith("- alert:")}
    tested = {*(case.partition(" ")[0] for case in _alert_cases()), *(f"LLM{word}ErrorBudgetBurn" for word in NAMES.values())}
    tested |= {"LLMErrorBudgetExhausted", "LLMSLOMetricAbsent", "LLMTokenBudgetBurn", "LLMTokenBudgetExhausted"}
    assert alerts == tested, alerts ^ tested
