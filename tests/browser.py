"""A real Chromium, driven over the DevTools protocol: what a person would see, and what the console says.

Rule: what a test claims of a page it asks the page itself; a wait ends when something holds.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import websocket

from tests.waiting import eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        # A page of the host would be refused by the browser; a client without an origin is not.
        self._socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self._ids = itertools.count(1)
        self._told: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and wait for the answer."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._told.append(message)

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Go there, in a window of that size and with those colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        return str(self.ask("document.body ? document.body.innerText : ''"))

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """What can be seen, of the whole page or of the window, as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def problems(self) -> list[str]:
        """What the console has said that is wrong: errors, warnings, and exceptions that nobody caught."""
        self.ask("0")  # what was told before the answer is heard
        found = []
        for message in self._told:
            told = message.get("params", {})
            match message["method"]:
                case "Runtime.exceptionThrown":
                    found.append(str(told["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                    found.append(str(told["args"]))
                case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                    found.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        return found

    def close(self) -> None:
        self._socket.close()


@contextmanager
def browser(home: Path) -> Iterator[Page]:
    """A tab of a browser of its own, with its profile in ``home``."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={home}"]  # fmt: skip
    with (home.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], stdout=log, stderr=log, env={**os.environ, "HOME": str(home.parent)}
        )
    try:
        said = home / "DevToolsActivePort"
        eventually(lambda: said.exists() and len(said.read_text().splitlines()) == 2, "the browser tells its port")
        page = Page(_tab(int(said.read_text().splitlines()[0])))
        try:
            yield page
        finally:
            page.close()
    finally:
        process.kill()
        process.wait()


def _tab(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("PUT", f"/json/new?{quote('about:blank')}")
        return str(json.loads(connection.getresponse().read())["webSocketDebuggerUrl"])
    finally:
        connection.close()
