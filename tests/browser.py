"""A headless Chromium, driven over the WebDriver protocol of its own driver: no package is needed."""
from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium and chromedriver here")


class Browser:
    """A window."""

    def __init__(self, url: str):
        self._url = url

    def call(self, method: str, path: str, **body):
        request = urllib.request.Request(self._url + path, json.dumps(body).encode() if method == "POST" else None, {"Content-Type": "application/json"},
                                         method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    def run(self, script: str, *arguments):
        """Run JavaScript; gives what it returns."""
        return self.call("POST", "/execute/sync", script=script, args=list(arguments))

    def until(self, script: str, seconds: float = 30):
        """Wait until an expression is true; gives its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, f"{script}: not so; the page says {self.run('return document.body.innerText')!r}"
            time.sleep(0.05)
        return value

    def type(self, selector: str, text: str) -> None:
        """Type into an element, as a user does."""
        element = self.call("POST", "/element", using="css selector", value=selector)
        self.call("POST", f"/element/{next(iter(element.values()))}/value", text=text)

    def look(self, width: int, dark: bool) -> None:
        """Choose the width of the window, and what the user prefers."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def command(self, name: str, **parameters):
        return self.call("POST", "/goog/cdp/execute", cmd=name, params=parameters)

    def picture(self, path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """What the page has written into its console since the last call: errors, and what its policy has kept from loading."""
        return [entry["message"] for entry in self.call("POST", "/se/log", type="browser") if entry["level"] in ("SEVERE", "WARNING")]


@contextlib.contextmanager
def browser():
    """Open a window."""
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        try:
            port = next(found[1] for line in driver.stdout if (found := re.search(r"on port (\d+)\.", line)))
            root = Browser(f"http://127.0.0.1:{port}")
            options = {"binary": BROWSER, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
            capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
            session = root.call("POST", "/session", capabilities=capabilities)["sessionId"]
            window = Browser(f"http://127.0.0.1:{port}/session/{session}")
            yield window
            window.call("DELETE", "")
        finally:
            driver.terminate()
            driver.stdout.close()
