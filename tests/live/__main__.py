"""Tests against real components: `python tests/live SUITE [NAME...]`.

Each public function of the module is one test. The exit code is 0 when all passed, 1 when one failed, and 77 when none
failed and one could not run here (the last line says why).
"""

import importlib
import inspect
import os
import signal
import sys
import time
import traceback

from process import Skip

# No test takes longer; one that does hangs.
MOST_SECONDS = 180 + sum(int(float(os.environ.get(name, "0"))) for name in ("SOAK_SECONDS", "RELIABILITY_SECONDS"))
SUITES = ("engine", "routes", "clients", "http2", "websocket", "exporters", "reliability", "soak", "ollama_server")


def _hangs(*_):
    raise TimeoutError(f"not done within {MOST_SECONDS} s")


def main(suite, *wanted):
    module = importlib.import_module(suite)
    tests = [
        (name, test)
        for name, test in vars(module).items()
        if inspect.isfunction(test) and test.__module__ == suite and not name.startswith("_")
    ]
    signal.signal(signal.SIGALRM, _hangs)
    passed, failed, skipped = 0, 0, []
    for name, test in tests:
        if wanted and name not in wanted:
            continue
        started = time.monotonic()
        signal.alarm(MOST_SECONDS)
        try:
            test()
        except Skip as reason:
            skipped.append(f"{name}: {reason}")
            print(f"  SKIP {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"  FAIL {name} ({time.monotonic() - started:.1f} s)", flush=True)
        else:
            passed += 1
            print(f"  pass {name} ({time.monotonic() - started:.1f} s)", flush=True)
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
