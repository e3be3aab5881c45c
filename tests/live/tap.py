"""`tokometer tap` on a bad network, and in a terminal."""

import os
import re
import shlex
import signal
import subprocess
import tempfile
from pathlib import Path

import names
from process import BINARY, Skip, free_port, get, metrics, start_sim, total, until
from tap_rig import POD_IP, BadNetwork, check_complete, metric_sum
from terminal import Terminal

REQUESTS, TOKENS = 200, 40


def _measure_on_bad_network(mtu, seed):
    with BadNetwork(mtu, seed) as network:
        network.sim(f"{POD_IP}:8000")
        taps = {"server": network.pod, "client": network.client}
        for name, namespace in taps.items():
            network.tap(namespace, name, "--port=8000", "--interface=link0")
        summary = network.load(network.client, f"http://{POD_IP}:8000", REQUESTS, TOKENS, "--concurrency=16")
        for name, namespace in taps.items():
            records, page = network.records(name, REQUESTS), network.page(namespace)
            outcomes = {record["outcome"] for record in records}
            assert outcomes == {names.OK}, (name, outcomes)
            assert sum(record["output_tokens"] for record in records) == summary["tokens_from_usage"], name
            assert not any(record["capture_loss"] for record in records), name
            check_complete(page)
            # The link lost, repeated and swapped packets as intended, and the taps counted that.
            kinds = ("retransmitted", "out_of_order", "duplicate")
            irregular = {kind: metric_sum(page, "tokometer_capture_segments_irregular_total", f'"{kind}"') for kind in kinds}
            print(f"    {name}, MTU {mtu}: {irregular}")
            assert irregular["duplicate"] + irregular["retransmitted"] > 20, (name, irregular)
            if name == "client":
                assert irregular["out_of_order"] > 20, "packets reach the client out of order"
            else:
                assert irregular["retransmitted"] > 20, "the server retransmits lost packets"
                assert sum(record["retransmits"] or 0 for record in records) > 20, "retransmissions to clients"
                assert all(record["rtt_ms"] is None or record["rtt_ms"] >= 2 for record in records), "the link takes 1 ms each way"


def loss_reordering_and_duplicates_change_no_count():
    _measure_on_bad_network(1500, 1)


def small_packets_change_no_count():
    _measure_on_bad_network(600, 2)


def reload_keeps_the_screen_free_of_log_lines():
    with start_sim("--rate", "50", "--ttft-ms", "50") as sim, Terminal(100, 30) as terminal, tempfile.TemporaryDirectory() as directory:
        config, admin = Path(directory) / "tokometer.yaml", free_port()
        config.write_text("log: {level: info}\n")
        argv = [BINARY, "tap", "--port", str(sim.port), "--interface", "lo", "--top", "--admin", f"127.0.0.1:{admin}", "--config", str(config)]
        terminal.type(shlex.join(argv) + "; echo ended=$?")
        terminal.wait_for("tokometer top", "q quit")
        if "NET_RAW" in terminal.text():
            raise Skip("no capability NET_RAW")
        config.write_text("log: {level: debug}\nwedge: {decode: 61s}\n")
        until(lambda: "61s" in get(f"http://127.0.0.1:{admin}/config")[1], "the file is reloaded")
        assert re.search(r"level: \"?off", get(f"http://127.0.0.1:{admin}/config")[1]), "the screen keeps its log level"
        # The screen shows requests, and no log lines.
        subprocess.run([BINARY, "load", "--url", f"http://127.0.0.1:{sim.port}", "--requests", "4", "--max-tokens", "20"], check=True, capture_output=True)
        until(lambda: total(metrics(f"http://127.0.0.1:{admin}/metrics"), "tokometer_requests_total") == 4, "the requests are measured")
        text = terminal.text()
        assert "Changed" not in text and "WARN" not in text and "INFO" not in text, text
        terminal.press("q")
        terminal.wait_for("ended=0")


def hangup_ends_the_screen():
    with start_sim() as sim, Terminal(100, 30) as terminal:
        admin = free_port()
        argv = [BINARY, "tap", "--port", str(sim.port), "--interface", "lo", "--top", "--admin", f"127.0.0.1:{admin}"]
        terminal.type("echo pid=$$; exec 3>&1; sh -c 'echo $$ > /tmp/tokometer-tap-pid-" + str(admin) + "; exec " + shlex.join(argv) + "'; echo ended=$?")
        terminal.wait_for("tokometer top", "q quit")
        pid = int(Path(f"/tmp/tokometer-tap-pid-{admin}").read_text())
        Path(f"/tmp/tokometer-tap-pid-{admin}").unlink()
        os.kill(pid, signal.SIGHUP)
        terminal.wait_for("ended=0")
