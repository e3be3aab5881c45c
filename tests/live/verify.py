"""`tokometer verify` on a real llama-server and on the simulated vLLM, checked by its exit codes and its JSON."""

import json
import subprocess

from process import BINARY, Tokometer, free_port, start_llama_server, start_sim


def _verify(relay, upstream, admin, *flags):
    """Exit code, checks by name, and the whole report."""
    urls = [f"http://127.0.0.1:{port}" for port in (relay, upstream, admin)]
    argv = [BINARY, "verify", "--relay", urls[0], "--upstream", urls[1], "--admin", urls[2], "--max-added", "100ms", *flags]
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=150, check=False)
    report = json.loads(done.stdout)
    for check in report["checks"]:
        print(f"    {check['grade']:<8} {check['name']:<8} {check['detail']}")
    return done.returncode, {check["name"]: check for check in report["checks"]}, report


def real_engine_passes_all_checks():
    with start_llama_server("--alias", "tiny") as server, Tokometer(server.port) as relay:
        code, checks, report = _verify(relay.port, server.port, relay.admin, "--requests", "10")
        assert code == 0 and report["passed"], checks
        assert (report["model"], report["engine"]) == ("tiny", "llama.cpp"), report
        assert {name: check["grade"] for name, check in checks.items()} == dict.fromkeys(checks, "pass"), checks
        # The server's greedy responses are identical each time.
        assert "text, byte for byte" in checks["bytes"]["detail"] and "rejected request: every byte" in checks["bytes"]["detail"], checks["bytes"]
        assert "header_timing" in checks["queue"]["detail"], checks["queue"]
        assert len(report["latency"]) == 6, report["latency"]


def missing_usage_warns_and_unreachable_server_fails():
    with start_sim("--rate", "1000", "--ttft-ms", "5") as sim, Tokometer(sim.port) as relay:
        code, checks, _ = _verify(relay.port, sim.port, relay.admin, "--requests", "6")
        assert code == 0 and checks["usage"]["grade"] == "warn" and "--enable-force-include-usage" in checks["usage"]["fix"], checks
        code, checks, _ = _verify(relay.port, sim.port, relay.admin, "--requests", "6", "--accept", "usage")
        assert code == 0 and checks["usage"]["grade"] == "accepted", checks
        code, checks, _ = _verify(relay.port, free_port(), relay.admin)
        assert code == 1 and list(checks) == ["reach"] and "cannot be reached" in checks["reach"]["detail"], checks


def text_report_and_usage_error():
    with start_sim("--rate", "1000", "--ttft-ms", "5", "--request-metrics") as sim, Tokometer(sim.port) as relay:
        urls = [f"http://127.0.0.1:{port}" for port in (relay.port, sim.port, relay.admin)]
        argv = [BINARY, "verify", "--relay", urls[0], "--upstream", urls[1], "--admin", urls[2], "--requests", "6"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        print("      " + done.stdout.replace("\n", "\n      "))
        assert done.returncode == 0 and "WARN      usage" in done.stdout and "first token p50" in done.stdout, done
    invalid = subprocess.run([BINARY, "verify", "--relay", "here"], capture_output=True, text=True, timeout=30, check=False)
    assert invalid.returncode == 2 and "http://HOST:PORT" in invalid.stderr, invalid
