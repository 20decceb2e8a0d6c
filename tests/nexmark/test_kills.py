"""All queries on a larger input, by a job of three workers that is killed again and again."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.generator import Generator
from benchmarks.nexmark.queries import QUERIES
from tests.nexmark.conftest import fed
from tests.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.xdist_group("spark")]
KILLS = 4
EPOCHS = 3
"""Committed between two kills."""


def ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def test_all_queries_are_right_after_kills(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    given = Generator(100_000)
    with fed(bootstrap, spark, tmp_path, given) as nexmark:
        for _ in range(KILLS):
            before = nexmark.committed("embedded-3")
            process = nexmark.start("embedded-3")
            eventually(lambda: ended(process) or nexmark.committed("embedded-3") >= before + EPOCHS, "epochs")  # noqa: B023
            assert not ended(process), "the job had ended before it was killed: it failed, or needs more input"
            process.kill()
            process.communicate()
        for _ in range(2):  # again, for the windows of q12 that were open at the end
            nexmark.run("embedded-3", spark)

        problems = [
            nexmark.expected.difference(query, given.closed, nexmark.rows("embedded-3", query)) for query in QUERIES
        ]

    assert [problem for problem in problems if problem] == []


def test_all_queries_are_right_on_spark_on_a_larger_input(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    given = Generator(50_000)
    with fed(bootstrap, spark, tmp_path, given) as nexmark:
        for _ in range(2):
            nexmark.run("spark", spark)

        problems = [nexmark.expected.difference(query, given.closed, nexmark.rows("spark", query)) for query in QUERIES]

    assert [problem for problem in problems if problem] == []
