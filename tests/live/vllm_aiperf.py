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
from vllm_process import MODEL, engine, samples

# vLLM takes a minute or two to start, more on a busy machine.
MAX_SECONDS = 1200

REQUESTS, AT_A_TIME, TOKENS = 60, 4, 64
# Metrics of aiperf in its export file, and the record's value that is to be compared.
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
    argv += ["--tokenizer", str(MODEL), "--use-server-token-count", "--request-count", str(REQUESTS), "--concurrency", str(AT_A_TIME)]
    argv += ["--synthetic-input-tokens-mean", "50", "--output-tokens-mean", str(TOKENS), "--extra-inputs", "ignore_eos:true"]
    argv += ["--ui", "none", "--workers-max", "2", "--random-seed", "1", "--output-artifact-dir", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=400)
    files = list(Path(directory).rglob("profile_export_aiperf.json"))
    assert done.returncode == 0 and files, done.stdout[-1500:] + done.stderr[-1500:]
    return json.loads(files[0].read_text())


def _statistics(values):
    ordered = sorted(values)
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return statistics.fmean(ordered), at(0.5), at(0.99)


def _compare(server):
    """Compares the three for one engine."""
    own = ("vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:inter_token_latency_seconds")
    totals = lambda: {f"{name}_{part}": samples(server.port, f"{name}_{part}") for name in own for part in ("sum", "count")}
    before = totals()
    with tempfile.TemporaryDirectory(prefix="aiperf-") as directory, Tokometer(server.port) as relay:
        summary = _profile(relay.port, directory)
        records = [record for record in relay.records() if record["operation"] == "chat" and record["streaming"]]
        assert len(records) == REQUESTS and all(record["outcome"] == names.OK for record in records), len(records)
        assert all(record["output_tokens"] == TOKENS and record["output_tokens_source"] == "usage" for record in records), records[0]
        print(f"    aiperf, {REQUESTS} streams of {TOKENS} tokens, {AT_A_TIME} at a time; mean, p50, p99")
        for metric, what, of in COMPARED:
            theirs = summary[metric]
            ours = _statistics([of(record) for record in records if of(record) is not None])
            print(f"    | {what} | {theirs['avg']:.2f}, {theirs['p50']:.2f}, {theirs['p99']:.2f} | {ours[0]:.2f}, {ours[1]:.2f}, {ours[2]:.2f} |")
        added = {name: value - before[name] for name, value in totals().items()}
        print("    vLLM's own means: " + ", ".join(f"{name} {1000 * added[f'{name}_sum'] / added[f'{name}_count']:.2f} ms" for name in own))
        # The counts are the same numbers of the same `usage`.
        assert summary["output_sequence_length"]["avg"] == TOKENS, summary["output_sequence_length"]
        # aiperf's clock starts before the request reaches tokometer, and stops after the token has left it.
        ours = statistics.fmean(record["time_to_first_token_ms"] for record in records)
        assert ours <= summary["time_to_first_token"]["avg"], (ours, summary["time_to_first_token"])


def aiperf_and_tokometer_measure_the_same_requests():
    with engine("python") as server:
        _compare(server)
