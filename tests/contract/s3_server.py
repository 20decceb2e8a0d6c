"""A real S3-compatible server for tests: versitygw on a directory, or one that is named in TEST_S3.

``make test`` builds the one that is pinned in requirements/s3-server.sh, where there is Go.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kafka_eos._util.jvm.jars import cache_dir

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "kafka-eos-test", "AWS_SECRET_ACCESS_KEY": "kafka-eos-test-secret"}
BUCKET = "checkpoints"


MISSING = "no versitygw: requirements/s3-server.sh builds it, with Go"
"""Why a test is skipped."""


def binary() -> str | None:
    """Where versitygw is, if it was built or installed."""
    found = [*sorted(cache_dir().glob("versitygw-*/versitygw")), *filter(None, [shutil.which("versitygw")])]
    return next(map(str, found), None)


class Server:
    """versitygw with one bucket below ``directory``, at a port of the loopback address that it keeps.

    ``users``: a directory for users besides the one of ``CREDENTIALS``, who may do everything.
    """

    def __init__(self, directory: Path, users: Path | None = None) -> None:
        self.port = free_port()
        self._directory, self._users = directory, users
        (directory / BUCKET).mkdir(parents=True)
        self.start()

    def start(self) -> None:
        server = binary()
        assert server is not None
        environment = {**os.environ, "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                       "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}  # fmt: skip
        self._process = subprocess.Popen(
            [
                server, "--quiet", "--port", f"127.0.0.1:{self.port}",
                *([] if self._users is None else ["--iam-dir", str(self._users)]), "posix", str(self._directory),
            ],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        _wait_for(self.port, self._process)

    def add_user(self, name: str, secret: str) -> None:
        """Add a user, who may do nothing yet."""
        server, root = binary(), CREDENTIALS
        assert server is not None
        login = ["-a", root["AWS_ACCESS_KEY_ID"], "-s", root["AWS_SECRET_ACCESS_KEY"]]
        where = ["--endpoint-url", f"http://127.0.0.1:{self.port}"]
        new = ["create-user", "-a", name, "-s", secret, "-r", "user"]
        subprocess.run([server, "admin", *login, *where, *new], check=True, capture_output=True, timeout=60)

    def pause(self) -> None:
        """It takes connections and requests, and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """What it has stored stays."""
        self._process.kill()
        self._process.wait()


@contextmanager
def reachable(directory: Path) -> Iterator[int]:
    """As ``serving``, with its credentials in the environment. Skips the test where there is no server."""
    if binary() is None:
        pytest.skip(MISSING)
    with serving(directory) as port, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield port


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run versitygw with one bucket below ``directory``; its port on the loopback address."""
    server = Server(directory)
    try:
        yield server.port
    finally:
        server.kill()


def address(port: int, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&region=us-east-1"


class Cutter:
    """A proxy in front of a server: passes requests on and, while ``cut``, drops the answer to each PUT."""

    def __init__(self, port: int) -> None:
        self._port, self.cut, self.dropped = port, False, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                state = {"put": False}
                threading.Thread(target=self._up, args=(client, server, state), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, state), daemon=True).start()

    @staticmethod
    def _up(client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                method = data.split(b" ", 1)[0]
                if method in (b"PUT", b"GET", b"HEAD"):
                    state["put"] = method == b"PUT"
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self.cut and state["put"]:
                    self.dropped += 1
                    break
                client.sendall(data)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Liar:
    """A proxy in front of a server: has uploads completed, and says of the first ``lies`` of them that it failed."""

    def __init__(self, port: int, lies: int) -> None:
        self._port, self._lies, self.told = port, lies, 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Liar:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with closing(HTTPConnection("127.0.0.1", liar._port)) as server:
                    body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                    server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        server.putheader(name, value)
                    server.endheaders(body)
                    answer = server.getresponse()
                    content = answer.read()
                if self.command == "POST" and "uploadId=" in self.path and liar.told < liar._lies:
                    liar.told += 1
                    self._answer(500, {}, b"")
                else:
                    self._answer(answer.status, dict(answer.getheaders()), content)

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_GET()

            def do_POST(self) -> None:
                self.do_GET()

            def do_DELETE(self) -> None:
                self.do_GET()

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(headers.get("Content-Length", len(content))))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *said: object) -> None:
                """Nobody reads it."""

        return Handler


def free_port() -> int:
    """A port of the loopback address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, "versitygw ended at once"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"versitygw does not listen on {port}")


def given() -> str | None:
    """An address that the user gives to test against, with credentials in the environment."""
    uri = os.environ.get("TEST_S3")
    assert uri is None or urlsplit(uri).scheme, f"TEST_S3={uri} is not an address like s3://bucket/prefix?…"
    return uri
