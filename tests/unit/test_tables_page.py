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
from tests.unit.test_joins_page import Sinks, cells_of

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM, VERB = SHOWN
LAST = "\n\nby_customer."


def outputs(plan: Plan, names: dict[str, Any], rows: Sequence[Sequence[str]], tmp_path: Path) -> list[list[str]]:
    """What each of the rows brings."""
    with ExitStack() as closing:
        bench = Sinks(plan, tmp_path, closing)
        bench.open()
        found: list[list[str]] = []
        for offset, (row, _) in enumerate(rows):
            before = len(bench.said)
            if (upsert := re.fullmatch(r"customer (\w+): (\w+)", row)) is not None:
                value = None if upsert[2] == "none" else names["Customer"](level=upsert[2])
                bench.push("customers", Record(upsert[1], value), 0, offset)
            else:
                order = re.fullmatch(r"order (\w+), (\d+)", row)
                assert order is not None, row
                bench.push("orders", names["Order"](customer=order[1], total=int(order[2])), 0, offset)
            found.append([text for _, text in bench.said[before:]])
        return found


@pytest.mark.parametrize("shown", [None, VERB], ids=["join", "left_join"])
def test_the_table_is_what_comes_out(shown: tuple[str, str] | None, tmp_path: Path) -> None:
    code, table = PROGRAM if shown is None else shown
    names: dict[str, Any] = {"__name__": "shown"}
    if shown is None:
        exec(code, names)
    else:
        exec(PROGRAM[0].rpartition(LAST)[0], names)
        before, _, verb = code.rpartition(LAST)
        exec(before, names)
        eval(f"by_customer.{verb}", names).sink(MemorySink(), name="shown")  # noqa: S307
    _, rows = cells_of(table)

    found = outputs(names["pipeline"].plan(), names, rows, tmp_path)

    assert [", ".join(said) for said in found] == [row[1] for row in rows]
