"""docs/joins.md: each table says what comes out after each of its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.testing import MemorySink
from kafka_eos.testing.list_source import ListOrigin
from tests.unit.runtime.operators.test_event_time import Bench

PAGE = (Path(__file__).parents[3] / "docs" / "joins.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM, *VERBS = SHOWN
NOON = datetime(2023, 11, 14, 12, tzinfo=UTC)


class Sinks(Bench):
    """A bench of two sources, and of what each sink has got, with its name."""

    def outputs(self) -> dict[str, Callable[[Batch[Any]], None]]:
        self.said: list[tuple[str, str]] = []
        return {sink.name: partial(self._said, sink.name) for sink in self.plan.sinks}

    def _said(self, sink: str, batch: Batch[Any]) -> None:
        self.said += [(sink, f"`{value}`") for value in batch.values]

    def push(self, source: str, value: Any, at: int, offset: int) -> None:
        self.chain.push(source, Batch([value], range(1), ListOrigin(source, source, 0, offset, [value], [at])))


def outputs(plan: Plan, names: dict[str, Any], rows: Sequence[Sequence[str]], tmp_path: Path) -> list[list[Any]]:
    """What each of the rows brings."""
    with ExitStack() as closing:
        bench = Sinks(plan, tmp_path, closing)
        bench.open(splits=("orders/0", "payments/0"))
        ends = [0]
        for offset, (row, at, *_) in enumerate(rows):
            kind, key, amount = re.fullmatch(r"(\w+) (\w+), (\d+)", row).groups()  # type: ignore[union-attr]
            hour, minute = map(int, at.split(":"))
            time = round(NOON.replace(hour=hour, minute=minute).timestamp() * 1000)
            if kind == "order":
                bench.push("orders", names["Order"](id=key, total=int(amount)), time, offset)
            else:
                bench.push("payments", names["Payment"](order=key, amount=int(amount)), time, offset)
            ends.append(len(bench.said))
        return [bench.said[begin:end] for begin, end in pairwise(ends)]


def cells_of(table: str) -> tuple[list[str], list[list[str]]]:
    head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    return head, lines


def test_every_block_has_its_table() -> None:
    assert len(VERBS) >= 4
    assert all(table.startswith("| row | at | ") for _, table in SHOWN)


def test_the_program_writes_what_its_table_says(tmp_path: Path) -> None:
    head, rows = cells_of(PROGRAM[1])
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM[0], names)

    found = outputs(names["pipeline"].plan(), names, rows, tmp_path)

    for row, said in zip(rows, found, strict=True):
        assert [", ".join(text for sink, text in said if f"`{sink}`" == column) for column in head[2:]] == row[2:], row


@pytest.mark.parametrize(("code", "table"), VERBS, ids=[re.findall(r'name="(.*?)"', code)[0] for code, _ in VERBS])
def test_the_table_is_what_comes_out(code: str, table: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM[0].partition("\nfound = ")[0], names)
    before, verb = code.rsplit("both.", 1)
    exec(before, names)
    stream = eval(f"both.{verb}", names)  # noqa: S307
    stream.sink(MemorySink(), name="shown")
    if "UNPAID" in code:
        stream.side_output(names["UNPAID"]).sink(MemorySink(), name="unpaid")
    _, rows = cells_of(table)

    found = outputs(names["pipeline"].plan(), names, rows, tmp_path)

    told = [[text if sink == "shown" else f"`{sink}: {text[1:]}" for sink, text in said] for said in found]
    assert [", ".join(each) for each in told] == [row[2] for row in rows]
