"""`make picture-dashboards`: renders every dashboard, dark and light. The run has normal load, then saturation,
then failures. Not part of `make test`.

DASHBOARDS_AGAIN=1 reuses the data of the last run, which takes seconds.
"""

import functools
import http.server
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import dashboard_queries
import fleet
from browser import Browser, chromium
from process import Skip
from process import start_sim
from process import until
from prometheus import Prometheus
from simulated_users import Phase
from simulated_users import UserGroup
from simulated_users import run_users

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "images" / "dashboards"
CACHE = Path(os.environ.get("TOKOMETER_TEST_CACHE", Path.home() / ".cache" / "tokometer-tests"))
PAGE = CACHE / "dashboards" / "dist"
# The run's data is kept here for later renderings.
RUN = ROOT / "target" / "dashboards"
SECONDS = int(os.environ.get("DASHBOARDS_SECONDS", "870"))
# Duration of the run before the rendered time range, so that rates and windows are filled at its start.
EARLIER = 150
MAX_SECONDS = SECONDS + 400
# Tables render only the rows within the window, so it is taller than any dashboard.
WIDTH, HEIGHT = 1400, 4000
FILLED = "[...document.querySelectorAll('[role=grid]')].filter(grid => grid.querySelectorAll('[role=row]').length > 1).length"
# Assumed scrape interval for queries: lines are as smooth as in production.
SCRAPE = 5
FAULTS = {"status:503": 0.08, "error-event:4": 0.04, "cut:5": 0.04, "reset:5": 0.03, "stall:1.5": 0.05, "hang:2": 0.03, "garbage": 0.01}
# The pod that the drill-down shows: slower than its peers.
POD = "chat-slow"


def _other():
    """Another model, with speculative decoding and a cache whose hits it reports."""
    options = ("--engine", "tensorrt_llm", "--tokens-per-chunk", "3", "--cached-share", "0.4", "--request-metrics")
    return start_sim("--model", "other", "--rate", "80", "--ttft-ms", "250", "--max-concurrency", "4", *options)


def _user_groups(port):
    """Normal load; then more clients than slots; then, after a rollout, faulty responses and a server that goes down."""
    busy, slow, down, queue = map(port, ("chat-busy", "chat-slow", "chat-gone", "other-queue"))
    return [
        UserGroup(busy, "chat", [Phase(0.40, 5), Phase(0.57, 13, abort_share=0.05), Phase(1, 8, FAULTS, abort_share=0.06)]),
        UserGroup(slow, "chat", [Phase(0.55, 1), Phase(1, 3)], tokens=(20, 60)),
        UserGroup(down, "chat", [Phase(1, 4)]),
        UserGroup(queue, "other", [Phase(0.5, 2), Phase(0.65, 7), Phase(1, 3)], tokens=(60, 240)),
    ]


def _run():
    """Sends traffic while a Prometheus stores data that is kept; returns the time range."""
    shutil.rmtree(RUN, ignore_errors=True)
    with fleet.Fleet(_other) as pods:
        prometheus = pods.scraped(RUN, fleet.rules(RUN), scrape_protocols=["OpenMetricsText1.0.0"])
        began = time.time() + min(EARLIER, SECONDS / 2)
        run_users(_user_groups(pods.port), SECONDS, [(0.55, pods.cluster.roll_out), (0.58, pods.pods["chat-gone"].server.kill)])
        ended = time.time() - 2
        # Data in memory is written on shutdown.
        prometheus.terminate()
        prometheus.wait(30)
    (RUN / "run.json").write_text(json.dumps([began, ended]))


def _serve(directory):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _draw(browser, url, picture):
    """Renders a dashboard; returns a line for each panel that is empty or failed."""
    browser.open(url, "!!(window.drawn || window.failed)")
    failed = browser.evaluate("window.failed")
    assert not failed, failed
    panels = browser.evaluate("window.drawn")
    # Tables fill in their rows some time after their layout, and again after a late change of the layout.
    tables = sum(panel["type"] == "table" and panel["frames"] > 0 for panel in panels)

    def filled():
        return browser.evaluate(FILLED) >= tables

    def picture_is_complete():
        browser.picture(picture, WIDTH, browser.evaluate("document.getElementById('root').lastElementChild.offsetHeight"))
        return filled()

    until(lambda: filled() and picture_is_complete(), lambda: f"{tables} tables have rows, {browser.evaluate(FILLED)} have", 60)
    text = browser.evaluate("document.body.innerText")
    assert "unexpected error" not in text and "${" not in text, f"a panel failed, or a variable is not filled in: {text[:400]}"
    incomplete = [panel for panel in panels if panel.get("error") or not panel["frames"]]
    return [f"{panel['title']}: {panel.get('error') or 'empty'}" for panel in incomplete], len(panels)


def draws_every_dashboard_dark_and_light():
    if not PAGE.is_dir():
        raise Skip("no page to render with (tests/components/fetch.sh dashboards)")
    chromium()
    if not (os.environ.get("DASHBOARDS_AGAIN") and (RUN / "run.json").exists()):
        _run()
    began, ended = json.loads((RUN / "run.json").read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dashboards-") as directory:
        shutil.copytree(PAGE, f"{directory}/page")
        dashboards = dashboard_queries.generate(f"{directory}/page/generated", RUN / "tokometer.yaml")
        server = _serve(f"{directory}/page")
        with server, Prometheus(RUN, {}) as prometheus, Browser(directory, WIDTH, HEIGHT) as browser:
            problems = []
            for uid, dashboard in dashboards.items():
                (Path(directory) / "page" / f"{uid}.json").write_text(json.dumps(dashboard))
                for theme in ("dark", "light"):
                    parameters = {"dashboard": f"{uid}.json", "prometheus": prometheus.url, "theme": theme}
                    parameters |= {"width": WIDTH, "scrape": SCRAPE, "from": int(began * 1000), "to": int(ended * 1000), "var-pod": POD}
                    picture = PICTURES / f"{uid.removeprefix('tokometer-')}-{theme}.png"
                    url = f"http://127.0.0.1:{server.server_address[1]}/?{urllib.parse.urlencode(parameters)}"
                    empty, panels = _draw(browser, url, picture)
                    print(f"    {picture.name}: {panels} panels, {picture.stat().st_size >> 10} KiB" + "".join(f"\n      {line}" for line in empty))
                    problems += [line for line in empty if not line.endswith(": empty")]
            server.shutdown()
        assert not problems, problems
