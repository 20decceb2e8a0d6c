"""The plan cut at its exchanges: what works together in one subtask, and where rows come in and leave."""

from __future__ import annotations

from typing import Any

from kafka_eos import Pipeline, Stream
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.plan import Plan
from kafka_eos.testing import ListSource, MemorySink

Cut = list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]


def segments(plan: Plan) -> Cut:
    """Heads, tails and nodes of each segment."""
    found = plan.segments
    assert [segment.index for segment in found] == list(range(len(found)))
    letters = {sink.name for sink in plan.sinks if sink.is_dead_letter_sink}
    cut = [name for segment in found for name in segment.nodes if name not in letters]
    assert sorted(cut) == sorted(node.name for node in plan.nodes if node.name not in letters)
    return [(segment.heads, segment.tails, segment.nodes) for segment in found]


def source(pipeline: Pipeline, name: str = "in") -> Stream[Any]:
    return pipeline.source(ListSource([]), name=name)


def kept(stream: Stream[Any], key: str, name: str) -> Stream[Any]:
    return stream.key_by(str, name=key).reduce(lambda _, value: value, name=name)


def test_a_chain_without_exchange_is_one_segment() -> None:
    pipeline = Pipeline("chain")
    source(pipeline).map(str, name="a").filter(bool, name="b").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [(("in",), (), ("in", "a", "b", "out"))]


def test_an_exchange_works_before_the_cut() -> None:
    pipeline = Pipeline("cut")
    kept(source(pipeline).map(str, name="a"), "key", "last").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [(("in",), ("key",), ("in", "a", "key")), (("key",), (), ("last", "out"))]


def test_two_exchanges_in_a_row_make_three() -> None:
    pipeline = Pipeline("row")
    kept(source(pipeline), "key", "last").rebalance(name="spread").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [
        (("in",), ("key",), ("in", "key")),
        (("key",), ("spread",), ("last", "spread")),
        (("spread",), (), ("out",)),
    ]


def test_a_local_key_by_does_not_cut() -> None:
    pipeline = Pipeline("local")
    source(pipeline).key_by(str, name="key", local=True).reduce(lambda _, v: v, name="last").sink(
        MemorySink(), name="out"
    )

    assert segments(pipeline.plan()) == [(("in",), (), ("in", "key", "last", "out"))]


def test_a_diamond_comes_together_behind_the_cut() -> None:
    """One way changes subtasks and the other does not: a forward exchange brings them together."""
    pipeline = Pipeline("diamond")
    stream = source(pipeline).map(str, name="a")
    over = stream.rebalance(name="spread").map(str, name="b")
    over.union(stream.map(str, name="c"), name="both").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [
        (("in",), ("spread", "both-forward-1"), ("in", "a", "spread", "c", "both-forward-1")),
        (("spread", "both-forward-1"), (), ("b", "both", "out")),
    ]


def test_a_diamond_of_two_exchanges() -> None:
    pipeline = Pipeline("diamond")
    stream = source(pipeline)
    stream.rebalance(name="left").union(stream.broadcast(name="right"), name="both").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [
        (("in",), ("left", "right"), ("in", "left", "right")),
        (("left", "right"), (), ("both", "out")),
    ]


def test_two_sources_in_a_union_are_one_segment_only_where_they_meet() -> None:
    pipeline = Pipeline("union")
    one = kept(source(pipeline, "one"), "key", "last")
    one.union(source(pipeline, "two").map(str, name="a"), name="both").sink(MemorySink(), name="out")

    assert segments(pipeline.plan()) == [
        (("one",), ("key",), ("one", "key")),
        (("two", "key"), (), ("two", "last", "a", "both", "out")),
    ] or segments(pipeline.plan()) == [
        (("one",), ("key",), ("one", "key")),
        (("two", "key"), (), ("last", "two", "a", "both", "out")),
    ]


def test_dead_letters_can_be_written_in_every_segment_that_their_source_reaches() -> None:
    pipeline = Pipeline("letters")
    shop = pipeline.source(KafkaSource("in"), name="shop", on_error=dead_letter("aside"))
    other = pipeline.source(KafkaSource("in-2"), name="other")
    kept(shop, "key", "last").rebalance(name="spread").sink(KafkaSink("out", value=bytes), name="out")
    kept(other, "other-key", "other-last").sink(KafkaSink("out-2", value=bytes), name="other-out")
    plan = pipeline.plan()
    letters = next(sink.name for sink in plan.sinks if sink.is_dead_letter_sink)

    with_letters = {segment.heads: letters in segment.nodes for segment in plan.segments}

    assert {heads for heads, has in with_letters.items() if has} == {("shop",), ("key",), ("spread",)}
    assert {heads for heads, has in with_letters.items() if not has} == {("other",), ("other-key",)}
