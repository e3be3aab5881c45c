"""A headless Chromium, controlled over its DevTools protocol."""

import base64
import json
import re
import shutil
import urllib.request

from process import Process, Skip, until

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"]
FLAGS += ["--remote-debugging-port=0", "--remote-allow-origins=*"]


def chromium():
    """The Chromium program; skips the test if there is none."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not program:
        raise Skip("no chromium on PATH")
    return program


class Browser(Process):
    """One page of this size in pixels. `with` closes it."""

    def __init__(self, directory, width, height):
        from websockets.sync.client import connect

        super().__init__("chromium", ["nice", "-n", "19", chromium(), *FLAGS, f"--user-data-dir={directory}/chromium", "about:blank"])
        found = until(lambda: re.search(r"ws://([^/]+)/", self.output()), "chromium reports its port", 60)
        pages = json.loads(urllib.request.urlopen(f"http://{found[1]}/json/list", timeout=30).read())
        url = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket, self.calls = connect(url, max_size=None, open_timeout=30), 0
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method, **parameters):
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while True:
            response = json.loads(self.socket.recv(60))
            if response.get("id") == self.calls:
                assert "error" not in response, response
                return response["result"]

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open(self, url, script):
        """Navigates to the URL, and waits until the script is true in the page."""
        self.call("Page.navigate", url=url)
        until(lambda: self.evaluate(script), lambda: f"{script}: {self.evaluate('document.body.innerText')}", 90)

    def click(self, selector, text=""):
        """Clicks the element that the selector finds; among several, the one with this text."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.innerText.startsWith({json.dumps(text)}))"
        until(lambda: self.evaluate(f"!!{found}"), f"{selector} {text} exists", 30)
        position = self.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=position[0], y=position[1], button="left", clickCount=1)

    def picture(self, path, width=None, height=None):
        """A screenshot of the window, or of the given part of the page."""
        clip = {"captureBeyondViewport": True, "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}} if height else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))
