"""An Iceberg REST catalog in the process of the test, above a catalog in SQLite: what a client asks of one table.

Whoever holds ``commits`` decides what becomes of each commit and of its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableRequest

Land = Callable[[], str]
"""Makes the commit, and returns the answer to it."""


class RestCatalog:
    """``commits`` gets each commit, and returns the answer; None cuts the connection."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self.catalog, self.commits = catalog, _at_once
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._server.server_port}"}

    @contextmanager
    def serving(self) -> Iterator[RestCatalog]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _loaded(self, path: str) -> str:
        namespace, _, table = path.removeprefix("/v1/namespaces/").partition("/tables/")
        found = self.catalog().load_table((namespace, table))
        return TableResponse(metadata_location=found.metadata_location, metadata=found.metadata).model_dump_json(
            by_alias=True
        )

    def _landed(self, body: bytes) -> str:
        request, catalog = CommitTableRequest.model_validate_json(body), self.catalog()
        name = (*request.identifier.namespace.root, request.identifier.name)
        answer = catalog.commit_table(catalog.load_table(name), request.requirements, request.updates)
        return answer.model_dump_json(by_alias=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path.startswith("/v1/config"):
                    self._answer(lambda: '{"defaults": {}, "overrides": {}}')
                else:
                    self._answer(lambda: server._loaded(self.path))

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(lambda: server.commits(lambda: server._landed(body)))

            def _answer(self, of: Callable[[], str | None]) -> None:
                status, text = HTTPStatus.OK, None
                try:
                    text = of()
                except (NoSuchTableError, CommitFailedException) as error:
                    status = HTTPStatus.NOT_FOUND if isinstance(error, NoSuchTableError) else HTTPStatus.CONFLICT
                    text = f'{{"error": {{"message": "no", "type": "{type(error).__name__}", "code": {status.value}}}}}'
                if text is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text.encode())

            def log_message(self, *said: object) -> None:
                """Nobody reads it."""

        return Handler


def _at_once(land: Land) -> str | None:
    return land()
