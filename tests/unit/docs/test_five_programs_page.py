"""docs/five-programs.md: the programs of kafka_eos write what the page says, and its table has the right counts of
lines."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos.connectors.kafka import Record
from kafka_eos.testing import run_local

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "five-programs.md").read_text(encoding="utf-8")
PROGRAMS = DOCS / "examples" / "five_programs"
ENGINES = ("kafka_eos", "bytewax", "quix", "pathway", "pyflink")
NOON = 1_699_963_200_000
NAMES = ("filter_map", "windowed_total", "join", "enrich", "upsert")

Rows = dict[str, tuple[str, list[tuple[Any, ...]]]]
ROWS: dict[str, tuple[Rows, list[tuple[Any, ...]]]] = {
    "filter_map": ({"orders": ("Order", [("ann", 3, "paid"), ("bob", 4, "open")])}, [("ann", 3)]),
    "windowed_total": (
        {"sales": ("Sale", [("ann", 3, NOON), ("ann", 4, NOON + 299_999), ("ann", 1, NOON + 360_000)])},
        [("ann", NOON, NOON + 300_000, 7)],
    ),
    "join": (
        {
            "orders": ("Order", [("a", 30, NOON), ("z", 1, NOON + 900_000)]),
            "payments": ("Payment", [("a", 10, NOON + 600_000), ("a", 20, NOON + 600_001), ("y", 1, NOON + 900_000)]),
        },
        [("a", 30, 10)],
    ),
    "enrich": (
        {"customers": ("Customer", [("gold",)]), "orders": ("Order", [("ann", 30), ("eve", 10)])},
        [("ann", 30, "gold")],
    ),
    "upsert": ({"purchases": ("Purchase", [("ann", 3), ("ann", 4)])}, [("ann", 3), ("ann", 7)]),
}


@pytest.mark.parametrize("name", NAMES)
def test_our_program_writes_what_the_page_shows(name: str) -> None:
    program = runpy.run_path(str(PROGRAMS / f"{name}_kafka_eos.py"))
    given, expected = ROWS[name]
    values = {source: [program[kind](*row) for row in rows] for source, (kind, rows) in given.items()}
    if "customers" in values:
        values["customers"] = [Record("ann", value) for value in values["customers"]]

    (found,) = run_local(program["pipeline"], values).values()

    assert [msgspec.structs.astuple(row) for row in found] == expected


def count_lines(path: Path) -> int:
    """Count lines of code, without imports and blank lines."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    statements = [node for node in ast.parse(source).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return sum(bool(line.strip()) for each in statements for line in lines[each.lineno - 1 : each.end_lineno])


def test_the_table_counts_the_lines_of_every_program() -> None:
    shown = re.findall(r"^\| \d\. .*?((?: \| \[\d+\]\([^)]+\))+) \|$", PAGE, re.MULTILINE)
    cells = [re.findall(r"\[(\d+)\]\(examples/five_programs/(\w+\.py)\)", row) for row in shown]

    assert cells == [
        [(str(count_lines(PROGRAMS / file)), file) for file in (f"{name}_{engine}.py" for engine in ENGINES)]
        for name in NAMES
    ]


def test_the_programs_shown_are_the_examples() -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

    assert [ast.dump(ast.parse(each)) for each in shown] == [
        ast.dump(ast.parse((PROGRAMS / f"windowed_total_{engine}.py").read_text(encoding="utf-8")))
        for engine in ENGINES
    ]
