"""run_local gives what an engine would write, sink by sink, from values alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from kafka_eos import ProcessContext, ProcessFunction, Ttl
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record, dead_letter
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.records import RawRecord, RejectedRecord
from kafka_eos.testing import AdvanceClock, ListSource, MemorySink, TimestampedValue, run_local

ORDERS = [{"user": user, "amount": amount} for user, amount in [("ada", 3), ("bob", 5), ("ada", 4), ("bob", 1)]]


def _totals() -> Pipeline:
    pipeline = Pipeline("totals")
    (
        pipeline.source(ListSource([]), name="orders")
        .key_by(lambda order: order["user"])
        .fold(name="total", init=lambda: 0, step=lambda total, order: total + order["amount"], state=int)
        .sink(MemorySink(), name="totals")
    )
    return pipeline


@pytest.mark.parametrize("batch_size", [1, 3, 500])
def test_state_is_kept_across_batches(batch_size: int) -> None:
    result = run_local(_totals(), {"orders": ORDERS}, batch_size=batch_size)

    assert dict(result["totals"]) == {"ada": 7, "bob": 6}


def test_two_runs_share_nothing() -> None:
    pipeline = _totals()

    assert run_local(pipeline, {"orders": ORDERS}) == run_local(pipeline.plan(), {"orders": ORDERS})


def test_every_sink_gets_its_own_list() -> None:
    pipeline = Pipeline("branches")
    numbers = pipeline.source(ListSource([]), name="numbers")
    numbers.filter(lambda n: n % 2 == 0).sink(MemorySink(), name="even")
    words = pipeline.source(ListSource([]), name="words").map(len)
    numbers.union(words).flat_map(lambda n: [n] * 2).sink(MemorySink(), name="twice")

    result = run_local(pipeline, {"numbers": range(4), "words": ["abcde"]})
    assert result == {"even": [0, 2], "twice": [0, 0, 1, 1, 2, 2, 3, 3, 5, 5]}


def test_a_source_without_input_and_a_sink_without_output_are_empty() -> None:
    assert run_local(_totals(), {}) == {"totals": []}


def test_an_unknown_source_is_named() -> None:
    with pytest.raises(PlanError, match=r"\['ordres'\].*\['orders'\]"):
        run_local(_totals(), {"ordres": ORDERS})


def _division(**options: Any) -> Pipeline:
    pipeline = Pipeline("division")
    pipeline.source(ListSource([]), name="numbers", **options).map(lambda n: 12 // n).sink(
        MemorySink(), name="quotients"
    )
    return pipeline


def test_a_refused_record_stops_the_run_with_its_place() -> None:
    with pytest.raises(PoisonRecord, match="ZeroDivisionError") as caught:
        run_local(_division(), {"numbers": [3, 0, 4]}, batch_size=1)

    assert caught.value.where == "numbers/0/1"


def test_dead_letters_appear_under_their_sinks_name() -> None:
    pipeline = _division(on_error=DeadLetters(MemorySink()))
    result = run_local(pipeline, {"numbers": [3, 0, 4]})

    (letter,) = result["numbers-dead-letters"]
    assert result["quotients"] == [4, 3]
    assert isinstance(letter, RejectedRecord)
    assert (letter.raw.offset, letter.raw.value, letter.error_type) == (1, b"0", "ZeroDivisionError")


# ---------------------------------------------------------------- the clock


def test_state_that_lives_by_the_clock_expires_by_waits() -> None:
    pipeline = Pipeline("waiting")
    by_word = pipeline.source(ListSource([]), name="words").key_by(str)
    counts = by_word.fold(name="count", init=int, step=lambda n, word: n + 1, ttl=Ttl(7200))
    counts.sink(MemorySink(), name="counts")

    run = run_local(
        pipeline,
        {"words": ["a", AdvanceClock(7199), "a", "b", AdvanceClock(7199.999), "a", AdvanceClock(7200), "a"]},
        now=0,
    )

    assert run["counts"] == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 1)]


# ---------------------------------------------------------------- codecs and timestamps


class Order(Struct, frozen=True):
    user: str
    amount: int


class Later(ProcessFunction[str, Order, tuple[str, int]]):
    """Counts the records of a key within a second of event time."""

    def open(self, ctx: ProcessContext) -> None:
        self._count = ctx.value_state("count", int, default=0, ttl=Ttl(1.0, clock="event"))

    def process(self, key: str, value: Order) -> list[tuple[str, int]]:
        self._count.put(self._count.get() + 1)
        return [(key, self._count.get())]


def _encoded(**options: Any) -> Pipeline:
    pipeline = Pipeline("encoded")
    orders = pipeline.source(KafkaSource("orders", value=Order), name="orders", **options)
    sink = KafkaSink("big", value=Order, key=lambda order: order.user, headers=lambda order: (("n", b"1"),))
    orders.filter(lambda order: order.amount > 1).sink(sink, name="big")
    return pipeline


def test_values_pass_the_codecs_of_source_and_sink() -> None:
    run = run_local(_encoded(), {"orders": [Order("ada", 1), TimestampedValue(Order("bob", 2), 1_700_000_000_000)]})

    assert run == {"big": [Order("bob", 2)]}
    assert run.written["big"] == [
        RawRecord("big", -1, -1, 1_700_000_000_000, b"bob", b'{"user":"bob","amount":2}', (("n", b"1"),))
    ]


def test_bytes_are_decoded_and_refused_as_in_the_job() -> None:
    good = RawRecord("orders", 3, 70, -1, None, b'{"user":"eve","amount":5}', ())
    bad = RawRecord("orders", 3, 71, -1, None, b'{"user":', ())

    with pytest.raises(PoisonRecord) as caught:
        run_local(_encoded(), {"orders": [good, bad]})
    assert caught.value.where == "orders/3/71"

    run = run_local(_encoded(on_error=dead_letter("refused")), {"orders": [good, bad]})
    assert run["big"] == [Order("eve", 5)]
    assert [letter.raw.offset for letter in run["orders-dead-letters"]] == [71]
    (letter,) = run.written["orders-dead-letters"]
    assert letter.value == bad.value and ("dead_letter.offset", b"71") in letter.headers


def test_an_input_that_is_not_of_the_sources_type_is_the_tests_mistake() -> None:
    with pytest.raises(PlanError, match="input 1 of source 'orders' cannot be encoded by its codec: expected Order"):
        run_local(_encoded(), {"orders": [Order("ada", 1), {"user": "bob", "amount": 2}]})


def test_a_row_that_the_sink_cannot_encode_goes_where_the_job_would_send_it() -> None:
    def pipeline(**options: Any) -> Pipeline:
        made = Pipeline("picky")
        source = made.source(KafkaSource("orders", value=Order), name="orders", **options)
        source.map(lambda order: order if order.amount else "nothing").sink(KafkaSink("out", value=Order), name="out")
        return made

    inputs = {"orders": [Order("ada", 0), Order("bob", 2)]}
    with pytest.raises(PoisonRecord, match="expected Order, got str"):
        run_local(pipeline(), inputs)

    run = run_local(pipeline(on_error=dead_letter("refused")), inputs)
    assert run["out"] == [Order("bob", 2)]
    assert [letter.raw.value for letter in run["orders-dead-letters"]] == [b'{"user":"ada","amount":0}']


def test_whole_records_keep_key_headers_and_timestamp() -> None:
    pipeline = Pipeline("whole")
    source = KafkaSource.records("in", key=str, value=Order)
    pipeline.source(source, name="in").sink(KafkaSink.records("out", key=str, value=Order), name="out")
    given = [Record("ada", Order("ada", 1), (("h", b"x"),), 17), Record("bob", None)]

    run = run_local(pipeline, {"in": given})
    assert run["out"] == given
    assert [(r.key, r.value, r.timestamp) for r in run.written["out"]] == [
        (b"ada", b'{"user":"ada","amount":1}', 17), (b"bob", None, -1)]  # fmt: skip


@pytest.mark.parametrize("source", [KafkaSource("orders", value=Order), ListSource([])], ids=["kafka", "list"])
def test_state_expires_by_the_timestamps_of_the_inputs(source: Any) -> None:
    pipeline = Pipeline("expiry")
    pipeline.source(source, name="orders").key_by(lambda o: o.user).process(Later, name="count").sink(
        MemorySink(), name="out"
    )
    times = [1_000_000, 1_000_500, 1_009_000]

    run = run_local(pipeline, {"orders": [TimestampedValue(Order("ada", 1), time) for time in times]}, batch_size=1)
    assert run == {"out": [("ada", 1), ("ada", 2), ("ada", 1)]}


def test_a_source_without_a_codec_takes_no_bytes() -> None:
    with pytest.raises(PlanError, match="has no codec"):
        run_local(_totals(), {"orders": [RawRecord("orders", 0, 0, -1, None, b"", ())]})


@pytest.mark.parametrize("value", ["text", [1, "2"], object()], ids=["another type", "an element", "no type"])
def test_state_that_could_not_be_stored_fails_the_test_of_its_pipeline(value: Any) -> None:
    class Keeps(ProcessFunction[str, str, str]):
        def open(self, ctx: ProcessContext) -> None:
            self.kept = ctx.value_state("kept", list[int])

        def process(self, key: str, text: str) -> list[str]:
            self.kept.put(value)
            return []

    pipeline = Pipeline("keeps")
    stream = pipeline.source(ListSource([]), name="source").key_by(str).process(Keeps, name="keeps")
    stream.sink(MemorySink(), name="sink")

    with pytest.raises(PoisonRecord, match="source/0/0 .* operator 'keeps'.* state 'kept' cannot be stored"):
        run_local(pipeline, {"source": ["a"]})
