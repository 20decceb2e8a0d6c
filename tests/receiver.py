"""A receiver over HTTP that honours idempotency keys, counts, and answers as a test says."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Final

Script = Callable[[str, Any], tuple[int, dict[str, str]] | None]
"""``script(key, body)``: the status and the headers to answer with; None takes the request."""
OK: Final = 200
RESET: Final = 1
"""In place of a status: no answer, the connection is reset."""
SILENCE: Final = 2
"""No answer, until the other side gives up."""


@dataclass
class Receiver:
    """What has arrived: each value once, by its key, in the order of first arrival."""

    url: str = ""
    taken: dict[str, Any] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    """How often each key came, refused or not."""
    headers: list[dict[str, str]] = field(default_factory=list)
    script: Script = lambda key, body: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def values(self) -> list[Any]:
        with self.lock:
            return list(self.taken.values())

    def forget(self) -> None:
        """The values, not the keys: as a service does that has worked on them."""
        with self.lock:
            self.taken = dict.fromkeys(self.taken)

    def answer(self, key: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        with self.lock:
            self.headers.append(headers)
            rows = [(row["id"], row["value"]) for row in body] if isinstance(body, list) else [(key, body)]
            self.asked.update([name for name, _ in rows])
            said = self.script(key, body)
            if said is not None and said[0] >= 0:
                return said
            for name, value in rows:
                self.taken.setdefault(name, value)
            return (OK, {}) if said is None else (-said[0], said[1])


def flaky(seed: int) -> Script:
    """One request in four fails, in each way that there is; half of these have been taken."""
    chance = Random(seed)

    def script(key: str, body: Any) -> tuple[int, dict[str, str]] | None:
        if chance.random() > 0.25:
            return None
        status = chance.choices((500, 503, RESET, SILENCE), (6, 6, 6, 1))[0]
        return status * chance.choice((1, -1)), {}

    return script


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver of its own, at a port of its own. A negative status takes the request and answers with the other."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.send_response(405)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers = receiver.answer(self.headers["Idempotency-Key"], body, dict(self.headers))
            if status in (RESET, SILENCE):
                self._leave(status)
                return
            self.send_response(status, None)
            for name, value in {"Content-Length": "2", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"{}")

        def _leave(self, how: int) -> None:
            self.close_connection = True
            with suppress(OSError):
                if how == SILENCE:
                    self.connection.recv(1)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/rows"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
