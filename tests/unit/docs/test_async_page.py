"""docs/async.md: the programs ask a service, and their tables say what comes out."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from kafka_eos.testing import run_local

PAGE = (Path(__file__).parents[3] / "docs" / "async.md").read_text(encoding="utf-8")
(PROGRAM, TABLE), (KEPT, KEPT_TABLE) = re.findall(
    r"^```python\n(.*?)^```$\n.*?((?:^\| [^\n]*\n|^\|-[^\n]*\n)+)", PAGE, re.M | re.S
)
COUNTRIES = {"ann": "de", "bob": "fr"}


class Users(BaseHTTPRequestHandler):
    """As the page says."""

    failed = False
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        user = self.path.rpartition("/")[2]
        Users.asked[user] += 1
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
    Users.failed = False
    Users.asked.clear()
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
    lines, names = cells(TABLE), run(PROGRAM)
    orders = orders_of(lines, names)

    with service() as url:
        names["SERVICE"] = url
        found = run_local(names["pipeline"], {"orders": orders})

    assert [f"`{order}`" for order in found["known"]] == [row[1] for row in lines if row[1]]
    refused = {letter.raw.offset: f"`{letter.error_type}: {letter.message}`" for letter in found["orders-dead-letters"]}
    assert refused == {place: row[2] for place, row in enumerate(lines) if row[2]}
    assert Users.failed


def test_the_program_that_keeps_answers_asks_as_often_as_its_table_says() -> None:
    lines, names = cells(KEPT_TABLE), run(PROGRAM, KEPT)
    orders = orders_of(lines, names)

    with service() as url:
        names["SERVICE"] = url
        found = run_local(names["pipeline"], {"orders": orders})

    assert [f"`{order}`" for order in found["known"]] == [row[2] for row in lines]
    wanted: Counter[str] = Counter()
    for order, row in zip(orders, lines, strict=True):
        wanted[order.user] += int(row[1])
    assert Users.asked == wanted


def cells(table: str) -> list[list[str]]:
    _, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return lines


def run(*programs: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shown"}
    for program in programs:
        exec(program, names)
    return names


def orders_of(lines: list[list[str]], names: dict[str, Any]) -> list[Any]:
    return [names["Order"](id=int(number), user=user) for number, user in (row[0].split(", ") for row in lines)]
