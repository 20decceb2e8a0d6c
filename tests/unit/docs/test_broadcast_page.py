"""docs/broadcast.md: each table says what comes out after each of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.connectors.kafka import Record
from kafka_eos.plan import Plan
from kafka_eos.testing import MemorySink, run_local
from tests.unit.docs.test_joins_page import Sinks, cells_of
from tests.unit.docs.test_tables_page import prepared

PAGE = (Path(__file__).parents[3] / "docs" / "broadcast.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM = SHOWN[0][0]


def given(names: dict[str, Any], row: str) -> tuple[str, Any]:
    """The source of a row of the page, and what it brings."""
    if (rule := re.fullmatch(r"rule (\w+): (\w+)", row)) is not None:
        return "rules", Record(rule[1], None if rule[2] == "none" else names["Rule"](above=int(rule[2])))
    payment = re.fullmatch(r"payment (\w+), (\d+)", row)
    assert payment is not None, row
    return "payments", names["Payment"](user=payment[1], amount=int(payment[2]))


def outputs(plan: Plan, names: dict[str, Any], rows: Sequence[Sequence[str]], tmp_path: Path) -> list[list[Any]]:
    """What each of the rows brings to each sink."""
    with ExitStack() as closing:
        bench = Sinks(plan, tmp_path, closing)
        bench.open(splits=("payments/0", "rules/0"))
        found: list[list[Any]] = []
        for offset, (row, _) in enumerate(rows):
            before = len(bench.said)
            bench.push(*given(names, row), 0, offset)
            found.append(bench.said[before:])
        return found


@pytest.mark.parametrize("number", range(len(SHOWN)), ids=["without keys", "with keys"])
def test_the_table_is_what_comes_out(number: int, tmp_path: Path) -> None:
    code, table = SHOWN[number]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM, names)
    sink = "to-alerts"
    if number:
        exec(prepared(code), names)
        sink = "shown"
        eval(code.removeprefix(prepared(code)).strip(), names).sink(MemorySink(), name=sink)  # noqa: S307
    _, rows = cells_of(table)

    found = outputs(names["pipeline"].plan(), names, rows, tmp_path)

    assert len(rows) > 5
    assert [", ".join(text for name, text in said if name == sink) for said in found] == [row[-1] for row in rows]


def test_the_program_is_run_as_a_first_test_would(tmp_path: Path) -> None:
    """All rules first, as in a job."""
    names: dict[str, Any] = {"__name__": "shown"}
    exec(PROGRAM, names)
    (_, table), *_ = SHOWN
    records: dict[str, list[Any]] = {"payments": [], "rules": []}
    for row, _ in cells_of(table)[1]:
        source, value = given(names, row)
        records[source].append(value)

    (alerts,) = run_local(names["pipeline"], records).values()

    assert [(alert.rule, alert.user, alert.amount) for alert in alerts] == [("large", "bob", 2000)] * 2
