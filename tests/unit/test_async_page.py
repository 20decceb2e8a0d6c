"""docs/async.md: the program asks a service, and its table says what comes out."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kafka_eos.testing import run_local

PAGE = (Path(__file__).parents[2] / "docs" / "async.md").read_text(encoding="utf-8")
((PROGRAM, TABLE),) = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\| [^\n]*\n|^\|-[^\n]*\n)+)", PAGE, re.M | re.S)
COUNTRIES = {"ann": "de", "bob": "fr"}


class Users(BaseHTTPRequestHandler):
    """As the page says."""

    failed = False

    def do_GET(self) -> None:
        user = self.path.rpartition("/")[2]
        if user == "bob" and not Users.failed:
            Users.failed = True
            self.close_connection = True  # and not a word: the client sees that the connection is gone
            return
        self.send_response(200 if user in COUNTRIES else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"country": COUNTRIES.get(user)}).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Users)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_program_writes_what_its_table_says() -> None:
    _, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines()]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM, names)
    orders = [names["Order"](id=int(number), user=user) for number, user in (row[0].split(", ") for row in lines)]

    with service() as url:
        names["SERVICE"] = url
        found = run_local(names["pipeline"], {"orders": orders})

    assert [f"`{order}`" for order in found["known"]] == [row[1] for row in lines if row[1]]
    refused = {letter.raw.offset: f"`{letter.error_type}: {letter.message}`" for letter in found["orders-dead-letters"]}
    assert refused == {place: row[2] for place, row in enumerate(lines) if row[2]}
    assert Users.failed
