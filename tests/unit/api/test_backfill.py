"""A source that comes after another one: what is refused, and how event time goes from the one to the other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline, PlanError, monotonic, tumbling
from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.core.ids import SplitId
from kafka_eos.core.records import Record
from kafka_eos.testing import MemorySink, run_local


class Order(msgspec.Struct, frozen=True):
    user: str
    at: int


def flow(first: Any) -> Pipeline:
    pipeline = Pipeline("job")
    history = pipeline.source(first, name="history").with_timestamps(lambda order: order.at, watermarks=monotonic())
    live = pipeline.source(KafkaSource("orders", value=Order), name="live", after=history).with_timestamps(
        lambda order: order.at, watermarks=monotonic()
    )
    (
        history.union(live)
        .key_by(lambda order: order.user)
        .window(tumbling(seconds=0.01))
        .fold(name="counts", init=int, step=lambda count, order: count + 1)
        .map(lambda counted: (counted.window.start, counted.value))
        .sink(MemorySink(), name="out")
    )
    return pipeline


FILES: FileSource[Order] = FileSource(".", value=Order, until="latest", in_order=True)


@pytest.mark.parametrize("first", [FILES, KafkaSource("old", value=Order, until="latest")])
def test_windows_close_while_the_first_is_read_and_go_on_with_the_second(first: Any) -> None:
    plan = flow(first).plan()
    assert (plan.prerequisites, plan.awaited_sources) == ({"live": {"history"}}, {"history": frozenset()})

    def closed(live: list[int]) -> list[Any]:
        history = [Order("ann", at) for at in (1, 2, 12, 23)]
        return run_local(plan, {"history": history, "live": [Order("ann", at) for at in live]}, batch_size=1)["out"]

    assert closed([]) == [(0, 2), (10, 1)]
    assert closed([24, 31]) == [(0, 2), (10, 1), (20, 2)]


def test_a_partition_that_is_read_to_its_end_for_good_is_list_excluded_splits() -> None:
    source = KafkaSource("old", value=Order, until={0: 7, 1: 9})
    at = {
        SplitId("old/0"): {"offset": 7, "topic_id": "x", "until": 7},
        SplitId("old/1"): {"offset": 8, "topic_id": "x", "until": 9},
    }

    assert list(source.list_excluded_splits(at)) == ["old/0"]
    assert list(KafkaSource("old", value=Order).list_excluded_splits(at)) == []


def test_what_is_first_must_have_an_end() -> None:
    with pytest.raises(PlanError, match=r"source 'live' is after 'history', which has no end"):
        flow(FileSource(".", value=Order))


def test_what_is_first_must_be_one_source_of_the_pipeline() -> None:
    pipeline = Pipeline("job")
    both = pipeline.source(FILES, name="a").union(pipeline.source(KafkaSource("b", value=Order), name="b"))
    with pytest.raises(PlanError, match="after= needs a stream of one source, but 'union-1' comes from a, b"):
        pipeline.source(KafkaSource("c", value=Order), name="c", after=both)

    other: Any = Pipeline("other").source(FILES, name="files")
    for wrong in (other, "files"):
        with pytest.raises(PlanError, match="after= is a stream of this pipeline"):
            pipeline.source(KafkaSource("c", value=Order), name="c", after=wrong)


def test_a_table_is_read_first_anyway() -> None:
    pipeline = Pipeline("job")
    table: Any = pipeline.table(KafkaSource.records("t", key=str, value=Order), name="table")
    rows: Any = pipeline.source(KafkaSource.records("x", key=str, value=Order), name="x")
    joined = rows.key_by(lambda row: row.key, values=Record[str, Order]).join(table, lambda row, found: found)
    with pytest.raises(PlanError, match="comes from table, x"):
        pipeline.source(KafkaSource("c", value=Order), name="c", after=joined)


def test_explain_says_what_comes_after_what_and_so_does_the_fingerprint() -> None:
    assert "after 'history' is read to its end" in flow(FILES).explain()
    alone = Pipeline("job")
    alone.source(KafkaSource("orders", value=Order), name="live").sink(MemorySink(), name="out")
    assert alone.plan().sources[0].time_rules is None
