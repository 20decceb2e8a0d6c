"""docs/patterns.md: the table says what comes out after each of its rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.unit.runtime.operators.test_event_time import Bench

PAGE = (Path(__file__).parents[3] / "docs" / "patterns.md").read_text(encoding="utf-8")
PROGRAM, TABLE = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)[0]
NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


class Sinks(Bench):
    """What each sink has got, with its name."""

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        self.said: list[tuple[str, str]] = []
        return {sink.name: partial(self._said, sink.name) for sink in self.plan.sinks}

    def _said(self, sink: str, batch: Batch[Any]) -> None:
        self.said += [(sink, f"`{value}`") for value in batch.values]


def test_the_program_writes_what_its_table_says(tmp_path: Path) -> None:
    head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in TABLE.splitlines()]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM, names)

    with ExitStack() as closing:
        bench = Sinks(names["pipeline"].plan(), tmp_path, closing)
        bench.open(splits=("logins/0",))
        ends = [0]
        for offset, (row, at, *_) in enumerate(rows):
            user, how, host = re.fullmatch(r"(\w+) (fails|enters) from (\w+)", row).groups()  # type: ignore[union-attr]
            hour, minute = map(int, at.split(":"))
            time = round(NOON.replace(hour=hour, minute=minute).timestamp() * 1000)
            value = names["Login"](user=user, ok=how == "enters", host=host)
            origin = ListOrigin("logins", "logins", 0, offset, [value], [time])
            bench.chain.push("logins", Batch([value], range(1), origin))
            ends.append(len(bench.said))

    assert len(rows) > 5
    for row, (begin, end) in zip(rows, pairwise(ends), strict=True):
        said = bench.said[begin:end]
        assert [", ".join(text for sink, text in said if f"`{sink}`" == column) for column in head[2:]] == row[2:], row
