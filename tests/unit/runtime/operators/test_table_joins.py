"""Joins of a stream with a table: what a row meets, what is stored, what it is called, and which source waits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import Pipeline, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.connectors.kafka import KafkaSource, Record
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.records import Watermark
from kafka_eos.testing import ListSource, MemorySink, run_local
from tests.unit.runtime.operators.test_event_time import Bench, rows

Row = tuple[str, int]


class Rate(msgspec.Struct):
    version: int


Rows = Record[str, Rate]


def found(row: Row, rate: Rate | None) -> tuple[str, int, int | None]:
    return *row, None if rate is None else rate.version


def flow(*, outer: bool = False, timed: bool = False, on_error: Any = "stop", fn: Any = found) -> Pipeline:
    pipeline = Pipeline("tables")
    stream = pipeline.source(ListSource([]), name="stream", on_error=on_error)
    if timed:
        stream = stream.with_timestamps(lambda row: row[1], watermarks=monotonic())
    table: Any = pipeline.table(ListSource([]), name="rates", values=Rows, on_error=on_error)
    keyed: Any = stream.key_by(lambda row: row[0], name="by-key", values=tuple)
    joined = keyed.left_join(table, fn, name="rated") if outer else keyed.join(table, fn, name="rated")
    joined.sink(MemorySink(), name="sink")
    return pipeline


def upserts(*changes: tuple[str, int | None]) -> list[Rows]:
    return [Record(key, None if version is None else Rate(version)) for key, version in changes]


KEYS = st.sampled_from("abcd")
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 99)), max_size=8)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 99)), max_size=8)


@settings(deadline=None)
@given(st.lists(st.tuples(CHANGES, ROWS), max_size=5), st.booleans(), st.booleans())
def test_a_row_meets_what_the_table_has_just_then_through_checkpoints(
    steps: Sequence[tuple[list[tuple[str, int | None]], list[Row]]], outer: bool, restarted: bool
) -> None:
    table: dict[str, int | None] = {}
    wanted: list[Any] = []
    with TemporaryDirectory() as directory, ExitStack() as closing:
        bench = Bench(flow(outer=outer).plan(), Path(directory), closing)
        chain = bench.open()
        for changes, values in steps:
            table.update(changes)
            wanted += [(*row, table.get(row[0])) for row in values if outer or table.get(row[0]) is not None]
            chain.push("rates", rows(upserts(*changes), [0] * len(changes), source="rates"))
            chain.push("stream", rows(values, [0] * len(values), source="stream"))
            if restarted:
                chain = bench.open(bench.checkpoint())

    assert bench.values == wanted


def test_run_local_reads_tables_first() -> None:
    pipeline = flow(outer=True)

    made = run_local(pipeline, {"stream": [("a", 1), ("b", 2)], "rates": upserts(("a", 7), ("b", 8), ("b", None))})

    assert made["sink"] == [("a", 1, 7), ("b", 2, None)]


def test_a_key_that_is_taken_away_leaves_nothing(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench = Bench(flow().plan(), tmp_path, closing)
        chain = bench.open()
        chain.push("rates", rows(upserts(("a", 1), ("b", 2)), [0, 0], source="rates"))
        bench.checkpoint()
        chain.push("rates", rows(upserts(("a", None)), [0], source="rates"))
        bench.checkpoint()

        chain.push("stream", rows([("a", 1), ("b", 2)], [0, 0], source="stream"))
        sizes = [file.size for handle in bench.checkpoint() for file in handle.files]
        fresh = Bench(flow().plan(), tmp_path / "fresh", closing)
        fresh.open().push("rates", rows(upserts(("b", 2)), [0], source="rates"))

        assert bench.values == [("b", 2, 2)]
        assert sizes == [file.size for handle in fresh.checkpoint() for file in handle.files]


def test_rows_that_only_look_a_table_up_write_nothing(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench = Bench(flow().plan(), tmp_path, closing)
        chain = bench.open()
        chain.push("rates", rows(upserts(("a", 1)), [0], source="rates"))
        before = bench.checkpoint()
        chain.push("stream", rows([("a", 1), ("b", 2)], [0, 0], source="stream"))

        assert [handle.files for handle in bench.checkpoint()] == [handle.files for handle in before]


def test_an_output_is_named_by_the_row_of_the_stream(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench = Bench(flow().plan(), tmp_path, closing)
        chain = bench.open()
        chain.push("rates", rows(upserts(("a", 1)), [0], source="rates"))
        chain.push("stream", rows([("b", 0), ("a", 1), ("a", 2)], [0, 0, 0], source="stream"))

        (batch,) = bench.out
        assert format_provenance(batch, "job", Term(1), Epoch(2)) == [
            f"job.1.2/stream/stream/0/{offset}/0.0" for offset in (1, 2)
        ]


class Refusing(Bench):
    """A chain with a sink for what is refused, which does not count as output."""

    def outputs(self) -> dict[str, Any]:
        return {**super().outputs(), "stream-dead-letters": lambda batch: None}


def test_outputs_beside_a_refused_row_are_named_by_their_own(tmp_path: Path) -> None:
    """Row 1 has a key that the table cannot have, and the function fails for row 3."""

    def failing(row: Row, rate: Rate | None) -> Any:
        if row[1] == 3:
            raise ValueError("three")
        return row[1]

    with ExitStack() as closing:
        plan = flow(outer=True, on_error=DeadLetters(MemorySink()), fn=failing).plan()
        bench = Refusing(plan, tmp_path, closing)
        mixed: list[Any] = [("a", 0), (1, 1), ("a", 2), ("a", 3), ("a", 4)]
        bench.open().push("stream", rows(mixed, [0] * 5, source="stream"))

        (batch,) = bench.out
        assert list(batch.values) == [0, 2, 4]
        assert format_provenance(batch, "job", Term(1), Epoch(2)) == [
            f"job.1.2/stream/stream/0/{offset}/0.0" for offset in (0, 2, 4)
        ]


def test_a_row_whose_function_fails_is_refused_alone() -> None:
    def failing(row: Row, rate: Rate) -> Any:
        if row[1] == 2:
            raise ValueError("two")
        return row

    inputs = {"stream": [("a", 1), ("a", 2), ("a", 3)], "rates": upserts(("a", 1))}
    made = run_local(flow(fn=failing, on_error=DeadLetters(MemorySink())), inputs)

    assert made["sink"] == [("a", 1), ("a", 3)]
    assert [letter.raw.offset for letter in made["stream-dead-letters"]] == [1]
    with pytest.raises(PoisonRecord, match="two"):
        run_local(flow(fn=failing), inputs)


def test_a_row_whose_key_no_row_of_the_table_can_have_is_refused() -> None:
    inputs = {"stream": [("a", 1), (2, 2), ("b", 3)], "rates": upserts(("a", 1))}
    made = run_local(flow(outer=True, on_error=DeadLetters(MemorySink())), inputs)

    assert made["sink"] == [("a", 1, 1), ("b", 3, None)]
    assert [letter.raw.offset for letter in made["stream-dead-letters"]] == [1]
    with pytest.raises(PoisonRecord, match="key 2 is int, and the keys of table 'rates' are str"):
        run_local(flow(), inputs)


def _number(row: Row) -> int:
    return row[1]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (KafkaSource("rates", value=Rate), "rows with a key and a value, and those of its source are Rate"),
        (KafkaSource.records("rates", key=str, value=Rate), "keys of table 'rates' are str, and .*int: no row"),
        (KafkaSource.records("rates", value=Rate), "keys of table 'rates' are bytes, and .*int"),
        (KafkaSource.records("rates", key=int, value=Rate, start="latest"), "would start without"),
    ],
)
def test_a_table_that_nothing_is_found_in_is_refused_with_the_line(source: Any, says: str) -> None:
    pipeline = Pipeline("refused")
    stream: Any = pipeline.source(ListSource([]), name="stream")

    with pytest.raises(PlanError, match=says) as refused:
        stream.key_by(_number).join(pipeline.table(source, name="rates"), found, name="rated")
    assert __file__ in str(refused.value)


def test_a_row_of_a_table_without_a_key_is_refused() -> None:
    with pytest.raises(PoisonRecord, match="rates"):
        run_local(flow(), {"rates": [Record(None, Rate(1))]})


def test_event_time_is_that_of_the_stream_alone(tmp_path: Path) -> None:
    with ExitStack() as closing:
        plan = flow(timed=True).plan()
        bench = Bench(plan, tmp_path, closing)
        chain = bench.open(splits=("stream/0",))
        told: list[Watermark] = []
        chain.event_time._handed_on = _noting(chain.event_time._handed_on, told)  # type: ignore[method-assign]

        chain.push("rates", rows(upserts(("a", 1)), [0], source="rates"))
        chain.push("stream", rows([("a", 500)], [0], source="stream"))

    assert {"rated", "rated-lookup"} <= plan.event_time_nodes and "rates" not in plan.event_time_nodes
    assert bench.out[0].event_times == [500]
    assert told[-1] == Watermark(499)


def _noting(handed_on: Any, told: list[Watermark]) -> Any:
    def noting(name: str, watermark: Watermark) -> Any:
        if name == "rated":
            told.append(watermark)
        return handed_on(name, watermark)

    return noting


def test_a_source_waits_for_each_table_below_it_and_for_no_other() -> None:
    pipeline = Pipeline("several")
    first, second, third = (pipeline.source(ListSource([]), name=name) for name in ("first", "second", "third"))
    one, two = (pipeline.table(ListSource([]), name=name, values=Rows) for name in ("one", "two"))  # type: ignore[arg-type]
    with_one = first.key_by(str).join(one, lambda a, b: a, name="with-one")
    with_one.union(second).key_by(str, name="again").left_join(two, lambda a, b: a, name="both").sink(
        MemorySink(), name="sink"
    )
    third.sink(MemorySink(), name="other")

    assert pipeline.plan().prerequisites == {"first": {"one", "two"}, "second": {"two"}}


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda s, t: s.join(t, found), "no key|keeps state for a key"),
        (lambda s, t: s.key_by(str).join(s, found), r"pipeline\.table"),
        (lambda s, t: s.key_by(str, local=True).join(t, found, name="j").sink(MemorySink(), name="x"), "local=True"),
        (lambda s, t: s.key_by(str).join(_elsewhere(), found), "two pipelines"),
        (lambda s, t: s.sink(MemorySink(), name="x"), "is not used"),
    ],
)
def test_what_is_no_join_with_a_table_is_refused_with_the_line(write: Any, says: str) -> None:
    pipeline = Pipeline("refused")
    stream: Any = pipeline.source(ListSource([]), name="stream")
    table: Any = pipeline.table(ListSource([]), name="rates", values=Rows)

    def planned() -> None:
        write(stream, table)
        pipeline.plan()

    with pytest.raises(PlanError, match=says) as refused:
        planned()
    assert __file__ in str(refused.value)


def _elsewhere() -> Any:
    return Pipeline("elsewhere").table(ListSource([]), name="rates", values=Rows)


def test_a_table_whose_values_cannot_be_stored_says_so_at_the_first() -> None:
    pipeline = Pipeline("untyped")
    stream: Any = pipeline.source(ListSource([]), name="stream")
    table: Any = pipeline.table(ListSource([]), name="rates")
    stream.key_by(str).join(table, found, name="rated").sink(MemorySink(), name="sink")

    with pytest.raises(PoisonRecord, match="values of its table cannot be stored"):
        run_local(pipeline, {"rates": upserts(("a", 1))})


def test_explain_says_what_is_looked_up() -> None:
    inner, outer = flow().explain(), flow(outer=True).explain()

    assert "rows whose key is in the table" in inner and "all rows" in outer
    assert "rates         table" in inner
