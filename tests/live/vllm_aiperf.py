"""aiperf's values compared with tokometer's and vLLM's own, for the same requests to a real vLLM. Part of `make live-vllm`;
prints a table of docs/concepts/differences.md."""

import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import names
from process import Skip, Tokometer
from vllm_process import MODEL, engine, metric_total

# vLLM takes a minute or two to start, more on a busy machine.
MAX_SECONDS = 1200

REQUESTS, CONCURRENCY, TOKENS = 60, 4, 64
# aiperf's metric in its export file, its label in the table, and the record's value to compare it with.
COMPARED = (
    ("time_to_first_token", "time to first token, ms", lambda record: record["time_to_first_token_ms"]),
    ("request_latency", "duration, ms", lambda record: record["duration_ms"]),
    ("inter_token_latency", "time per token after the first, ms", lambda record: 1000 / record["decode_tokens_per_second"] if record["decode_tokens_per_second"] else None),
    ("output_sequence_length", "output tokens", lambda record: record["output_tokens"]),
    ("input_sequence_length", "prompt tokens", lambda record: record["input_tokens"]),
)


def _profile(port, directory):
    """Runs aiperf; returns its summary by metric."""
    program = shutil.which("aiperf")
    if not program:
        raise Skip("no aiperf; `make live-vllm` installs it")
    argv = [program, "profile", "--model", "tiny", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", "chat", "--streaming"]
    argv += ["--tokenizer", str(MODEL), "--use-server-token-count", "--request-count", str(REQUESTS), "--concurrency", str(CONCURRENCY)]
    argv += ["--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(TOKENS), "--extra-inputs", "ignore_eos:true"]
    argv += ["--ui", "none", "--workers-max", "2", "--random-seed", "1", "--output-artifact-dir", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400)
    files = list(Path(directory).rglob("profile_export_aiperf.json"))
    assert done.returncode == 0 and files, done.stdout[-1500:] + done.stderr[-1500:]
    return json.loads(files[0].read_text())


def _statistics(values):
    ordered = sorted(values)
    percentile = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return statistics.fmean(ordered), percentile(0.5), percentile(0.99)


def _compare(server):
    """Compares the values of aiperf, tokometer and vLLM for one engine."""
    engine_metrics = ("vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds")
    totals = lambda: {f"{name}_{part}": metric_total(server.port, f"{name}_{part}") for name in engine_metrics for part in ("sum", "count")}
    before = totals()
    with tempfile.TemporaryDirectory(prefix="aiperf-") as directory, Tokometer(server.port) as relay:
        summary = _profile(relay.port, directory)
        records = [record for record in relay.records() if record["operation"] == "chat" and record["streaming"]]
        assert len(records) == REQUESTS and all(record["outcome"] == names.OK for record in records), len(records)
        assert all(record["output_tokens"] == TOKENS and record["output_tokens_source"] == "usage" for record in records), records[0]
        print(f"    aiperf, {REQUESTS} streams of {TOKENS} tokens, {CONCURRENCY} at a time; mean, p50, p99")
        for metric, label, value_of in COMPARED:
            aiperf_values = [summary[metric][statistic] for statistic in ("avg", "p50", "p99")]
            values = _statistics([value_of(record) for record in records if value_of(record) is not None])
            columns = [", ".join(f"{value:.2f}" for value in column) for column in (aiperf_values, values)]
            print(f"    | {label} | {columns[0]} | {columns[1]} |")
        increases = {name: value - before[name] for name, value in totals().items()}
        means_ms = {name: 1000 * increases[f"{name}_sum"] / increases[f"{name}_count"] for name in engine_metrics}
        print("    vLLM's own means: " + ", ".join(f"{name} {mean:.2f} ms" for name, mean in means_ms.items()))
        # aiperf takes its counts from the same `usage` as tokometer.
        assert summary["output_sequence_length"]["avg"] == TOKENS, summary["output_sequence_length"]
        # aiperf's clock starts before the request reaches tokometer, and stops after the token has left it.
        mean_ms = statistics.fmean(record["time_to_first_token_ms"] for record in records)
        assert mean_ms <= summary["time_to_first_token"]["avg"], (mean_ms, summary["time_to_first_token"])


def aiperf_and_tokometer_measure_the_same_requests():
    with engine("python") as server:
        _compare(server)
