"""`make live-top`: `tokometer top` in a real terminal (tmux), on traffic with faults; updates docs/images/top.svg and
docs/demo.svg."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import live_page
from process import BINARY, Process, Tokometer, free_port, get, start_sim, until
from terminal import Terminal, moving_svg, svg

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "top.svg"
DEMO = PICTURE.parents[1] / "demo.svg"
STREAMS = 14


@contextlib.contextmanager
def _traffic(streams=STREAMS, faults="stall:3=0.03,error-event:20=0.02,status:429=0.01"):
    flags = ["--rate", "45", "--ttft-ms", "250", "--tokens", "300", "--max-concurrency", "10", "--request-metrics", "--faults", faults]
    with start_sim(*flags) as sim, Tokometer(sim.port, scrape={"enabled": True, "interval": "500ms"}) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        argv = [BINARY, "load", "--url", url, "--concurrency", str(streams), "--max-tokens", "300", "--for", "10m"]
        with Process("load", argv) as load:
            relay.load = load
            until(lambda: _snapshot(relay)["in_flight"]["requests"] >= streams, "the load is in flight")
            yield relay


def _snapshot(relay):
    status, body = get(f"http://127.0.0.1:{relay.admin}/live/snapshot")
    assert status == 200, body
    return json.loads(body)


def _top(relay, *flags):
    return shlex.join([BINARY, "top", "--admin", f"http://127.0.0.1:{relay.admin}", *flags])


def _wait_for_exit(terminal, code=0):
    """Waits until the shell's own screen is back and echoes input."""
    terminal.wait_for(f"ended={code}")
    terminal.type("stty -a | tr ' ;' '\\n\\n' | grep -xE -- '-?(icanon|echo|isig|opost)' | tr '\\n' ','")
    text = terminal.wait_for(re.compile(r"^(?:-?\w+,){4}", re.M))
    assert re.search(r"^(?:isig,icanon,echo,opost|opost,isig,icanon,echo),", text, re.M), text


def screen_shows_and_updates_traffic():
    with _traffic() as relay, Terminal(80, 24) as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        in_flight, rate = re.compile(rf"in flight +{STREAMS} "), re.compile(r"tok/s +[1-9]")
        text = terminal.wait_for("tokometer top", in_flight, "decode", rate, "q quit", "█", seconds=30)
        assert "shell>" not in text, "top uses the alternate screen"
        # 14 streams on an engine with 10 slots.
        engine = re.compile(r"engine +working +vllm.* running 10 +queued 4")
        terminal.wait_for(re.compile(r"TTFT +p50 [1-9]"), engine, "SLO", "slowest 1/", seconds=60)
        assert all(len(line) <= 80 for line in terminal.text().splitlines())
        first = re.search(r"\d\d:\d\d:\d\d UTC", terminal.text()).group()
        until(lambda: first not in terminal.text(), "the screen changes")


def keys_pause_sort_and_scroll():
    with _traffic(streams=40) as relay, Terminal(100, 24) as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        terminal.wait_for("by age", "1-", seconds=30)
        terminal.press("s")
        terminal.wait_for("by wait")
        terminal.press("Down", "Down")
        terminal.wait_for(re.compile(r" 3-\d+ of 40, by wait"))
        terminal.press("End")
        terminal.wait_for("-40 of 40")
        terminal.press("p")
        paused_text = terminal.wait_for("PAUSED")
        paused_at = _snapshot(relay)["made_unix_ms"]
        until(lambda: _snapshot(relay)["made_unix_ms"] > paused_at + 2000, "two more snapshots")
        assert terminal.text() == paused_text, "a paused screen does not change"
        terminal.press("p")
        until(lambda: "PAUSED" not in terminal.text(), "the screen changes again")
        terminal.press("q")
        _wait_for_exit(terminal)


def screen_adapts_to_any_terminal_size():
    with _traffic() as relay, Terminal(200, 60) as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        terminal.wait_for("route", "waited", "target 99", seconds=30)
        terminal.resize(40, 10)
        text = terminal.wait_for(re.compile(r"^doing +age +tokens", re.M))
        assert "route" not in text and len(text.splitlines()) <= 10, text
        terminal.resize(110, 30)
        terminal.wait_for("route", "q quit")
        terminal.press("C-c")
        _wait_for_exit(terminal)


def signal_restores_the_terminal():
    with _traffic() as relay, Terminal(80, 24) as terminal:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            # The shell writes its process id, and is then replaced by `tokometer top`.
            terminal.type(f"sh -c 'echo $$ > {terminal.directory.name}/pid; exec {_top(relay)}'; echo ended=$?")
            terminal.wait_for("q quit", seconds=30)
            subprocess.run(["kill", f"-{number}", Path(terminal.directory.name, "pid").read_text().strip()], check=True)
            _wait_for_exit(terminal)
            terminal.type("clear")
            until(lambda: "ended" not in terminal.text(), "the screen is clear")


def lost_connection_is_reported_and_screen_stays():
    with _traffic() as relay, Terminal(100, 24) as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        terminal.wait_for("q quit", seconds=30)
        relay.kill()
        text = terminal.wait_for(f"the admin server at 127.0.0.1:{relay.admin} cannot be reached")
        assert "in flight" in text, "the latest snapshot stays"
        terminal.press("q")
        _wait_for_exit(terminal)


def text_is_complete_without_colors():
    with _traffic() as relay, Terminal(80, 24, NO_COLOR="1") as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        terminal.wait_for("q quit", "engine", seconds=30)
        assert not re.search(r"\x1b\[(?:\d+;)*3[0-8]", terminal.codes()), "color found"
        terminal.press("q")
        _wait_for_exit(terminal)
    with _traffic() as relay, Terminal(80, 24, LANG="C") as terminal:
        terminal.type(_top(relay) + "; echo ended=$?")
        assert terminal.wait_for("q quit", "###", seconds=30).isascii()


def lines_are_printed_without_a_terminal():
    with _traffic() as relay:
        command = f"{_top(relay, '--interval', '300ms')} | head -n 3"
        printed = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
        lines = printed.stdout.splitlines()
        assert len(lines) == 3 and all(f"in flight {STREAMS} " in line and "\x1b" not in line for line in lines), printed
        once = subprocess.run([BINARY, "top", "--once", "--admin", f"http://127.0.0.1:{relay.admin}"], capture_output=True, text=True, timeout=60, check=True)
        assert "tokometer top" in once.stdout and "\x1b" not in once.stdout, once
    argv = [BINARY, "top", "--once", "--admin", f"http://127.0.0.1:{free_port()}"]
    unreachable = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert unreachable.returncode == 1 and "--admin" in unreachable.stderr, unreachable


def picture():
    """Three engines; the picture is taken once every section has content."""
    with live_page._traffic(live_page.FIFTY) as relay, Terminal(104, 30) as terminal:
        relay.begin()
        terminal.type(_top(relay))
        until(lambda: _snapshot(relay)["ttft_seconds"]["count"] >= 60, "sixty requests have ended", 150)
        terminal.wait_for("slowest 1/5", "█", re.compile(r"TTFT +p50 [1-9]"), re.compile(r"SLO +\w+ (?:BURNING|OVER)"), seconds=60)
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(svg(terminal.codes(), 104, 30, "tokometer top: streams in flight as bars, rates, objectives and the slowest request in a terminal"))
        print(terminal.text())
        terminal.press("q")


def moving_picture():
    """An animation of `tokometer demo`, one frame per second, from the typed command until every section has content."""
    width, height = 100, 24
    with Terminal(width, height) as terminal:
        Path(terminal.directory.name, "tokometer").symlink_to(Path(BINARY).resolve())
        terminal.type(f"PATH={terminal.directory.name}:$PATH; PS1='$ '; clear")
        terminal.wait_for(re.compile(r"\A\$\s*$"))
        terminal.type("tokometer demo", enter=False)
        terminal.wait_for("$ tokometer demo")
        screens = [terminal.codes()]
        terminal.press("Enter")
        terminal.wait_for("tokometer top", "in flight")
        while len(screens) < 20:
            clock = re.search(r"\d\d:\d\d:\d\d UTC", screens[-1])
            until(lambda: clock is None or clock.group() not in terminal.text(), "the screen changes")
            screens.append(terminal.codes())
        terminal.wait_for("slowest 1/", "█", re.compile(r"TTFT +p50 [1-9]"))
        DEMO.write_text(moving_svg(screens, 1, width, height, "tokometer demo: streams in flight as bars, tokens per second, time to first token, objectives and the slowest request in a terminal"))
        terminal.press("q")
