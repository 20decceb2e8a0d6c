"""The sender of kafka-eos-native: it sends what the other one sends. Collected only where the module is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, KafkaException, Producer
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.sink.record_encoders import NOW, ProducerColumns
from kafka_eos.connectors.kafka.sink.record_senders import NativeSender, RecordSender
from kafka_eos.connectors.kafka.sink.record_sizes import ProvenanceHeaders
from tests.examples import examples
from tests.scripted_broker import ScriptedBroker
from tests.transactional_broker import Row, TransactionalBroker
from tests.waiting import PATIENCE, eventually

NATIVE = load_native_module()
PARTITIONS = 3
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.fixture(scope="module")
def kafka() -> TransactionalBroker:
    return TransactionalBroker({"out": PARTITIONS})


@pytest.fixture(scope="module")
def broker(kafka: TransactionalBroker) -> Iterator[ScriptedBroker]:
    with kafka.served() as serving:
        yield serving


@pytest.fixture(scope="module")
def senders(broker: ScriptedBroker) -> dict[str, RecordSender]:
    """One of each kind, each in a transaction."""
    found: dict[str, RecordSender] = {}
    for name in ("objects", "native"):
        config = {
            "bootstrap.servers": broker.address, "transactional.id": name, "partitioner": "murmur2_random",
            "linger.ms": 0, "compression.type": "none", "log_level": 0,
        }  # fmt: skip
        found[name] = NativeSender(config, NATIVE) if name == "native" else RecordSender(Producer(config))
        found[name].producer.init_transactions(PATIENCE)
        found[name].producer.begin_transaction()
    return found


def send(
    sender: RecordSender, columns: ProducerColumns, stamps: ProvenanceHeaders | None = None, without: Any = ()
) -> tuple[list[int], list[int]]:
    """Return the rows that were left to the client's own call, and those among them that it refused."""
    left, refused = [], []
    for index, (value, key, at, header, place) in sender.send("out", columns, stamps, without):
        left.append(index)
        try:
            sender.producer.produce("out", value, key, place, None, None, at, header)
        except (KafkaException, TypeError, ValueError, OverflowError):
            refused.append(index)
    return left, refused


def written(kafka: TransactionalBroker, sender: RecordSender, name: str) -> dict[int, list[tuple[Any, ...]]]:
    """Flush, and return what was written since the last time: keys, values, headers and timestamps, by partition."""
    assert sender.producer.flush(PATIENCE) == 0
    held = kafka.ids[name]
    rows: list[Row] = kafka._written.pop((held.producer_id, held.producer_epoch), [])
    return {
        partition: [(row.key, row.value, row.headers, row.timestamp) for row in rows if row.partition == partition]
        for partition in range(PARTITIONS)
    }


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
HEADERS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
TIMES = st.integers(-(1 << 62), 1 << 62).filter(lambda time: time != NOW)


@st.composite
def batches(draw: st.DrawFn) -> tuple[ProducerColumns, ProvenanceHeaders | None, set[int]]:
    """A batch of rows that the client accepts, with others among them, its provenance, and rows to leave out."""
    rows = draw(st.integers(0, 12))

    def column(items: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(items, min_size=rows, max_size=rows))

    values = column(st.none() | st.binary(max_size=9) | TEXTS | st.just(1.5) | st.just("\ud800"))
    keys = draw(st.sampled_from(["none", "same", "each"]))
    # Rows without a key go to any partition, so each names its own.
    placed = keys != "each" or draw(st.booleans())
    places = column(st.integers(0, PARTITIONS - 1)) if placed else None
    of = {"none": repeat(None), "same": ["k"] * rows, "each": column(st.binary(max_size=3) | TEXTS | st.just(7))}[keys]
    times = column(TIMES | st.sampled_from([1 << 63, "soon", True, -1, -2]))
    headers: Any = draw(st.sampled_from([None, [()] * rows, [[("h", b"1"), ("n", None)]] * rows]))
    stamps = None
    if draw(st.booleans()):
        endings = None if draw(st.booleans()) else column(HEADERS | st.integers(0, 1 << 70))
        numbers = tuple(column(st.integers(-(1 << 63), 1 << 70)))
        stamps = ProvenanceHeaders(tuple(column(HEADERS)), numbers, draw(HEADERS), endings, 100)
    without = draw(st.sets(st.integers(0, rows - 1))) if rows else set()
    return ProducerColumns(values, of, times, headers, places), stamps, without


@examples(60)
@given(batches())
def test_a_batch_is_the_same_records_whichever_way_it_takes(
    kafka: TransactionalBroker,
    senders: dict[str, RecordSender],
    drawn: tuple[ProducerColumns, ProvenanceHeaders | None, set[int]],
) -> None:
    columns, stamps, without = drawn
    found = {name: (send(sender, *drawn), written(kafka, sender, name)) for name, sender in senders.items()}
    ((every, refused), expected), ((left, refused_here), records) = found["objects"], found["native"]

    assert records == expected
    assert refused_here == refused
    assert every == [index for index in range(len(columns.values)) if index not in without]
    if columns.headers is None or not any(columns.headers):
        far = () if stamps is None else [at for at, number in enumerate(stamps.numbers) if number >= 1 << 63]
        assert set(left) == {*refused, *(set(far) - without)}
    assert senders["native"].list_failures() == []


def test_a_timestamp_of_now_is_the_time_of_writing(
    kafka: TransactionalBroker, senders: dict[str, RecordSender]
) -> None:
    times: dict[str, list[int]] = {}
    for name in ("objects", "native", "objects"):
        assert send(senders[name], ProducerColumns([b"a"], repeat(None), repeat(NOW), None))[1] == []
        times.setdefault(name, []).extend(
            row[3] for rows in written(kafka, senders[name], name).values() for row in rows
        )

    first, last = times["objects"]
    assert first <= times["native"][0] <= last


def test_keys_alone_and_a_large_batch_keep_their_order(
    kafka: TransactionalBroker, senders: dict[str, RecordSender]
) -> None:
    """More rows than are passed on at once, with some in the middle that are left to the client."""
    values: list[Any] = [b"%d" % number for number in range(5_000)]
    stamps = ProvenanceHeaders(("s/0/",) * 5_000, tuple(range(5_000)), "/0.0", None, 100)
    values[10] = values[2_048] = values[4_999] = 1.5
    columns = ProducerColumns(values, [f"key-{number % 7}" for number in range(5_000)], repeat(1), None)
    for name, sender in senders.items():
        assert send(sender, columns, stamps, {0, 7, 4_000})[1] == [10, 2_048, 4_999], name
    both = [written(kafka, sender, name) for name, sender in senders.items()]

    assert both[0] == both[1]
    assert sum(map(len, both[0].values())) == 5_000 - 6


def test_failed_deliveries_are_listed_once_by_topic_and_reason() -> None:
    told: list[Any] = []
    config = {**NOWHERE, "message.timeout.ms": 30, "on_delivery": lambda error, message: told.append(error)}
    sender = NativeSender(config, NATIVE)
    for _ in range(2):
        assert send(sender, ProducerColumns([b"a"] * 300, repeat(None), repeat(1), None))[0] == []
    assert sender.list_failures() == []
    eventually(lambda: sender.producer.poll(0.01) >= 0 and sender.list_failures() != [], "a failed delivery")
    assert sender.producer.flush(PATIENCE) == 0

    (failure,) = sender.list_failures()
    assert (failure[0].code(), failure[1]) == (KafkaError._MSG_TIMED_OUT, "out")
    assert sender.list_failures()[0][0].code() == KafkaError._MSG_TIMED_OUT, "they stay"
    assert told == [], "the client's callback gets only the rows that it was given itself"
    sender.producer.produce("out", b"b")
    assert sender.producer.flush(PATIENCE) == 0
    assert [error.code() for error in told] == [KafkaError._MSG_TIMED_OUT]


def test_a_row_for_a_partition_that_is_not_there_fails_once_its_topic_is_known(broker: ScriptedBroker) -> None:
    """As a delivery if the client learns it later; otherwise its call is refused, and is no delivery."""
    config = {"bootstrap.servers": broker.address, "transactional.id": "unknown", "log_level": 0}
    sender = NativeSender(config, NATIVE)
    sender.producer.init_transactions(PATIENCE)
    sender.producer.begin_transaction()
    columns = ProducerColumns([b"a", b"b"], repeat(None), repeat(1), None, [1, PARTITIONS])
    assert send(sender, columns)[1] == []
    sender.producer.flush(PATIENCE)
    assert [(error.code(), topic) for error, topic in sender.list_failures()] == [
        (KafkaError._UNKNOWN_PARTITION, "out")
    ]

    other = NativeSender({**config, "transactional.id": "known"}, NATIVE)
    other.producer.init_transactions(PATIENCE)
    other.producer.begin_transaction()
    assert send(other, ProducerColumns([b"a"], repeat(None), repeat(1), None))[1] == []
    assert other.producer.flush(PATIENCE) == 0
    assert send(other, columns) == ([1], [1])
    assert other.list_failures() == []


def test_a_producer_that_is_destroyed_with_rows_outstanding_leaves_its_sender() -> None:
    for _ in range(10):
        sender = NativeSender(NOWHERE, NATIVE)
        assert send(sender, ProducerColumns([b"a"] * 100, repeat(None), repeat(1), None))[0] == []
        alone = sender._sender
        del sender
        assert {code for _, code in alone.failures()} <= {KafkaError._DESTROY, KafkaError._PURGE_QUEUE}
        with pytest.raises(RuntimeError, match="the client is closed"):
            alone.produce("out", (b"a",), (None,), (1,), None, None, None, None, None, 0, 1)


def test_a_producer_is_destroyed_once_a_batch_that_is_under_way_has_ended() -> None:
    sender = NativeSender({**NOWHERE, "queue.buffering.max.messages": 1_000_000}, NATIVE)
    begun, ended = threading.Event(), list[int | str]()
    rows, alone = 300_000, sender._sender
    columns = (b"a",) * rows, (None,) * rows, (1,) * rows

    def run() -> None:
        begun.set()
        try:
            ended.append(alone.produce("out", *columns, None, None, None, None, None, 0, rows))
        except RuntimeError as error:
            ended.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    del sender
    thread.join()

    assert ended[0] in (rows, "the client is closed") or isinstance(ended[0], int)


def test_a_thread_takes_only_the_producer_that_it_has_created() -> None:
    assert NATIVE.module.take_sender() is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([b"a"], (None,), (1,), None, None, None, None, None, 0, 1), "a column is a tuple"),
        (((b"a",), (), (1,), None, None, None, None, None, 0, 1), "with an item for each row"),
        (((b"a",), (None,), (1,), (), None, None, None, None, 0, 1), "with an item for each row"),
        (((b"a",), (None,), (1,), None, "h", ("p",), (1,), None, 0, 1), "a column is a tuple"),
        (((b"a",), (None,), (1,), None, "h", None, None, None, 0, 1), "a header has a name and a value"),
        (((b"a",), (None,), (1,), None, None, ("p",), (1,), "", 0, 1), "a header has a name and a value"),
        (((b"a",), (None,), (1,), None, None, None, None, None, -1, 1), "rows begin at 0"),
    ],
)
def test_what_is_no_batch_is_refused(arguments: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        NativeSender(NOWHERE, NATIVE)._sender.produce("out", *arguments)
