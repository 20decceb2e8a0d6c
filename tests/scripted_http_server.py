"""A server of HTTP that answers as a test tells it to, over real sockets, in front of a real one or of none.

with Answering(lambda request: (503, b"")) as server: …          answers by itself
with Answering(lambda request: None, behind=url) as server: …    hands on what it does not answer itself
"""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from types import TracebackType
from typing import Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

HALF: Final = "half"
"""The connection ends in the middle of the body."""
RESET: Final = "reset"
"""The connection is reset instead of an answer."""
_PASSED_ON: Final = ("Content-Type", "Content-Length", "Accept", "Authorization")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Slowly:
    """``answer`` after so many seconds; None is what the server behind answers."""

    seconds: float
    answer: Answer | None = None


@dataclass(frozen=True)
class Sent:
    """An answer with headers."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Answer: TypeAlias = "tuple[int, bytes] | Sent | str | Slowly"


class Answering:
    def __init__(self, answer: Callable[[Request], Answer | None], behind: str = "") -> None:
        self.answer = answer
        """What is answered from now on; None hands the request on to the server ``behind``."""
        self._behind = behind.rstrip("/")
        self.seen: list[Request] = []

    @property
    def url(self) -> str:
        """With the path of the server behind."""
        return f"http://127.0.0.1:{self._server.server_port}{urlsplit(self._behind).path}"

    def __enter__(self) -> Self:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):  # who asked has gone
                    server._serve(self)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        request = Request(handler.command, handler.path, dict(handler.headers), body)
        self.seen.append(request)
        self._give(handler, request, self.answer(request))

    def _give(self, handler: http.server.BaseHTTPRequestHandler, request: Request, answer: Answer | None) -> None:
        match answer:
            case None:
                self._give(handler, request, self._handed_on(request))
            case Slowly(seconds, then):
                time.sleep(seconds)
                self._give(handler, request, then)
            case "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.connection.close()
            case "half":
                self._send(handler, Sent(200, b'{"schema": ', {"Content-Length": "1000"}))
            case Sent():
                self._send(handler, answer)
            case (int() as status, bytes() as body):
                self._send(handler, Sent(status, body))
            case _:
                raise AssertionError(f"no answer: {answer!r}")

    def _send(self, handler: http.server.BaseHTTPRequestHandler, answer: Sent) -> None:
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body)

    def _handed_on(self, request: Request) -> Sent:
        place = urlsplit(self._behind)
        headers = {name: value for name, value in request.headers.items() if name.title() in _PASSED_ON}
        asked = urllib.request.Request(
            f"{place.scheme}://{place.netloc}{request.path}", request.body or None, headers, method=request.method
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return Sent(answer.status, answer.read())
        except urllib.error.HTTPError as refused:
            return Sent(refused.code, refused.read())


@contextmanager
def dripping(start: bytes, end: bytes = b"\r\nContent-Length: 0\r\n\r\n") -> Iterator[str]:
    """Answer each request with ``start``, then 60 bytes one at a time, in 3 s, and then ``end``."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.connection.recv(65_536)
            with suppress(OSError):
                self.wfile.write(start)
                for _ in range(60):
                    time.sleep(0.05)
                    self.wfile.write(b"x")
                self.wfile.write(end)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
