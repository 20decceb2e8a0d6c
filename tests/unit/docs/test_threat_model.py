"""Each line of the threat model names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
DEFENSES = PAGE.partition("## What is defended")[2].partition("## What is not defended")[0]


def lines() -> list[str]:
    """The rows of all tables, without their heads."""
    rows = [line for line in DEFENSES.splitlines() if line.startswith("| ")]
    return [line for line in rows if not line.startswith(("| threat |", "|---"))]


def test_each_defense_names_a_test_that_exists() -> None:
    named = [re.search(r"\| `(tests/\S+\.py)::(test_\w+)` \|$", line) for line in lines()]

    assert len(lines()) > 25
    assert [line for line, found in zip(lines(), named, strict=True) if found is None] == []
    missing = [found[0] for found in named if found is not None and found[2] not in list_tests(found[1])]
    assert missing == []


def list_tests(file: str) -> set[str]:
    path = ROOT / file
    if not path.exists():
        return set()
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
