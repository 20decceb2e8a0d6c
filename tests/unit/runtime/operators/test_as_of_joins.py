"""As-of joins: a row meets what the table had for its key at its time, whichever of the two is ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import OutputTag, Pipeline, bounded, monotonic
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.connectors.kafka import Record
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.records import Batch
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.unit.runtime.operators.test_joins import TwoInputs, shuffled
from tests.unit.runtime.operators.test_windows import Row, _keys

Found = tuple[str, int, int | None]
"""Key, time, version."""
SIDES = ("left", "right")
LATE = OutputTag("late", tuple)


class Rate(msgspec.Struct):
    version: int


Rates = Record[str, Rate]


def found(row: Row, rate: Rate | None) -> tuple[Row, int | None]:
    return row, None if rate is None else rate.version


def flow(*, outer: bool = False, delay: float = 0, late: bool = False, on_error: Any = "stop") -> Pipeline:
    pipeline = Pipeline("as-of")
    strategy = bounded(delay) if delay else monotonic()
    source: Any = pipeline.source(ListSource([]), name="left", on_error=on_error)
    keyed = source.with_timestamps(lambda row: row[1], watermarks=strategy).key_by(
        lambda row: row[0], name="by-left", values=Row
    )
    table: Any = pipeline.table(ListSource([]), name="right", values=Rates, on_error=on_error)
    versions = table.with_timestamps(lambda record: record.timestamp, watermarks=strategy)
    verb = keyed.left_join_as_of if outer else keyed.join_as_of
    joined = verb(versions, found, name="join", late=LATE if late else None)
    joined.sink(MemorySink(), name="pairs")
    if late:
        joined.side_output(LATE).sink(MemorySink(), name="late")
    return pipeline


def upsert(row: Row) -> Rates:
    """Of version 1 nothing is left: it takes the key away."""
    return Record(row[0], None if row[2] == 1 else Rate(row[2]), timestamp=row[1])


class Versions(TwoInputs):
    """A bench whose second stream is a table."""

    def push(self, side: str, partition: int, given: Sequence[Row], first: int = 0) -> None:
        values = list(given) if side == "left" else list(map(upsert, given))
        origin = ListOrigin(side, side, partition, first, values, [at for _, at, _ in given])
        self.chain.push(side, Batch(values, range(len(values)), origin))

    def keys(self, state: str) -> list[str]:
        """Of all rows that the checkpoint has of a state."""
        (handle,) = [handle for handle in self.checkpoint() if handle.operator == "join"]
        return sorted(_keys(self, handle, state))


END: Row = ("z", 10_000, 0)


def batch_computed(left: Sequence[Row], right: dict[int, Sequence[Row]], *, outer: bool) -> Counter[Any]:
    """By the definition: the newest version that is not later; of one time, the one that was written last."""
    told: Counter[Any] = Counter()
    for row in left:
        known = [
            (at, partition, offset, version)
            for partition, rows in right.items()
            for offset, (key, at, version) in enumerate(rows)
            if key == row[0] and at <= row[1]
        ]
        version = max(known)[-1] if known else 1
        if version != 1 or outer:
            told[row, None if version == 1 else version] += 1
    return told


@given(
    given=shuffled(),
    outer=st.booleans(),
    batch=st.integers(1, 6),
    restart=st.integers(0, 8),
    order=st.permutations(list(product(SIDES, (0, 1)))),
)
@examples(30)
def test_any_order_within_the_bound_and_any_restart_gives_what_a_batch_computation_gives(
    given: tuple[dict[tuple[str, int], list[Row]], int], outer: bool, batch: int, restart: int, order: Any
) -> None:
    partitions, disorder = given
    plan = flow(outer=outer, delay=disorder / 1000).plan()
    named: list[dict[str, Any]] = []
    for turn in (order, order[::-1]):
        with TemporaryDirectory() as directory, ExitStack() as closing:
            bench = Versions(plan, Path(directory), closing)
            bench.open()
            reads = [(at, place) for place in turn for at in range(0, len(partitions[place]), batch)]
            for number, (at, (side, partition)) in enumerate(sorted(reads, key=lambda read: read[0])):
                bench.push(side, partition, partitions[side, partition][at : at + batch], at)
                if number == restart:
                    bench.open(bench.checkpoint())
            for side, partition in turn:
                bench.push(side, partition, [END], len(partitions[side, partition]))
            bench.open(bench.checkpoint())

            left = [*partitions["left", 0], *partitions["left", 1]]
            right = {partition: partitions["right", partition] for partition in (0, 1)}
            values, names = bench.values_of()["pairs"], bench.names()["pairs"]
            assert Counter(values) == batch_computed(left, right, outer=outer)
            assert len(set(names)) == len(names)
            named.append(dict(zip(names, values, strict=True)))
    assert named[0] == named[1], "the order of the inputs changes what outputs are called"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Versions]:
    with ExitStack() as closing:
        bench = Versions(flow(outer=True).plan(), tmp_path, closing)
        bench.open()
        for side in SIDES:
            bench.push(side, 1, [END])
        yield bench


def test_a_row_waits_until_event_time_of_both_has_come_to_it(bench: Versions) -> None:
    bench.push("right", 0, [("a", 2, 7)])
    bench.push("left", 0, [("a", 4, 0), ("b", 8, 0)])
    assert bench.told == []

    bench.push("right", 0, [("a", 5, 8)], 1)

    ((sink, batch),) = bench.told
    assert (sink, batch.values, batch.event_times) == ("pairs", [(("a", 4, 0), 7)], [4])


def test_one_version_of_a_key_is_left_and_none_of_one_that_was_taken_away(bench: Versions) -> None:
    bench.push("right", 0, [("a", at, 7) for at in range(1, 10)] + [("b", 3, 7), ("b", 9, 1), ("y", 11, 7)])
    assert Counter(bench.keys("right")) == {"a": 9, "b": 2, "y": 1, "z": 1}

    bench.push("left", 0, [("y", 11, 0)])

    assert bench.keys("right") == ["a", "y", "z"]
    assert bench.keys("left") == ["y", "z"]


def test_run_local_reads_the_table_first() -> None:
    inputs: dict[str, Any] = {
        "left": [("a", 4, 0), ("a", 2, 0), ("b", 4, 0), ("z", 99, 0)],
        "right": [
            TimestampedValue(upsert(row), row[1]) for row in (("a", 1, 5), ("a", 3, 6), ("b", 2, 5), ("b", 4, 1), END)
        ],
    }

    made = run_local(flow(outer=True, delay=0.005), inputs)["pairs"]

    assert made[0] == (("a", 2, 0), 5)
    assert sorted(made[1:]) == [(("a", 4, 0), 6), (("b", 4, 0), None)]


def test_a_late_row_goes_to_its_side_output_or_is_refused() -> None:
    inputs: dict[str, Any] = {
        "right": [TimestampedValue(upsert(("a", 1, 5)), 1), TimestampedValue(upsert(END), 99)],
        "left": [("a", 4, 0), ("a", 9, 0), ("a", 3, 0), ("a", 12, 0)],
    }
    assert run_local(flow(late=True), inputs, batch_size=1)["late"] == [("a", 3, 0)]
    with pytest.raises(PoisonRecord, match="late: the row's event time is 3"):
        run_local(flow(), inputs, batch_size=1)


def test_a_late_version_goes_where_the_table_says(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench = Versions(flow(on_error=DeadLetters(MemorySink())).plan(), tmp_path, closing)
        bench.open()
        for side in SIDES:
            bench.push(side, 1, [END])
            bench.push(side, 0, [("a", 20, 6)])
        bench.push("right", 0, [("a", 3, 7)], 1)

        assert [(sink, letter.error_type) for sink, batch in bench.told for letter in batch.values] == [
            ("right-dead-letters", "LateRow")
        ]


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda s, t: s.key_by(str).join_as_of(t, found), r"with_timestamps\(watermarks"),
        (lambda s, t: s.key_by(str).join(_timed(t), found), r"pipeline\.table"),
        (lambda s, t: s.join_as_of(_timed(t), found), "keeps state for a key"),
        (lambda s, t: s.key_by(str).join_as_of(_timed(t), found, name="j").sink(MemorySink(), name="x"), "waits for"),
        (lambda s, t: s.key_by(_number).join_as_of(_timed(t), found), "keys of table 'rates' are str"),
    ],
)
def test_what_is_no_as_of_join_is_refused_with_the_line(write: Any, says: str) -> None:
    pipeline = Pipeline("refused")
    stream: Any = pipeline.source(ListSource([]), name="stream")
    table: Any = pipeline.table(ListSource([]), name="rates", values=Rates)

    def planned() -> None:
        write(stream, table)
        pipeline.plan()

    with pytest.raises(PlanError, match=says) as refused:
        planned()
    assert __file__ in str(refused.value)


def _timed(table: Any) -> Any:
    return table.with_timestamps(watermarks=monotonic())


def _number(row: Row) -> int:
    return row[1]


def test_a_table_may_be_looked_up_as_of_a_time_and_as_it_is() -> None:
    pipeline = flow()
    plan = pipeline.plan()

    assert plan.prerequisites == {"left": {"right"}} and "right-by-key" not in {node.name for node in plan.nodes}
    assert plan.joins_of_tables == {"right": {"join"}} and {"join", "right-versions"} <= plan.event_time_nodes
    assert "rows whose key was in the table when their times are reached" in pipeline.explain()
