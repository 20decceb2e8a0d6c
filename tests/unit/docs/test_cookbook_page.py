"""docs/cookbook.md: the programs whose tables do not have records with times; ``tests/test_docs.py`` has the others."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from kafka_eos.core.records import RawRecord
from kafka_eos.testing import run_local

PAGE = (Path(__file__).parents[3] / "docs" / "cookbook.md").read_text(encoding="utf-8")


def section(heading: str) -> tuple[dict[str, Any], list[list[str]]]:
    """Return the names that a section's program defines, and the cells of its table."""
    (text,) = (part for part in PAGE.split("\n## ") if part.startswith(heading))
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(program, "shown.py", "exec", dont_inherit=True), names)
    _, _, *lines = (line for line in text.splitlines() if line.startswith("|"))
    return names, [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_changes_of_a_database_become_the_rows_of_a_table() -> None:
    names, lines = section("Changes of a database")
    values = [None if change == "none" else json.loads(change.strip("`")) for change, *_ in lines]
    raws = [
        RawRecord("changes", 0, offset, -1, b'{"id":7}', None if value is None else json.dumps(value).encode(), ())
        for offset, value in enumerate(values)
    ]

    found = run_local(names["pipeline"], {"changes": raws})

    rows = [f"{each.key}: {'none' if each.value is None else each.value.level}" for each in found["table"]]
    assert rows == [out for _, *outs in lines for out in outs if out]
    assert [raw.value for raw in found.written["table"]][-1] is None


class Model(BaseHTTPRequestHandler):
    """A language model that knows one word."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"].partition("one word: ")[2]
        Model.asked[text] += 1
        answer = {"choices": [{"message": {"content": " Billing\n" if "charged" in text else "fault"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def test_a_language_model_is_asked_as_often_as_the_table_shows() -> None:
    names, lines = section("Ask a language model")
    tickets = [names["Ticket"](id=number, text=text) for number, text in (line[0].split(", ") for line in lines)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        names["SERVICE"] = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
        found = run_local(names["pipeline"], {"tickets": tickets})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

    assert [f"{row.id}, {row.label}" for row in found["labelled"]] == [out for *_, out in lines]
    wanted: Counter[str] = Counter()
    for ticket, (_, requests, _) in zip(tickets, lines, strict=True):
        wanted[ticket.text] += int(requests)
    assert Model.asked == wanted
