"""A driver for Chromium without a window, over two pipes."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_KEYS = {
    "Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "ArrowDown": (40, ""), "ArrowUp": (38, ""),
    "End": (35, ""), "Home": (36, ""), "PageDown": (34, ""), " ": (32, " "),
}  # fmt: skip


class Page:
    """The only tab of a browser."""

    def __init__(self, asks: int, answers: int) -> None:
        self._asks, self._answers = asks, answers
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.said: list[dict[str, Any]] = []  # events, such as requests and errors of scripts

    def call(self, method: str, **params: Any) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._asks, json.dumps(message).encode() + b"\0")
        while True:
            got = self._read()
            if got.get("id") == self._last:
                assert "error" not in got, got
                return got["result"]
            self.said.append(got)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            self._rest += (more := os.read(self._answers, 1 << 20))
            assert more, "the browser ended"
        text, _, self._rest = self._rest.partition(b"\0")
        value = json.loads(text)
        assert isinstance(value, dict)
        return value

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path, *, width: int = 1280, height: int = 900) -> None:
        """Load a page, and wait until its root element has the attribute `data-ready`."""
        self.said.clear()
        self.size(width, height)
        self.call("Page.navigate", url=path.as_uri())
        self.until("document.documentElement?.dataset.ready")

    def size(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def value(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, expression: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} never came true; the page said {self.errors()}"
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a user does."""
        for key in keys:
            code, text = _KEYS.get(key, (0, key))
            told = {"key": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **told)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Insert a text at once, as an input method does."""
        self.call("Input.insertText", text=text)

    def errors(self) -> list[str]:
        """Return the errors that scripts threw since the page was opened."""
        thrown = [one["params"] for one in self.said if one.get("method") == "Runtime.exceptionThrown"]
        return [str(one["exceptionDetails"].get("exception", {}).get("description")) for one in thrown]

    def requests(self) -> list[str]:
        """Return the URLs that were requested since the page was opened."""
        sent = [one["params"] for one in self.said if one.get("method") == "Network.requestWillBeSent"]
        return [str(one["request"]["url"]) for one in sent]

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a screenshot of the page."""
        got = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(got["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in a folder, and yield its tab. The test is skipped if Chromium is missing."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("NO CHROMIUM: the page is not looked at (apt-get install chromium)")
    theirs_in, asks = os.pipe()
    answers, theirs_out = os.pipe()
    # The browser reads from descriptor 3 and writes to 4, so the passed descriptors must have other numbers.
    passed = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (theirs_in, theirs_out)]
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={folder}"]  # fmt: skip
    script = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *words], pass_fds=passed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for one in (theirs_in, theirs_out, *passed):
        os.close(one)
    try:
        page = Page(asks, answers)
        page.attach()
        yield page
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        os.close(asks)
        os.close(answers)
