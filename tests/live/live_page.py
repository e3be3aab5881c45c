"""`make live-page`: the live page in a real browser, with 50 and with 2,000 streams; updates docs/images/live-*.png."""

import contextlib
import json
import socket
import tempfile
import time
import urllib.request
from pathlib import Path

from browser import Browser
from process import BINARY, Process, free_port, get, start_sim, until

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"
MAX_SECONDS = 600
# The maximum number of concurrent clients of `/live/events`.
MAX_WATCHERS = 16
# Maximum milliseconds for drawing the bars: thirty frames a second. Wall-clock time, so other work on the machine
# counts too.
MAX_DRAW_MS = 33

# Models by speed: tokens per second, tokens per event, milliseconds to the first token, concurrent requests, streams,
# tokens per response.
FIFTY = {"sim-8b": (72, 1, 250, 32, 22, 900), "sim-32b": (38, 1, 600, 32, 18, 700), "sim-70b": (17, 1, 900, 9, 10, 320)}
MANY = {"sim-8b": (2.2, 1, 400, 1200, 900, 66), "sim-32b": (1.8, 1, 900, 1200, 700, 54), "sim-70b": (1.4, 1, 1500, 300, 420, 42)}

# Response lengths, as multiples of the tokens per response above; each applies to a fifth of the streams.
LENGTHS = (0.4, 0.7, 1.0, 1.4, 1.9)

# Objectives that these models can meet.
SLO_FIFTY = {"ttft": [{"max": "2s", "target_percent": 95}], "decode_rate": [{"min_tokens_per_second": 15}]}
SLO_MANY = {"ttft": [{"max": "5s", "target_percent": 90}], "decode_rate": [{"min_tokens_per_second": 1}]}


@contextlib.contextmanager
def _traffic(models, slo=None, faults="stall:3=0.03,error-event:20=0.003"):
    """Tokometer in front of these models, each with its load; yields the admin address."""
    admin = free_port()
    with contextlib.ExitStack() as stack:
        pairs, loads = [], []
        for name, (rate, chunk, first, slots, streams, tokens) in models.items():
            flags = ["--model", name, "--rate", str(rate), "--tokens-per-chunk", str(chunk), "--ttft-ms", str(first), "--tokens", str(4 * tokens)]
            sim = stack.enter_context(start_sim(*flags, "--max-concurrency", str(slots), "--request-metrics", "--faults", faults))
            port = free_port()
            pairs += ["--listener", f"127.0.0.1:{port}=127.0.0.1:{sim.port}"]
            argv = [BINARY, "load", "--url", f"http://127.0.0.1:{port}", "--model", name, "--for", "10m"]
            # Responses of different lengths, so that they do not start and end together.
            parts = [(part, streams // len(LENGTHS) + (part < streams % len(LENGTHS))) for part in range(len(LENGTHS))]
            loads += [[*argv, "--concurrency", str(some), "--max-tokens", str(int(tokens * LENGTHS[part]))] for part, some in parts if some]
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="live-"))) / "tokometer.yaml"
        file.write_text(json.dumps({"slo": slo} if slo else {}))
        argv = [BINARY, "run", *pairs, "--config", str(file), "--admin", f"127.0.0.1:{admin}"]
        relay = stack.enter_context(Process("tokometer", argv))
        relay.ready(f"http://127.0.0.1:{admin}/readyz")
        relay.admin, relay.argv, relay.loads = admin, argv, []
        relay.begin = lambda: relay.loads.extend(stack.enter_context(Process("load", argv, fd_limit=20_000)) for argv in loads)
        yield relay


@contextlib.contextmanager
def _page(width, height, scheme="dark"):
    # A browser that is being closed may still be writing.
    with tempfile.TemporaryDirectory(prefix="live-", ignore_cleanup_errors=True) as directory, Browser(directory, width, height) as browser:
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.call("Runtime.enable")
        yield browser


def _snapshot(relay):
    # Snapshots are made once a second, so there is no need to poll more often.
    time.sleep(0.2)
    url = f"http://127.0.0.1:{relay.admin}/live/snapshot"
    # The admin server has a low priority: on a busy machine a response may take long.
    responses = (get(url, timeout=20) for _ in range(5))
    return next(json.loads(body) for status, body in responses if status == 200)


def _open(browser, relay, condition="document.querySelector('#connection').dataset.state === 'live'"):
    browser.open(f"http://127.0.0.1:{relay.admin}/live", condition)


def _text(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def _check_layout(browser):
    """Checks that nothing is wider than the window, and that no script failed."""
    wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"the page is {wide} px wider than the window"


def _fit_window_to_page(browser, width):
    """Makes the window as tall as the page, so that a screenshot shows all of it."""
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=browser.evaluate("document.documentElement.scrollHeight"), deviceScaleFactor=1, mobile=False)


def _picture(browser, name):
    PICTURES.mkdir(exist_ok=True)
    browser.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    browser.picture(PICTURES / name)
    print(f"    {name}: {(PICTURES / name).stat().st_size} bytes")


def _move(browser, x, y, kind="mouseMoved", **more):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def _key(browser, key, text=None):
    named = {" ": ("Space", 32), "ArrowDown": ("ArrowDown", 40), "ArrowRight": ("ArrowRight", 39), "Escape": ("Escape", 27)}
    code, number = named[key]
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=code, windowsVirtualKeyCode=number, **({"text": text} if text else {}))
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code, windowsVirtualKeyCode=number)


def _bar(browser):
    """The position of the first bar, found by moving the pointer down until a tooltip is shown."""
    x, y, width, height = browser.evaluate("(r => [r.x, r.y, r.width, r.height])(document.querySelector('#bars').getBoundingClientRect())")
    for step in range(2, int(height) - 20, 3):
        _move(browser, x + width * 0.62, y + step)
        if not browser.evaluate("document.querySelector('#tip').hidden"):
            return x + width * 0.62, y + step
    raise AssertionError("no bar has a tooltip")


def page_shows_fifty_streams_and_all_controls_work():
    with _traffic(FIFTY, SLO_FIFTY) as relay, _page(1360, 900) as browser:
        _open(browser, relay)
        assert _text(browser, "#empty").startswith("No traffic yet."), _text(browser, "#empty")
        _check_layout(browser)
        relay.begin()
        streams = sum(model[4] for model in FIFTY.values())
        until(lambda: _snapshot(relay)["in_flight"]["requests"] == streams, f"{streams} streams", 30)
        # Long enough for responses to end, some streams to stall, and the minute to fill.
        until(lambda: _snapshot(relay)["ttft_seconds"]["count"] > 100 and len(_snapshot(relay)["rates"]["history"]) == 60, "the minute is full", 120)

        # The page shows the snapshot's values. It is paused, so that both are from the same moment.
        until(lambda: _text(browser, "#flying") == str(streams), lambda: f"{_text(browser, '#flying')} in flight on the page, expected {streams}", 10)
        snapshot = _snapshot(relay)
        for objective in snapshot["objectives"]:
            assert objective["name"].replace("_", " ") in _text(browser, "#slo"), objective["name"]
        for listener in snapshot["listeners"]:
            assert listener["name"] in _text(browser, "#engine-list"), listener["name"]
        flight = _text(browser, "#flying-more")
        assert "streaming" in flight and "waiting" in flight, flight
        assert "tok/s" in _text(browser, "#decode") and "s" in _text(browser, "#first")
        count = int(_text(browser, "#ttft-note").split()[0])
        assert abs(count - _snapshot(relay)["ttft_seconds"]["count"]) < 60, count
        assert browser.evaluate("document.querySelectorAll('#ttft-chart .bar').length") > 3

        # A bar shows its values on hover and by keyboard.
        position = _bar(browser)
        tip = _text(browser, "#tip")
        assert any(model in tip for model in FIFTY) and "first token" in tip and "chat" in tip, tip
        _move(browser, 5, 5)
        until(lambda: browser.evaluate("document.querySelector('#tip').hidden"), "the tooltip is hidden", 5)
        browser.evaluate("document.querySelector('#bars').focus()")
        _key(browser, "ArrowDown")
        first = browser.evaluate("document.querySelector('#tip').innerText")
        _key(browser, "ArrowDown")
        second = browser.evaluate("document.querySelector('#tip').innerText")
        assert first and second and first.splitlines()[-1] != second.splitlines()[-1], (first, second)
        _key(browser, "Escape")
        assert browser.evaluate("document.querySelector('#tip').hidden")

        # The slowest requests: another one is selected, and remains selected when the next snapshot arrives.
        until(lambda: browser.evaluate("document.querySelectorAll('#slow-list button').length") >= 3, "slow requests", 30)
        before = _text(browser, "#slow-values")
        browser.evaluate("document.querySelectorAll('#slow-list button')[2].click()")
        assert _text(browser, "#slow-values") != before
        chosen = browser.evaluate("document.querySelector('#slow-list [aria-checked=true]').dataset.id")
        assert chosen in _text(browser, "#slow-values")
        assert browser.evaluate("document.querySelectorAll('#slow-line .curve, #slow-line .p-wait').length") >= 1
        browser.evaluate("document.querySelectorAll('#slow-list button')[0].click()")

        # While paused, nothing changes; then it resumes.
        browser.evaluate("document.activeElement.blur()")
        _key(browser, " ", " ")
        assert _text(browser, "#connection") == "paused"
        paused_text, paused_at = _text(browser, "#about"), _snapshot(relay)["uptime_seconds"]
        until(lambda: _snapshot(relay)["uptime_seconds"] > paused_at + 2, "two more snapshots", 10)
        assert _text(browser, "#about") == paused_text
        browser.click("#pause")
        until(lambda: _text(browser, "#about") != paused_text, "the page resumes", 10)

        # Dark by system preference, light by the button, kept over a reload; and every order of the bars.
        dark = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        _fit_window_to_page(browser, 1360)
        _move(browser, *position)
        _picture(browser, "live-50.png")
        browser.click("#theme")
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        _move(browser, 5, 5)
        _picture(browser, "live-50-light.png")
        _open(browser, relay)
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        for order in ("oldest", "slowest", "lanes"):
            browser.evaluate(f"(s => {{ s.value = '{order}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('#order'))")
            _bar(browser)

        # No content is cut off at the width of a phone.
        browser.call("Emulation.setDeviceMetricsOverride", width=360, height=780, deviceScaleFactor=2, mobile=True)
        browser.click("#theme")
        _open(browser, relay)
        until(lambda: _text(browser, "#flying") == str(streams), "the page is filled", 10)
        _check_layout(browser)
        # Two device pixels per CSS pixel: every stream still has its bar.
        column = "(c => [...c.getContext('2d').getImageData(2, 0, 1, c.height - 40).data])(document.querySelector('#bars'))"
        dots = browser.evaluate(column)
        dots = [tuple(dots[at : at + 3]) for at in range(0, len(dots), 4)]
        empty = min(dots, key=sum)
        bars = sum(before == empty != dot for before, dot in zip(dots, dots[1:]))
        assert streams * 0.8 <= bars + 1 <= streams * 1.6, f"{bars} bars of {streams} streams"
        _picture(browser, "live-phone.png")


def page_animates_two_thousand_streams_smoothly():
    with _traffic(MANY, SLO_MANY, faults="stall:4=0.01") as relay, _page(1360, 900) as browser:
        relay.begin()
        streams = sum(model[4] for model in MANY.values())
        # At any moment some requests have just ended, and their clients send new ones.
        until(lambda: _snapshot(relay)["in_flight"]["requests"] >= 2000, lambda: f"{streams} streams, {_snapshot(relay)['in_flight']['requests']} present", 120)
        _open(browser, relay)
        until(lambda: int(_text(browser, "#flying")) >= 2000, lambda: _text(browser, "#flying"), 30)
        until(lambda: _snapshot(relay)["ttft_seconds"]["count"] > 200, "responses have ended", 120)
        flight = _snapshot(relay)["in_flight"]
        listed, left_out = len(flight["streams"]), flight["left_out"]
        assert listed == min(2000, flight["requests"]) and left_out == flight["requests"] - listed, (listed, left_out, flight["requests"])
        until(lambda: "the oldest 2000 of 20" in _text(browser, "#streams-note"), lambda: _text(browser, "#streams-note"), 30)

        # Frames in three seconds, by the browser's own clock.
        browser.evaluate("window.shown = []; (function frame(now) { window.shown.push(now); if (window.shown.length < 600) requestAnimationFrame(frame); })(performance.now())")
        until(lambda: browser.evaluate("window.shown.at(-1) - window.shown[0]") > 3000, "three seconds of frames", 30)
        gaps = sorted(browser.evaluate("window.shown.slice(1).map((at, i) => at - window.shown[i])"))
        cost = float(browser.evaluate("document.querySelector('#bars').dataset.cost"))
        print(f"    {listed} bars: {cost:.1f} ms to draw; a frame every {gaps[len(gaps) // 2]:.1f} ms (median), {gaps[len(gaps) * 99 // 100]:.1f} ms (p99), {len(gaps)} in 3 s")
        assert cost < MAX_DRAW_MS, f"{cost} ms"
        _bar(browser)
        _check_layout(browser)
        _fit_window_to_page(browser, 1360)
        _move(browser, 5, 5)
        _picture(browser, "live-2000.png")
        browser.click("#theme")
        _picture(browser, "live-2000-light.png")


def page_reports_a_lost_feed_and_reconnects():
    with _traffic({"sim-8b": (40, 1, 100, 8, 4, 4000)}) as relay, _page(1000, 700) as browser:
        relay.begin()
        _open(browser, relay)
        until(lambda: _text(browser, "#flying") == "4", lambda: _text(browser, "#flying"), 30)
        relay.kill()
        connection = lambda: browser.evaluate("document.querySelector('#connection').dataset.state")  # noqa: E731
        until(lambda: connection() == "lost", "the page reports the lost connection", 20)
        assert "reconnecting" in _text(browser, "#connection") and browser.evaluate("document.querySelector('#main').className") == "stale"
        with Process("tokometer", relay.argv) as restarted:
            restarted.ready(f"http://127.0.0.1:{relay.admin}/readyz")
            until(lambda: connection() == "live", "the connection is live again", 30)
            assert browser.evaluate("document.querySelector('#main').className") == ""


def page_works_above_the_watcher_limit():
    with _traffic({"sim-8b": (40, 1, 100, 8, 4, 4000)}) as relay, _page(1000, 700) as browser, contextlib.ExitStack() as stack:
        relay.begin()
        for _ in range(MAX_WATCHERS):
            watcher = stack.enter_context(socket.create_connection(("127.0.0.1", relay.admin), 10))
            watcher.sendall(b"GET /live/events HTTP/1.1\r\nhost: a\r\n\r\n")
            assert watcher.recv(12) == b"HTTP/1.1 200"
        _open(browser, relay, "document.querySelector('#connection').dataset.state === 'polling'")
        until(lambda: _text(browser, "#flying") == "4", lambda: _text(browser, "#flying"), 30)


def model_name_with_markup_is_shown_as_text():
    name = "<img src=x onerror=document.title='broken'>"
    with _traffic({name: (40, 1, 100, 8, 1, 4000)}) as relay, _page(1000, 700) as browser:
        port = relay.argv[relay.argv.index("--listener") + 1].split("=")[0].rsplit(":", 1)[1]
        body = json.dumps({"model": name, "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            response.readline()
            _open(browser, relay)
            until(lambda: _text(browser, "#flying") == "1", lambda: _text(browser, "#flying"), 30)
            _bar(browser)
            assert _text(browser, "#tip").startswith(name), _text(browser, "#tip")
            assert browser.evaluate("document.title") == "tokometer live" and browser.evaluate("document.images.length") == 0
