"""Which file the audit has Spark's workers import."""

from __future__ import annotations

from pathlib import Path

from kafka_eos.audit.job_audit import file_of
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import load_program

MADE = """
from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink

def made():
    pipeline = Pipeline("numbers")
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    return pipeline
"""


def test_a_pipeline_that_a_function_of_another_file_makes_is_found_in_the_file_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "made_elsewhere.py").write_text(MADE)
    app = tmp_path / "app.py"
    app.write_text("from made_elsewhere import made\npipeline = made()\n")
    program = load_program(AppRef(app))

    assert file_of(program) == AppRef(app, "numbers")
    assert file_of(program.plan()) == AppRef(tmp_path / "made_elsewhere.py", "numbers")
