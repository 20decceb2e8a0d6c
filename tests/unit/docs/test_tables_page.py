"""docs/tables.md: each table says what comes out after each of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.connectors.kafka import Record
from kafka_eos.plan import Plan
from kafka_eos.testing import MemorySink
from tests.unit.docs.test_joins_page import NOON, Sinks, cells_of

PAGE = (Path(__file__).parents[3] / "docs" / "tables.md").read_text(encoding="utf-8")
LOOKUPS = PAGE.partition("\n## A stream as a table, and back")[0]
SHOWN = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", LOOKUPS, re.MULTILINE | re.DOTALL)
PROGRAM = SHOWN[0][0]


def outputs(plan: Plan, names: dict[str, Any], rows: Sequence[Sequence[str]], tmp_path: Path) -> list[list[Any]]:
    """What each of the rows brings to each sink."""
    with ExitStack() as closing:
        bench = Sinks(plan, tmp_path, closing)
        bench.open(splits=("orders/0", "customers/0"))
        found: list[list[Any]] = []
        for offset, (row, *at, _) in enumerate(rows):
            before = len(bench.said)
            time = time_of(at[0]) if at else 0
            if (upsert := re.fullmatch(r"customer (\w+): (\w+)", row)) is not None:
                value = None if upsert[2] == "none" else names["Customer"](level=upsert[2])
                bench.push("customers", Record(upsert[1], value), time, offset)
            else:
                order = re.fullmatch(r"order (\w+), (\d+)", row)
                assert order is not None, row
                bench.push("orders", names["Order"](customer=order[1], total=int(order[2])), time, offset)
            found.append(bench.said[before:])
        return found


def time_of(at: str) -> int:
    hour, minute = map(int, at.split(":"))
    return round(NOON.replace(hour=hour, minute=minute).timestamp() * 1000)


def prepared(code: str) -> str:
    """All of a block but its last statement."""
    return code.rpartition("\n\n")[0]


@pytest.mark.parametrize("number", range(len(SHOWN)), ids=["join", "left_join", "left_join_as_of"])
def test_the_table_is_what_comes_out(number: int, tmp_path: Path) -> None:
    code, table = SHOWN[number]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM, names)
    sink = "to-priced"
    if number > 0:
        for block, _ in SHOWN[1 : number + 1]:
            exec(prepared(block), names)
        sink = "shown"
        eval(code.removeprefix(prepared(code)).strip(), names).sink(MemorySink(), name=sink)  # noqa: S307
    _, rows = cells_of(table)

    found = outputs(names["pipeline"].plan(), names, rows, tmp_path)

    assert [", ".join(text for name, text in said if name == sink) for said in found] == [row[-1] for row in rows]
