"""A service over HTTP, in the process of the test, that is slow, fails by chance, and can be away or silent.

GET /price/7   the answer for 7 is ``answer(7)``
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(number: int) -> int:
    return number * 7 + 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Of more than so many that connect at one time some would wait a second."""


class Service:
    """``asked`` are the numbers that it was asked for, of each as often as it was."""

    def __init__(self, failing: float, slowest: float) -> None:
        self.asked: list[int] = []
        self.held = threading.Event()
        """While it is not set nobody gets an answer."""
        self.held.set()
        self._chance = random.Random(7)
        self._failing, self._slowest = failing, slowest
        self._server = _Server(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def serve(self) -> None:
        self._server.serve_forever(0.05)

    def stop(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.rpartition("/")[2])
                service.asked.append(number)
                service.held.wait()
                time.sleep(service._chance.random() * service._slowest)
                fails = service._chance.random() < service._failing
                body = b"" if fails else str(answer(number)).encode()
                try:
                    self.send_response(503 if fails else 200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except ConnectionError:
                    return  # who asked was killed

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def serving(failing: float = 0.1, slowest: float = 0.05) -> Iterator[Service]:
    service = Service(failing, slowest)
    thread = threading.Thread(target=service.serve, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join()
