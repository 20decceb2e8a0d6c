"""Schedules of epochs that hypothesis draws, and makes as short as it can if one fails; with internal sizes of two.

Here are sinks without a server, and tables in which a row replaces the one of its key: what is committed in another
order than it was written shows there. Every sink, with schedules from seeds: ``test_sinks``.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import sink_factories
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.json_values import Json
from kafka_eos.testing import ContractBroken, SinkUnderTest
from kafka_eos.testing.sink_harness import SinkHarness
from kafka_eos.testing.sink_run import run_choices, run_steps
from kafka_eos.testing.sink_schedules import AbortStep, CommitStep, NotifyStep, PrepareStep, SealStep, Step, WriteStep
from tests.examples import examples

CHOICES = st.lists(st.integers(0, 1 << 20), min_size=25, max_size=90)
WORKERS = st.sampled_from([[0], [0, 0], [0, 1], [0, 1, 1]])
REPLACING: Sequence[Json] = [{"id": n % 3, "text": f"row {n}"} for n in range(40)]
"""Each takes the place of one before it."""


def newest(rows: Sequence[Any]) -> list[Any]:
    """What a table with a key shows of rows that were written in this order."""
    return [found for _, found in sorted({row["id"]: row for row in rows}.items())]


def by_id(rows: Sequence[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: int(row["id"]))


@given(CHOICES, WORKERS)
@examples(30)
def test_a_sink_in_memory(choices: Sequence[int], workers: Sequence[int]) -> None:
    name = uuid.uuid4().hex
    sink = sink_factories.memory_sink(name)
    with SinkHarness(
        SinkUnderTest("sink_factories:memory_sink", {"name": name}, lambda: list(sink.committed))
    ) as trial:
        run_choices(trial, workers, choices)


@given(CHOICES, WORKERS)
@examples(6)
def test_files(choices: Sequence[int], workers: Sequence[int]) -> None:
    """Of an epoch there are several: each ends after two rows."""
    with TemporaryDirectory() as directory:

        def read_back() -> list[Any]:
            parts = sorted(Path(directory).glob("part-*"), key=lambda part: part.name)
            return [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]

        arguments: dict[str, Json] = {"directory": directory, "roll": 2}
        with SinkHarness(SinkUnderTest("sink_factories:file_sink", arguments, read_back)) as trial:
            run_choices(trial, workers, choices)


@given(CHOICES)
@examples(5)
def test_a_table_whose_rows_replace_each_other(choices: Sequence[int]) -> None:
    with TemporaryDirectory() as directory:
        path = str(Path(directory) / "rows.db")

        def ask(statement: str) -> list[Any]:
            with sqlite3.connect(path) as connection:
                return [{"id": number, "text": text} for number, text in connection.execute(statement)]

        ask('CREATE TABLE rows (id BIGINT NOT NULL UNIQUE, "te%xt?" TEXT NOT NULL)')
        target = SinkUnderTest(
            "databases:sqlite_sink",
            {"path": path, "key": ["id"]},
            lambda: by_id(ask('SELECT id, "te%xt?" FROM rows')),
            rows=REPLACING,
        )
        with SinkHarness(target) as trial:
            run_choices(trial, [0], choices, newest)


@given(CHOICES)
@examples(3)
def test_a_lake_whose_rows_replace_each_other(choices: Sequence[int]) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
    with TemporaryDirectory() as directory:
        table = str(Path(directory) / "rows")
        DeltaTable.create(table, columns)
        target = SinkUnderTest(
            "sink_factories:delta_sink",
            {"table": table, "key": ["id"]},
            lambda: by_id(pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()),
            rows=REPLACING,
        )
        with SinkHarness(target) as trial:
            run_choices(trial, [0], choices, newest)


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ([], CommitStep()),
        ([], PrepareStep()),
        ([], AbortStep()),
        ([], NotifyStep()),
        ([SealStep()], SealStep()),
        ([SealStep()], CommitStep()),
        ([SealStep(), PrepareStep(), CommitStep()], AbortStep()),
        ([SealStep(), PrepareStep(), CommitStep()], NotifyStep(again=True)),
        ([SealStep(), PrepareStep(), SealStep(), PrepareStep()], SealStep()),
        ([SealStep(), PrepareStep(), CommitStep(dies_after=0)], WriteStep()),
    ],
    ids=str,
)
def test_what_no_engine_does_is_in_no_schedule(before: Sequence[Step], step: Step) -> None:
    name = uuid.uuid4().hex
    sink = sink_factories.memory_sink(name)
    target = SinkUnderTest("sink_factories:memory_sink", {"name": name}, lambda: list(sink.committed))
    with (
        pytest.raises(ContractBroken, match=r"Bug: the step .* is not possible") as caught,
        SinkHarness(target) as trial,
    ):
        run_steps(trial, [0], [*before, step])

    assert "The schedule, step by step" in str(caught.value)
