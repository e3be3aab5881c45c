"""`tokometer tap` on a bad network, and in a terminal."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import names
from process import BINARY, Process, Skip, free_port, get, metrics, start_sim, total, until
from terminal import Terminal

POD_IP, OTHER_IP = "10.231.9.2", "10.231.9.1"
REQUESTS, TOKENS = 200, 40


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise Skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")


class BadNetwork:
    """Two namespaces, and a link between them that loses, repeats, delays and swaps packets. `with` stops all of it."""

    def __init__(self, mtu, seed):
        self.mtu, self.seed = mtu, seed

    def __enter__(self):
        if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            raise Skip("the link needs root and /dev/net/tun")
        self.stack = contextlib.ExitStack()
        self.pod, self.other = f"tokometer-tap-pod-{os.getpid()}", f"tokometer-tap-other-{os.getpid()}"
        try:
            for namespace in (self.pod, self.other):
                _ip("netns", "add", namespace)
                self.stack.callback(_ip, "netns", "del", namespace)
                _ip("-n", namespace, "link", "set", "lo", "up")
            script = Path(__file__).with_name("lossy_link.py")
            argv = [sys._base_executable, str(script), self.pod, self.other, str(self.mtu), str(self.seed)]
            self.link = self.stack.enter_context(Process("link", argv))
            for namespace, ip in ((self.pod, POD_IP), (self.other, OTHER_IP)):
                until(lambda: self._has_link(namespace), lambda: f"{namespace} has the link: {self.link.output()}")
                _ip("-n", namespace, "address", "add", f"{ip}/24", "dev", "link0")
            self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="tokometer-tap-")))
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def _has_link(self, namespace):
        return subprocess.run(["ip", "-n", namespace, "link", "show", "link0"], capture_output=True).returncode == 0

    def start(self, namespace, name, *arguments):
        argv = ["ip", "netns", "exec", namespace, BINARY, *arguments]
        return self.stack.enter_context(Process(name, argv))

    def inside(self, namespace, *argv, seconds=120):
        done = subprocess.run(["ip", "netns", "exec", namespace, *argv], capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tap(self, namespace, name):
        """A tap with an access log of this name, once it captures."""
        log = self.directory / f"{name}.jsonl"
        flags = ["--set=access_log.enabled=true", f"--set=access_log.path={log}", "--set=access_log.format=json"]
        tap = self.start(namespace, name, "tap", "--port=8000", "--interface=link0", "--admin=127.0.0.1:9464", "--set=scrape.enabled=false", *flags)
        until(lambda: "The admin server is listening" in tap.output(), lambda: f"{name} runs: {tap.output()}")
        return tap, log

    def page(self, namespace):
        return self.inside(namespace, "curl", "-s", "http://127.0.0.1:9464/metrics")


def _records(log):
    lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def _sum(page, name, part=""):
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(name) and part in line]
    return sum(map(float, values))


def _is_measured_exactly(mtu, seed):
    with BadNetwork(mtu, seed) as network:
        sim = network.start(network.pod, "sim", "sim", "--listen", f"{POD_IP}:8000", "--rate", "200", "--ttft-ms", "20")
        until(lambda: "on http://" in sim.output(), lambda: f"the simulator runs: {sim.output()}")
        taps = {"server": network.pod, "client": network.other}
        logs = {name: network.tap(namespace, name)[1] for name, namespace in taps.items()}
        load = [BINARY, "load", "--url", f"http://{POD_IP}:8000", "--requests", str(REQUESTS), "--concurrency", "16", "--max-tokens", str(TOKENS), "--json"]
        summary = json.loads(network.inside(network.other, *load))
        assert summary["requests"] == REQUESTS and summary["tokens_from_usage"] > 0, summary
        for name, namespace in taps.items():
            until(lambda: len(_records(logs[name])) == REQUESTS, lambda: f"{REQUESTS} records, got {len(_records(logs[name]))} ({name})", 30)
            records, page = _records(logs[name]), network.page(namespace)
            outcomes = {record["outcome"] for record in records}
            assert outcomes == {names.OK}, (name, outcomes)
            assert sum(record["output_tokens"] for record in records) == summary["tokens_from_usage"], name
            assert not any(record["capture_loss"] for record in records), name
            assert _sum(page, "tokometer_capture_packets_lost_total") == 0 and _sum(page, "tokometer_capture_gaps_total") == 0, page
            # The network was as bad as it should be, and it was seen.
            irregular = {kind: _sum(page, "tokometer_capture_segments_irregular_total", f'"{kind}"') for kind in ("retransmitted", "out_of_order", "duplicate")}
            print(f"    {name}, MTU {mtu}: {irregular}")
            assert irregular["duplicate"] + irregular["retransmitted"] > 20, (name, irregular)
            if name == "client":
                assert irregular["out_of_order"] > 20, "packets overtook each other on their way to the client"
            else:
                assert irregular["retransmitted"] > 20, "the server sent lost packets again"
                assert sum(record["retransmits"] or 0 for record in records) > 20, "retransmissions to clients"
                assert all(record["rtt_ms"] is None or record["rtt_ms"] >= 2 for record in records), "the link takes 1 ms each way"


def loss_reordering_and_repetition_change_no_count():
    _is_measured_exactly(1500, 1)


def small_packets_change_no_count():
    _is_measured_exactly(600, 2)


def reload_keeps_the_screen_free_of_log_lines():
    with start_sim("--rate", "50", "--ttft-ms", "50") as sim, Terminal(100, 30) as terminal, tempfile.TemporaryDirectory() as directory:
        config, admin = Path(directory) / "tokometer.yaml", free_port()
        config.write_text("log: {level: info}\n")
        argv = [BINARY, "tap", "--port", str(sim.port), "--interface", "lo", "--top", "--admin", f"127.0.0.1:{admin}", "--config", str(config)]
        terminal.type(shlex.join(argv) + "; echo ended=$?")
        terminal.shows("tokometer top", "q quit")
        if "NET_RAW" in terminal.text():
            raise Skip("no capability NET_RAW")
        config.write_text("log: {level: debug}\nwedge: {decode: 61s}\n")
        until(lambda: "61s" in get(f"http://127.0.0.1:{admin}/config")[1], "the file is reloaded")
        assert re.search(r"level: \"?off", get(f"http://127.0.0.1:{admin}/config")[1]), "the level of the screen is kept"
        # A request is shown, and no line of the log.
        subprocess.run([BINARY, "load", "--url", f"http://127.0.0.1:{sim.port}", "--requests", "4", "--max-tokens", "20"], check=True, capture_output=True)
        until(lambda: total(metrics(f"http://127.0.0.1:{admin}/metrics"), "tokometer_requests_total") == 4, "the requests are measured")
        text = terminal.text()
        assert "Changed" not in text and "WARN" not in text and "INFO" not in text, text
        terminal.press("q")
        terminal.shows("ended=0")


def hangup_ends_the_screen():
    with start_sim() as sim, Terminal(100, 30) as terminal:
        admin = free_port()
        argv = [BINARY, "tap", "--port", str(sim.port), "--interface", "lo", "--top", "--admin", f"127.0.0.1:{admin}"]
        terminal.type("echo pid=$$; exec 3>&1; sh -c 'echo $$ > /tmp/tokometer-tap-pid-" + str(admin) + "; exec " + shlex.join(argv) + "'; echo ended=$?")
        terminal.shows("tokometer top", "q quit")
        pid = int(Path(f"/tmp/tokometer-tap-pid-{admin}").read_text())
        Path(f"/tmp/tokometer-tap-pid-{admin}").unlink()
        os.kill(pid, signal.SIGHUP)
        terminal.shows("ended=0")
