"""A headless Chromium, driven over a pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the pages are the tests' own, and containers often run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Return the path of an installed Chromium; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


@dataclass(kw_only=True, eq=False)
class Browser:
    """A running browser. Everything it says is kept until somebody looks."""

    write_end: int
    read_end: int
    events: list[dict[str, Any]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _unread: bytes = b""

    def call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data) :]
        while True:
            answer = self._next(time.monotonic() + _PATIENCE)
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def wait_for(self, method: str) -> None:
        """Wait until an event of this name has been seen."""
        deadline = time.monotonic() + _PATIENCE
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.read_end, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("The browser is gone, or does not answer.")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(line))


@dataclass(kw_only=True, eq=False)
class Page:
    """One file, opened at a width."""

    browser: Browser
    session: str

    def evaluate(self, script: str) -> Any:
        """Return what an expression is worth in the page; promises are waited for."""
        found = self.browser.call(
            "Runtime.evaluate", session=self.session, expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def show_as(self, scheme: str) -> None:
        """Show the page in ``light`` or ``dark`` colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.call("Emulation.setEmulatedMedia", session=self.session, features=features)

    def show_on_paper(self) -> None:
        """Show the page as it would be printed."""
        self.browser.call("Emulation.setEmulatedMedia", session=self.session, media="print")

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        found = self.browser.call(
            "Page.captureScreenshot", session=self.session, format="png", captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the console, the log and uncaught errors said."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.browser.events if event.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, its own file and data within it left out."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [address for address in asked[1:] if not address.startswith("data:")]


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    path = find_browser()
    assert path is not None, "no Chromium is installed"
    to_browser, from_browser = os.pipe(), os.pipe()
    # The browser reads from 3 and writes to 4; ends that happen to have these numbers must not be overwritten.
    child_ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser[0], from_browser[1])]

    def place() -> None:
        os.dup2(child_ends[0], 3)
        os.dup2(child_ends[1], 4)

    with subprocess.Popen(
        [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place,  # the only way to hand over numbered pipes
        pass_fds=(3, 4),
    ) as process:
        for end in (to_browser[0], from_browser[1], *child_ends):
            os.close(end)
        try:
            yield Browser(write_end=to_browser[1], read_end=from_browser[0])
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            for end in (to_browser[1], from_browser[0]):
                os.close(end)


@contextmanager
def opened(browser: Browser, file: Path, *, width: int, height: int = 900) -> Iterator[Page]:
    """Open a file in a new tab, in light colours, wait until it has loaded, and close the tab."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    browser.events.clear()
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable", session=session)
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        session=session,
        width=width,
        height=height,
        deviceScaleFactor=1,
        mobile=width < 600,
    )
    browser.events.clear()
    browser.call("Page.navigate", session=session, url=file.as_uri())
    browser.wait_for("Page.loadEventFired")
    page = Page(browser=browser, session=session)
    page.show_as("light")
    try:
        yield page
    finally:
        browser.call("Target.closeTarget", targetId=target)
