"""Tests against real components: `python tests/live SUITE [NAME...]`.

Each public function of the module is one test; a suite that is a package lists its modules in PARTS. Exit codes: 0 if all
passed, 1 if one failed, 77 if none failed and at least one could not run here (the last line gives the reason).
"""

import importlib
import inspect
import os
import signal
import sys
import time
import traceback

from process import Skip

# Timeout per test, unless the suite sets its own. A test that exceeds the timeout counts as hanging.
MAX_SECONDS = 180 + sum(int(float(os.environ.get(name, "0"))) for name in ("SOAK_SECONDS", "RELIABILITY_SECONDS"))
SUITES = ("engine", "queueing", "routes", "routes_targets", "clients", "http2", "websocket", "exporters", "rules", "rule_cost", "dashboard_promql", "dashboards", "alerts", "chart", "policy", "spans", "wedge", "verify", "reliability", "rewrite", "soak", "ollama_server", "vllm_server", "vllm_targets", "vllm_spans", "vllm_cancelled", "vllm_frozen", "vllm_mixed", "vllm_interval", "vllm_aiperf", "picture_trace", "picture_dashboards", "live_page", "top", "tap", "tap_links", "tap_engine", "netns", "kustomize", "lifecycle", "guide", "guide_values", "cluster", "odd_requests", "tap_attacks")


def _raise_timeout(*_):
    raise TimeoutError("test timed out")


def main(suite, *wanted):
    module = importlib.import_module(suite)
    parts = [importlib.import_module(f"{suite}.{part}") for part in getattr(module, "PARTS", ())] or [module]
    tests = [
        (name, test)
        for part in parts
        for name, test in vars(part).items()
        if inspect.isfunction(test) and test.__module__ == part.__name__ and not name.startswith("_")
    ]
    signal.signal(signal.SIGALRM, _raise_timeout)
    max_seconds = getattr(module, "MAX_SECONDS", MAX_SECONDS)
    attempts = getattr(module, "ATTEMPTS", 1)
    passed, failed, skipped = 0, 0, []
    for name, test in tests:
        if wanted and name not in wanted:
            continue
        for attempt in range(1, attempts + 1):
            started = time.monotonic()
            signal.alarm(max_seconds)
            try:
                test()
            except Skip as reason:
                skipped.append(f"{name}: {reason}")
                print(f"  SKIP {name}: {reason}", flush=True)
                break
            except Exception:
                traceback.print_exc()
                print(f"  FAIL {name} ({time.monotonic() - started:.1f} s){', retrying' if attempt < attempts else ''}", flush=True)
                failed += attempt == attempts
            else:
                passed += 1
                print(f"  pass {name} ({time.monotonic() - started:.1f} s{', at the second attempt' if attempt > 1 else ''})", flush=True)
                break
            finally:
                signal.alarm(0)
    print(f"{suite}: {passed} passed, {failed} failed, {len(skipped)} skipped")
    if failed:
        return 1
    if skipped:
        print("; ".join(skipped))
        return 77
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SUITES:
        sys.exit(f"usage: python tests/live {'|'.join(SUITES)} [NAME...]")
    sys.exit(main(*sys.argv[1:]))
