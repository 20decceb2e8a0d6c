"""Mistakes in functions that a crash test finds before the first crash, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.crash_test.code_checks import CodeFinding, check_code
from kafka_eos.devtools.crash_test.input_records import generate
from kafka_eos.runtime.program import load_program
from tests.crash_test import planted


def check(directory: Path, program: str) -> list[CodeFinding]:
    """Return the findings, and expect that the sink gets rows."""
    app = AppRef(directory / "planted_app.py")
    app.path.write_text(program)
    rows = generate(load_program(app).plan(), {"orders": "orders"}, 200, seed=1)
    found = check_code(app, rows.by_source(), directory / "run")
    assert found.rows["totals"] > 20, "generated rows have a status that the filter accepts"
    calls = {each.role: each.calls for each in found.functions if each.operator == "total"}
    assert calls["step"] == calls["emit"] == found.rows["totals"]
    return list(found.findings)


def at(directory: Path, program: str, text: str) -> str:
    return f"{directory / 'planted_app.py'}:{planted.line_of(program, text)}: "


def test_a_correct_pipeline_has_no_findings(tmp_path: Path) -> None:
    assert check(tmp_path, planted.CORRECT) == []


def test_a_side_effect_is_found_with_its_line_and_counted_against_records(tmp_path: Path) -> None:
    (found,) = check(tmp_path, planted.SIDE_EFFECT)

    assert (found.kind, found.operator, found.fails) == ("side effect", "total", True)
    assert found.line.startswith(at(tmp_path, planted.SIDE_EFFECT, "kafka-eos-planted"))
    assert "times for 200 records); a restart repeats it" in found.detail


def test_a_function_that_is_not_deterministic_is_found_with_its_line(tmp_path: Path) -> None:
    (found,) = check(tmp_path, planted.NOT_DETERMINISTIC)

    assert found.kind == "not deterministic"
    assert found.line.startswith(at(tmp_path, planted.NOT_DETERMINISTIC, "def add"))
    assert "returned another result for the same arguments" in found.detail


def test_only_the_first_function_that_varies_is_named(tmp_path: Path) -> None:
    (found,) = check(tmp_path, planted.RANDOM_KEY)

    assert "random.randrange(1000)" in found.line


def test_a_changed_global_is_a_note_with_its_line(tmp_path: Path) -> None:
    (found,) = check(tmp_path, planted.CHANGED_GLOBAL)

    assert (found.kind, found.fails) == ("global variable", False)
    assert found.line.startswith(at(tmp_path, planted.CHANGED_GLOBAL, "SEEN.append"))


def test_a_pipeline_that_fails_in_memory_is_not_tested(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="(?s)fails in memory.*ZeroDivisionError"):
        check(tmp_path, planted._pipeline("1 // 0"))
