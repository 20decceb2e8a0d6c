"""A plan is refused, with the user's line, unless it can keep its guarantees."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos import DerivedNameWarning, Pipeline, PlanError, WatermarkStrategy, bounded, monotonic, on_count, tumbling
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.sink import DeadLetters, Sink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.plan import union_lane
from kafka_eos.testing import ListSource, MemorySink


class WeakSource(ListSource):
    """A source that cannot be read again exactly."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE


class WeakSink(MemorySink):
    """A sink that was asked for at-least-once."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE


def numbers() -> ListSource:
    return ListSource([1, 2, 3], name="numbers")


def totals(name: str = "totals") -> Pipeline:
    pipeline = Pipeline(name)
    source = pipeline.source(numbers(), name="numbers")
    keyed = source.filter(lambda n: n > 1).key_by(str)
    keyed.fold(name="sum", init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="sums")
    return pipeline


def test_nodes_come_in_order_with_derived_names_for_those_that_have_none() -> None:
    plan = totals().plan()

    assert [(n.name, n.kind, n.inputs, n.has_generated_name) for n in plan.nodes] == [
        ("numbers", "source", (), False),
        ("filter-1", "filter", ("numbers",), True),
        ("key-by-1", "key-by", ("filter-1",), True),
        ("sum", "fold", ("key-by-1",), False),
        ("sums", "sink", ("sum",), False),
    ]


def test_what_goes_round_must_come_from_the_loop() -> None:
    pipeline = Pipeline("p")
    other = pipeline.source(numbers(), name="others")
    out = pipeline.source(numbers(), name="numbers").iterate(lambda values: (other, values), name="again")
    out.sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match="'again' feeds back does not come from the loop"):
        pipeline.plan()


def test_the_fingerprint_depends_on_names_and_edges_and_not_on_code() -> None:
    def doubled(fn: Callable[[int], int], name: str) -> str:
        pipeline = Pipeline("p")
        pipeline.source(numbers(), name="numbers").map(fn, name=name).sink(MemorySink(), name="out")
        return pipeline.plan().fingerprint

    assert doubled(lambda n: n, "m") == doubled(lambda n: n * 2, "m")
    assert doubled(lambda n: n, "m") != doubled(lambda n: n, "other")


def test_the_fingerprint_depends_on_what_is_said_of_event_time() -> None:
    def counted(strategy: WatermarkStrategy, seconds: float, **options: Any) -> str:
        pipeline = Pipeline("p")
        timed = pipeline.source(numbers(), name="numbers").with_timestamps(lambda n: n, watermarks=strategy)
        windows = timed.key_by(str).window(tumbling(seconds=seconds), **options)
        windows.fold(name="count", init=int, step=lambda acc, n: acc + 1).sink(MemorySink(), name="out")
        return pipeline.plan().fingerprint

    plans = [
        counted(bounded(1), 5),
        counted(bounded(2), 5),
        counted(bounded(86400.1), 5),
        counted(bounded(86400.14), 5),
        counted(bounded(1).with_idleness(3), 5),
        counted(bounded(1), 10),
        counted(bounded(1), 5, lateness=1),
        counted(bounded(1), 5, trigger=on_count(2)),
    ]

    assert len(set(plans)) == len(plans)
    assert counted(bounded(1), 5) == plans[0]


def test_a_stateful_operator_without_a_name_warns() -> None:
    pipeline = Pipeline("p")
    keyed = pipeline.source(numbers(), name="numbers").key_by(str)
    keyed.fold(init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="out")

    with pytest.warns(DerivedNameWarning, match="fold-1"):
        pipeline.plan()


def test_rows_that_wait_for_answers_without_a_name_warn() -> None:
    """With another ``async_map`` before it, that one would be given them."""
    pipeline = Pipeline("p")
    pipeline.source(numbers(), name="numbers").async_map(float, values=int).sink(MemorySink(), name="out")

    with pytest.warns(DerivedNameWarning, match="what waits in async-map 'async-map-1' is stored"):
        pipeline.plan()


def test_named_operators_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        totals().plan()


def test_a_topic_may_be_read_back_where_nothing_goes_round_or_it_is_meant() -> None:
    pipeline = Pipeline("p")
    retried = pipeline.source(KafkaSource(["orders", "again"], allow_feedback=True), name="retried")
    retried.sink(KafkaSink("again"), name="again")
    retried.sink(KafkaSink("shop-paid", bootstrap_servers="elsewhere:9092"), name="elsewhere")
    every = re.compile("shop-.+")
    ended = pipeline.source(KafkaSource(every, until="latest"), name="ended")
    ended.sink(KafkaSink("shop-all"), name="all")
    left_out = pipeline.source(KafkaSource(every, exclude=["shop-good"]), name="shops")
    left_out.sink(KafkaSink("shop-good"), name="good")
    later = pipeline.source(KafkaSource(re.compile("good-.+")), name="later")
    pipeline.source(KafkaSource("orders"), name="first").sink(KafkaSink("good-orders"), name="good-orders")
    later.sink(MemorySink(), name="out")

    pipeline.source(FileSource("/tmp/given"), name="given").sink(FileSink("/tmp/made"), name="made")
    pipeline.source(FileSource("/tmp/made"), name="made-again").sink(MemorySink(), name="rest")
    pipeline.source(FileSource("/tmp/ended", until="latest"), name="at-end").sink(FileSink("/tmp/ended"), name="ends")
    looped = pipeline.source(FileSource("/tmp/loop", allow_feedback=True), name="looped")
    looped.sink(FileSink("/tmp/loop"), name="loop")

    assert pipeline.plan().node("later")


@pytest.mark.parametrize(
    ("read", "sink", "found"),
    [
        (FileSource("/made/sales"), DeltaSink("/made/sales"), True),
        (FileSource("/made/sales/day=5"), FileSink("/made/sales"), True),
        (FileSource("/made/sales/day=5/hour=1"), DeltaSink("/made/sales"), True),
        (FileSource("/made", partitions=["day"]), FileSink("/made/day=5"), True),
        (FileSource("/made"), FileSink("/made/day=5"), False),
        (FileSource("/made/in"), FileSink("/made"), False),
        (FileSource("/made/sales"), FileSink("/made/sales-paid"), False),
        (FileSource("/made/sales"), FileSink("s3://made/sales"), False),
    ],
)
def test_files_of_a_sink_are_found_in_its_directory_and_its_partition_directories(
    read: FileSource[Any], sink: Sink[Any], found: bool
) -> None:
    assert (read.find_feedback(sink, refused=False, ctx=None) is not None) == found


def no_source() -> Pipeline:
    return Pipeline("p")


def dangling() -> Pipeline:
    pipeline = totals()
    pipeline.source(numbers(), name="more").map(str, name="lonely")  # lonely
    return pipeline


def only_dead_letters() -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.source(numbers(), name="numbers", on_error=DeadLetters(MemorySink()))  # only dead letters
    return pipeline


def twice_the_same_name() -> Pipeline:
    pipeline = totals()
    pipeline.source(numbers(), name="numbers").sink(MemorySink(), name="out")  # again
    return pipeline


def a_bad_name() -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.source(numbers(), name="my numbers").sink(MemorySink(), name="out")  # bad name
    return pipeline


def one_sink_twice() -> Pipeline:
    pipeline, sink = Pipeline("p"), MemorySink()
    stream = pipeline.source(numbers(), name="numbers")
    stream.sink(sink, name="one")  # shared
    stream.sink(sink, name="two")  # shared
    return pipeline


def one_outbox_for_two_receivers() -> Pipeline:
    pipeline = Pipeline("p")
    stream = pipeline.source(numbers(), name="numbers")
    stream.sink(HttpSink("http://localhost/a", outbox="/tmp/outbox"), name="one")
    stream.sink(HttpSink("http://localhost/b", outbox="/tmp/../tmp/outbox"), name="two")  # shared
    return pipeline


def a_pattern_that_matches_its_dead_letters() -> Pipeline:
    pipeline = Pipeline("p")
    orders = pipeline.source(  # reads its letters
        KafkaSource(re.compile("orders-.+"), exclude=["orders-paid"]), name="in", on_error=dead_letter("orders-bad")
    )
    orders.sink(KafkaSink("orders-paid"), name="out")
    return pipeline


def a_topic_that_is_its_own_dead_letters() -> Pipeline:
    pipeline = Pipeline("p")
    orders = pipeline.source(KafkaSource("orders"), name="in", on_error=dead_letter("orders"))  # its own
    orders.sink(MemorySink(), name="out")
    return pipeline


def a_topic_that_is_its_own_sink() -> Pipeline:
    pipeline = Pipeline("p")
    orders = pipeline.source(KafkaSource(["orders", "again"]), name="in")  # reads the same topic
    orders.filter(bool, name="some").sink(KafkaSink("again"), name="out")
    return pipeline


def a_directory_that_is_its_own_sink() -> Pipeline:
    pipeline = Pipeline("p")
    orders = pipeline.source(FileSource("/tmp/orders"), name="in")  # reads the same files
    orders.sink(FileSink("/tmp/other/../orders/"), name="out")
    return pipeline


def a_pattern_that_matches_its_sink() -> Pipeline:
    pipeline = Pipeline("p")
    orders = pipeline.source(KafkaSource(re.compile("orders-.+")), name="in")  # reads its rows
    orders.sink(KafkaSink("orders-paid"), name="out")
    return pipeline


def the_same_stream_twice_in_a_union() -> Pipeline:
    pipeline = Pipeline("p")
    stream = pipeline.source(numbers(), name="numbers")
    stream.union(stream).sink(MemorySink(), name="out")  # union with itself
    return pipeline


def a_weak_source_under_a_strong_sink() -> Pipeline:
    pipeline = Pipeline("p")
    stream = pipeline.source(WeakSource([1]), name="weak")
    stream.sink(MemorySink(), name="strong")  # strong
    return pipeline


@pytest.mark.parametrize(
    ("build", "message", "line"),
    [
        (no_source, "has no source", 'return Pipeline("p")'),
        (dangling, "nothing reads the output of map 'lonely'", "# lonely"),
        (only_dead_letters, "nothing reads the output of source 'numbers'", "# only dead letters"),
        (twice_the_same_name, "two operators are named 'numbers'", "# again"),
        (a_bad_name, "'my numbers' is not usable as a name", "# bad name"),
        (one_sink_twice, "attached to more than one stream", "# shared"),
        (
            one_outbox_for_two_receivers,
            "'one' and 'two' have the same outbox /tmp/outbox: use a different one",
            "# shared",
        ),
        (a_pattern_that_matches_its_dead_letters, r"exclude=['orders-bad']", "# reads its letters"),
        (a_topic_that_is_its_own_dead_letters, "Write to another topic", "# its own"),
        (a_pattern_that_matches_its_sink, r"exclude=['orders-paid']; if the loop is intended", "# reads its rows"),
        (a_topic_that_is_its_own_sink, "Write to another topic; if the loop is intended", "# reads the same topic"),
        (a_directory_that_is_its_own_sink, "Write to another directory; if the loop is", "# reads the same files"),
        (the_same_stream_twice_in_a_union, "the same stream twice", "# union with itself"),
        (a_weak_source_under_a_strong_sink, 'delivery="at-least-once"', "# strong"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_with_the_line_to_change(
    build: Callable[[], Pipeline], message: str, line: str
) -> None:
    with pytest.raises(PlanError) as refused:
        build().plan()

    assert message in str(refused.value)
    assert line in str(refused.value)
    assert "test_plan.py:" in str(refused.value)


def test_streams_of_two_pipelines_cannot_be_united() -> None:
    one = Pipeline("one").source(numbers(), name="a")
    other = Pipeline("other").source(numbers(), name="b")

    with pytest.raises(PlanError, match="two pipelines, 'one' and 'other'"):
        one.union(other)


def test_a_keyed_verb_on_a_stream_without_keys_says_what_to_add() -> None:
    stream = Pipeline("p").source(numbers(), name="numbers")

    with pytest.raises(PlanError, match="key_by"):
        stream.fold(name="sum", init=int, step=int.__add__)  # type: ignore[attr-defined]


def test_an_unknown_verb_is_an_attribute_error() -> None:
    assert not hasattr(Pipeline("p").source(numbers(), name="numbers"), "explode")


def test_a_path_is_as_strong_as_its_ends_and_says_why() -> None:
    pipeline = Pipeline("p")
    strong, weak = pipeline.source(numbers(), name="strong"), pipeline.source(WeakSource([1]), name="weak")
    strong.sink(MemorySink(), name="exact")
    strong.union(weak, name="both").sink(WeakSink(), name="loose")

    assert [(p.source, p.sink, p.guarantee) for p in pipeline.plan().paths] == [
        ("strong", "exact", Guarantee.EXACTLY_ONCE),
        ("strong", "loose", Guarantee.AT_LEAST_ONCE),
        ("weak", "loose", Guarantee.AT_LEAST_ONCE),
    ]
    assert 'has delivery="at-least-once"' in pipeline.plan().paths[1].reason


def test_dead_letters_are_a_sink_of_the_plan() -> None:
    pipeline = Pipeline("p")
    letters = MemorySink()
    pipeline.source(numbers(), name="numbers", on_error=DeadLetters(letters)).sink(MemorySink(), name="out")
    plan = pipeline.plan()
    sink = plan.find_dead_letter_sink("numbers")

    assert sink is not None
    assert (sink.name, sink.sink, sink.is_dead_letter_sink) == ("numbers-dead-letters", letters, True)


def test_two_paths_never_share_a_lane() -> None:
    first = [union_lane(0, 3, i) for i in range(3)]
    second = [union_lane(lane, 2, i) for lane in first for i in range(2)]

    assert sorted(second) == list(range(6))


def test_a_source_waits_for_slower_ones_by_one_event_time_only() -> None:
    """Of two, each in a group of its own, one might say wait where the other one is waited for."""
    pipeline = Pipeline("p")
    source = pipeline.source(numbers(), name="numbers")
    for group in ("one", "other"):
        strategy = monotonic().with_alignment(max_drift=60, group=group)
        timed = source.with_timestamps(int, name=f"by-{group}", watermarks=strategy)
        timed.sink(MemorySink(), name=f"{group}-out")

    with pytest.raises(PlanError, match="'by-one' and from 'by-other', and both use with_alignment"):
        pipeline.plan()
