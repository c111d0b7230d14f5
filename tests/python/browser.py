"""A real browser: headless Chromium, driven over a pipe with the DevTools protocol. Standard library only."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 60  # seconds for one answer: the first one waits for the program to start


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page at a time. Its messages are in `complaints`."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="fusewright-browser-", ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def as_three_and_four() -> None:
            high = [os.dup(theirs_in), os.dup(theirs_out)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        options += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [executable(), *options, "about:blank"],
            preexec_fn=as_three_and_four,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._last = 0
        self._session = None
        self.complaints: list[str] = []
        self._happened: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        self.complaints.clear()
        self._happened.clear()
        # Never as a phone: that would lay a page that is too wide out in a wider window, and hide it.
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + TIMEOUT
        while "Page.loadEventFired" not in self._happened:
            self._receive(end)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression, in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """The window, or (x, y, width, height) of the page."""
        options = {}
        if clip:
            options["clip"] = dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=1)
        answer = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=bool(clip), **options)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _ask(self, method: str, **parameters) -> dict:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self, end: float) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer" if not ready else "the browser is gone")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        self._happened.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console.{parameters['type']}: {parameters['args']}")
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.complaints.append(f"asks the network for {url}")
