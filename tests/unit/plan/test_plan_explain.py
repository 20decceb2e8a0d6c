"""``explain`` prints the graph, the guarantee of every path, and where every setting came from."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from kafka_eos import (
    DerivedNameWarning,
    Pipeline,
    WatermarkStrategy,
    global_,
    monotonic,
    rows,
    tumbling,
)
from kafka_eos._util.cpu_quota import usable_cores
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import Ttl
from kafka_eos.codecs import Registry, avro
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.files import FileSource
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.plan.explain import explain
from kafka_eos.testing import ListSource, MemorySink

EXPECTED = """\
pipeline totals
  fingerprint {fingerprint}

operators
  numbers               source  list=numbers, splits=1, values=2; on error: dead letters
  numbers-dead-letters  sink    <- numbers (refused records)  {sink}
  key-by-1              key-by  <- numbers
  sum                   fold    <- key-by-1  keeps state
  sums                  sink    <- sum  {sink}

guarantees
  numbers -> numbers-dead-letters
    exactly-once: offsets, state and output are committed as one epoch
  numbers -> key-by-1 -> sum -> sums
    exactly-once: offsets, state and output are committed as one epoch

notices
  the broker keeps transactions for 15 minutes
  fold 'sum' keeps a row for every key forever; if keys come and go, set ttl=Ttl(…) so that old rows expire, or put a \
.window(…) by time before it
"""


class Order(Struct):
    user: str


def totals() -> Pipeline:
    pipeline = Pipeline("totals", batch_size=10)
    source = ListSource([1, 2], name="numbers")
    stream = pipeline.source(source, name="numbers", on_error=DeadLetters(MemorySink()))
    stream.key_by(str).fold(name="sum", init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="sums")
    return pipeline


def test_the_text_is_the_golden_one() -> None:
    plan = totals().plan()
    sink = ", ".join(f"{name}={value}" for name, value in MemorySink().describe().items() if value)
    expected = EXPECTED.format(fingerprint=plan.fingerprint[:16], sink=sink)

    assert expected == explain(plan, notices=["the broker keeps transactions for 15 minutes"])


def test_every_setting_is_shown_with_its_origin() -> None:
    program = totals()
    text = explain(program.plan(), Settings.resolve(code={"batch_size": 10}), with_defaults=True)
    rows = [line.split() for line in text.split("settings\n")[1].split("\n\n")[0].splitlines()]

    assert [row[0] for row in rows] == list(Settings.model_fields)
    assert ["batch_size", "10", "code"] in rows
    assert ["parallelism", str(min(usable_cores(), 128)), "default"] in rows


def test_settings_that_have_their_default_are_counted() -> None:
    text = totals().explain()
    changed, others = text.split("settings\n")[1].split("\n\n")[0].splitlines()

    assert changed.split() == ["batch_size", "10", "code"]
    assert others.strip().startswith(f"{len(Settings.model_fields) - 1} settings have their default: kafka-eos")


@pytest.mark.parametrize(
    ("verb", "grows"),
    [
        (lambda keyed: keyed.fold(name="f", init=int, step=max), "fold 'f' keeps a row for every key"),
        (lambda keyed: keyed.reduce(max, name="f"), "reduce 'f' keeps a row for every key"),
        (lambda keyed: keyed.window(rows(3)).reduce(max, name="f"), "'f' (windows of 3 rows) keeps the contents"),
        (
            lambda keyed: keyed.window(global_(every=3)).reduce(max, name="f"),
            "'f' (all rows, with a result every 3) keeps",
        ),
        (lambda keyed: keyed.distinct(name="f", ttl=None), "process 'f' keeps a row for every key"),
        (lambda keyed: keyed.distinct(name="f", ttl=Ttl(60)), None),
        (lambda keyed: keyed.fold(name="f", init=int, step=max, ttl=Ttl(60)), None),
        (lambda keyed: keyed.window(rows(3), ttl=Ttl(60)).reduce(max, name="f"), None),
        (lambda keyed: keyed.window(tumbling(seconds=60)).reduce(max, name="f"), None),
        (lambda keyed: keyed.deduplicate(name="f", within=60), None),
    ],
)
def test_state_that_does_not_end_is_a_notice(verb: Callable[[Any], Any], grows: str | None) -> None:
    pipeline = Pipeline("p")
    timed = pipeline.source(ListSource([]), name="in").with_timestamps(watermarks=monotonic().with_idleness(60))
    verb(timed.key_by(str, values=int)).sink(MemorySink(), name="out")

    text = explain(pipeline.plan())

    assert grows in text if grows else "forever" not in text


@pytest.mark.parametrize(("strategy", "told"), [(monotonic(), True), (monotonic().with_idleness(5), False)])
def test_windows_that_a_silent_partition_holds_back_are_a_notice(strategy: WatermarkStrategy, told: bool) -> None:
    pipeline = Pipeline("p")
    timed = pipeline.source(ListSource([]), name="in").with_timestamps(watermarks=strategy)
    timed.key_by(str, values=int).window(tumbling(seconds=60)).reduce(max, name="f").sink(MemorySink(), name="out")

    assert ("the watermark of 'in' waits for every partition that has not ended" in explain(pipeline.plan())) is told


def test_nothing_is_held_back_where_nothing_waits_for_event_time() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([]), name="in").with_timestamps(watermarks=monotonic()).sink(MemorySink(), name="out")

    assert "waits for every" not in explain(pipeline.plan())


class Sum(Struct):
    total: int


def typed(value: int) -> Sum:
    return Sum(value)


@pytest.mark.parametrize(("shown", "known"), [(typed, True), (lambda value: Sum(value), False)])
def test_rows_of_an_unknown_type_that_may_be_stored_are_a_notice(shown: Callable[[int], Sum], known: bool) -> None:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([1]), name="in")
    spread = source.rebalance(values=int).map(typed, name="other")
    source.map(shown, name="made").union(spread, name="both").sink(MemorySink(), name="out")

    text = explain(pipeline.plan())

    assert "forward 'both-forward-0'" not in text if known else "return type of the function of 'made'" in text


def test_a_derived_name_of_state_is_a_notice() -> None:
    pipeline = Pipeline("p")
    keyed = pipeline.source(ListSource([1]), name="numbers").key_by(str)
    keyed.fold(init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="out")

    with pytest.warns(DerivedNameWarning):
        plan = pipeline.plan()

    assert "'fold-1' has a generated name" in explain(plan)


def test_how_long_state_is_kept_is_shown() -> None:
    pipeline = Pipeline("lifetimes")
    keyed = pipeline.source(ListSource([]), name="numbers").key_by(str)
    keyed.fold(name="hour", init=int, step=max, ttl=Ttl(3600)).sink(MemorySink(), name="one")
    keyed.reduce(max, name="half-second", ttl=Ttl(0.5, clock="event")).sink(MemorySink(), name="other")
    keyed.fold(name="day", init=int, step=max, merge=max, ttl=Ttl(86_400)).sink(MemorySink(), name="third")

    shown = explain(pipeline.plan())

    assert "keeps state for 3600 s of processing time\n" in shown
    assert "keeps state for 0.5 s of event time\n" in shown
    assert "keeps state for 86400 s of processing time; one output per key and epoch" in shown


def test_the_schemas_of_each_path_are_shown_with_where_they_come_from() -> None:
    registry = Registry("http://localhost:8081")
    pipeline: Any = Pipeline("orders")
    orders = pipeline.source(KafkaSource("orders", value=avro(Order, registry=registry)), name="orders")
    orders.sink(KafkaSink("out", value=Order, key_codec=str, key=lambda order: order.user), name="out")

    _, _, shown = explain(pipeline.plan()).partition("\nschemas\n")

    assert shown.splitlines()[:4] == [
        "  orders -> out",
        "    orders, value: Avro Order, subject orders-value of http://localhost:8081",
        "    out, key: utf-8",
        "    out, value: json of Order, which is in the code",
    ]


def test_the_type_of_rows_that_come_from_files_is_shown(tmp_path: Path) -> None:
    pipeline: Any = Pipeline("orders")
    files = pipeline.source(FileSource(tmp_path, value=Order, format="csv"), name="files")
    files.sink(KafkaSink("out", value=Order), name="out")

    _, _, shown = explain(pipeline.plan()).partition("\nschemas\n")

    assert shown.splitlines()[:2] == ["  files -> out", "    files: rows of Order, which is in the code"]


def test_the_price_of_each_path_is_said_once_a_sink_and_that_of_several_sinks_together(tmp_path: Path) -> None:
    pipeline = Pipeline("priced", checkpoint_interval=5)
    orders = pipeline.source(KafkaSource("orders", value=Order, bootstrap_servers="b:1"), name="orders")
    orders.sink(KafkaSink("copies", value=Order, bootstrap_servers="b:1"), name="copies")
    orders.sink(PostgresSink("dbname=shop", "orders", value=Order), name="rows")
    orders.sink(PostgresSink("dbname=shop", "newest", value=Order, key="user"), name="newest")
    orders.sink(HttpSink("https://example.com", outbox=tmp_path, value=Order), name="service")
    orders.sink(KafkaSink("early", value=Order, bootstrap_servers="b:1", delivery="at-least-once"), name="early")

    shown = explain(pipeline.plan(), Settings.resolve(code={"checkpoint_interval": 5}))

    trade_offs = shown.partition("\ntrade-offs\n")[2].partition("\n\n")[0]
    of_each = {part.split("\n")[0].strip(): part for part in re.split(r"\n(?=  \S)", trade_offs)}
    assert [*of_each] == ["copies", "rows", "newest", "service", "early", "all together"]
    visible = "visible when an epoch is committed (each 5 s, checkpoint_interval), not before"
    assert [name for name, said in of_each.items() if visible in said] == ["copies", "rows", "newest"]
    assert "where transactions are prepared: an open transaction" in of_each["rows"]
    assert "locks the rows of its keys" in of_each["newest"] and "prepared" not in of_each["newest"]
    assert "the whole job waits" in of_each["service"] and "visible at once" in of_each["early"]
    assert "only some readers see it" in of_each["all together"]
    assert "at-least-once: requests may be repeated, under the same key: effectively once if the receiver" in shown
