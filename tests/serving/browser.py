"""Chromium without a window, driven by the WebDriver protocol over loopback."""

import base64
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import httpx
import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not installed"
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
KEYS = {"right": "\ue014", "left": "\ue012", "escape": "\ue00c", "tab": "\ue004", "enter": "\ue007"}


class Browser:
    """One window.

    Args:
        session: address of the WebDriver session.
    """

    def __init__(self, session):
        self._session = session

    def _call(self, method, path, content=None):
        answer = httpx.request(
            method, f"{self._session}{path}", json=content if method == "POST" else None, timeout=60
        ).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def resize(self, width, height):
        """Sets the size of the page; a window cannot be as narrow as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme):
        """Sets the preferred colour scheme, `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def devtools(self, command, parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script, *arguments):
        """Returns what a script returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script, seconds=30):
        """Waits until a script returns something true, and returns that."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, (script, self.run("return document.body.innerText"))
            time.sleep(0.05)
        return value

    def type(self, selector, text):
        """Types into an element; into a field for files, their paths."""
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{element[_ELEMENT]}/value", {"text": text})

    def press(self, key):
        """Presses a key wherever the focus is."""
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", "/actions", {"actions": [keyboard]})

    def picture(self):
        """Returns a screenshot as PNG."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def complaints(self):
        """Returns the messages of the page's console since the last call."""
        return [line["message"] for line in self._call("POST", "/se/log", {"type": "browser"})]


@contextmanager
def chromium(folder, *flags):
    """Starts a browser with a fresh profile and downloads that go into `folder / "downloads"`."""
    port = _free_port()
    with subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as driver:
        try:
            yield from _session(f"http://127.0.0.1:{port}", folder, flags)
        finally:
            driver.terminate()


def _session(address, folder, flags):
    options = {
        "binary": CHROMIUM,
        "args": [*_FLAGS, *flags, f"--user-data-dir={folder / 'profile'}"],
        "prefs": {
            "download.default_directory": str(folder / "downloads"),
            # Without this setting a script's clicks start only one download.
            "profile.default_content_setting_values.automatic_downloads": 1,
        },
    }
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    for _ in range(100):
        try:
            answer = httpx.post(
                f"{address}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=60
            )
            break
        except httpx.ConnectError:
            time.sleep(0.1)
    session = f"{address}/session/{answer.json()['value']['sessionId']}"
    try:
        yield Browser(session)
    finally:
        httpx.delete(session, timeout=60)


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
