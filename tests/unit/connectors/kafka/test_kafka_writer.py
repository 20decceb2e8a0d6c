"""The writers of the Kafka sink, through the client: what is written, in which order, and which row is refused why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import repeat
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos.abc.committer import CommitPermit, Committable, UnstoredCommittable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Message
from kafka_eos.connectors.kafka.sink import cluster_limits
from kafka_eos.connectors.kafka.sink.broker_refusals import RefusalSearch
from kafka_eos.connectors.kafka.sink.cluster_limits import CurrentLimits
from kafka_eos.connectors.kafka.sink.kafka_sink import batching
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.record_senders import RecordSender, open_sender
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.topic_rules import TopicRules
from kafka_eos.connectors.kafka.sink.writer import (
    AtLeastOnceWriter,
    TransactionalWriter,
    _ProvenanceBuilder,
    produce_all,
)
from kafka_eos.core.errors import Bug, ConfigError, EnvironmentFailed, LoginRefused, PlanError, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.provenance import HEADER
from kafka_eos.core.provenance_blocks import decode, decode_block
from kafka_eos.core.records import Batch, Record
from kafka_eos.testing.list_source import ListOrigin
from tests.scripted_broker import ScriptedBroker
from tests.transactional_broker import Row, TransactionalBroker
from tests.waiting import PATIENCE, eventually

either_client = pytest.mark.usefixtures("record_client")
TERM = Term(3)
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def epoch(number: int) -> EpochId:
    return EpochId(Epoch(number), TERM)


def batch(*values: Any, partition: int = 0, start: int = 10, **columns: Any) -> Batch[Any]:
    """Values of one partition of the topic ``in``, from this offset on."""
    return Batch(list(values), range(len(values)), ListOrigin("src", "in", partition, start, values), **columns)


# ---------------------------------------------------------------- rows that the client does not accept


def produced(columns: ProducerColumns, **config: Any) -> tuple[set[int], dict[int, str], int]:
    """Which rows were refused, why, and how many the client took."""
    sender = open_sender({**NOWHERE, **config})
    refused, said = produce(sender, columns, config.get("message.max.bytes", 1_000_000))
    return refused, said, count_messages(sender)


def count_messages(sender: RecordSender) -> int:
    """Return the number of messages that wait in the client, which counts events that nobody has polled as well."""
    found = []
    for _ in range(20):
        sender.producer.poll(0)
        found.append(len(sender.producer))
    return min(found)


def produce(
    sender: RecordSender, columns: ProducerColumns, largest: int = 1_000_000
) -> tuple[set[int], dict[int, str]]:
    said: dict[int, str] = {}
    limits = CurrentLimits(lambda: TopicLimits("out", None, largest, 1))
    search = RefusalSearch("kafka://nowhere", lambda _topic, _rows: False)

    def refuse(index: int, error: Exception) -> None:
        assert index not in said
        said[index] = f"{type(error).__name__}: {error}"

    return set(produce_all(sender, limits, columns, None, refuse, search)), said


@either_client
def test_each_row_that_the_client_does_not_accept_is_refused_and_all_others_are_sent() -> None:
    """The first, one in the middle and the last one; of a wrong value, key and headers."""
    values: list[Any] = [7, b"a", b"b", b"c", b"d", b"e", 1.5]
    keys: list[Any] = [None, "k", 2, None, None, None, None]
    headers: list[Any] = [[], [("h", b"1")], [], [], [("h", 5)], [], []]

    refused, said, sent = produced(ProducerColumns(values, keys, repeat(0), headers))

    assert refused == {0, 2, 4, 6}
    assert list(said) == [0, 2, 4, 6]
    assert sent == 3


@either_client
def test_a_row_over_the_limit_of_the_producer_alone_is_refused_with_its_size() -> None:
    """The topic's limit is not known here, so only the client notices."""
    large = [b"x" * 3000, b"a", b"y" * 2000]

    refused, said, sent = produced(ProducerColumns(large, repeat(None), repeat(0), None), **{"message.max.bytes": 1000})

    assert (refused, sent) == ({0, 2}, 1)
    sizes = {0: 3000, 2: 2000}
    for index, text in said.items():
        assert text.startswith("UnfitValue: ")
        taken = int(text.partition("has ")[2].partition(" ")[0])
        assert sizes[index] < taken < sizes[index] + 100
    longer = [[("h", b"z" * 500)]] * 3
    _, again, _ = produced(ProducerColumns(large, repeat(None), repeat(0), longer), **{"message.max.bytes": 1000})
    assert all(int(again[i].partition("has ")[2].partition(" ")[0]) > sizes[i] + 500 for i in (0, 2))


@either_client
def test_an_error_that_is_not_the_row_s_refuses_no_row() -> None:
    """A transaction was not begun."""
    columns = ProducerColumns([b"a", b"b"], repeat(None), repeat(0), None)

    with pytest.raises(RestartFromCheckpoint, match="produce to out"):
        produced(columns, **{"transactional.id": "t"})


@either_client
def test_a_row_is_refused_for_its_size_or_by_a_rule_in_the_order_of_the_rows_once_the_limits_were_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_limits, "_REREAD_SECONDS", -1.0)
    sizes = [1_000, 3_000, 3_000]
    limits = CurrentLimits(lambda: TopicLimits("out", sizes.pop(0), 10_000, 1, TopicRules(needs_key=True)))
    said: list[tuple[int, str]] = []
    keys = [b"k", b"k", None, b"k", None]
    columns = ProducerColumns([b"x" * 4_000, b"y" * 2_000, b"a", b"z" * 5_000, b"b"], keys, repeat(0), None)
    sender = open_sender(NOWHERE)

    search = RefusalSearch("kafka://nowhere", lambda _topic, _rows: False)
    refused = produce_all(sender, limits, columns, None, lambda at, error: said.append((at, str(error))), search)

    assert set(refused) == {0, 2, 3, 4}
    assert [at for at, _ in said] == [0, 2, 3, 4]
    assert ["has no key" in text for _, text in said] == [False, True, False, True]
    assert ["at most 3000 (max.message.bytes)" in text for _, text in said] == [True, False, True, False]
    assert count_messages(sender) == 1, "the limit was raised: the second row is within it"


def test_an_origin_is_never_longer_than_its_column_says() -> None:
    """Names may be long, and the longest need not be the last one."""
    stamps = _ProvenanceBuilder(TaskContext(JobContext("job", TERM, {}), 0, 1, "a"))
    many = ListOrigin("src", "t" * 249 + "/" * 100, 0, 0, "abc")
    many.partitions = [7, 10**6, 8]
    for branch in (None, ["0-1-", "0-" * 300, ""], ["0-" * 300, "", ""]):
        column = stamps.column(Batch(["a", "b", "c"], range(3), many, branch=branch))
        longest = max(len(f"{name}{text}") for row in column.rows() for name, text in row.items())
        assert list(column.rows()) == list(map(column.row, range(3)))
        assert longest <= column.longest <= longest + 250


# ---------------------------------------------------------------- transactions of a session


class Session:
    """One session of a worker."""

    def __init__(self, address: str, first: int = 1) -> None:
        self._job = JobContext("job", TERM, {"bootstrap_servers": address})
        self.refused: list[tuple[str, Any, int, str]] = []
        self._services = Services(reject_row=self._refuse)
        self._first = Epoch(first)

    def writer(self, name: str, topic: str = "out", **options: Any) -> Writer[Any]:
        sink: KafkaSink[Any] = KafkaSink(topic, value=bytes, config={"compression.type": "none"}, **options)
        return sink.writer(TaskContext(self._job, 0, 1, name, self._services, self._first))

    def commit(self, *prepared: Committable) -> None:
        committer = KafkaSink("out", value=bytes).committer(self._job)
        try:
            for each in prepared:
                committer.commit(CommitPermit(epoch(1)), each)
        finally:
            committer.close()

    def _refuse(self, whole: Batch[Any], index: int, operator: str, error: Exception) -> None:
        self.refused.append((operator, whole.values[index], whole.origin.offsets[whole.origin_rows[index]], str(error)))


@pytest.fixture
def kafka() -> TransactionalBroker:
    return TransactionalBroker({"out": 1, "other": 1})


@pytest.fixture
def broker(kafka: TransactionalBroker) -> Iterator[ScriptedBroker]:
    with kafka.served() as serving:
        yield serving


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """Sessions end before their broker does."""
    with ExitStack() as stack:
        yield stack


@either_client
def test_a_full_queue_loses_nothing_and_keeps_the_order(kafka: TransactionalBroker, broker: ScriptedBroker) -> None:
    """The client takes one record at a time."""
    config = {"queue.buffering.max.messages": 1, "compression.type": "none", "linger.ms": 0, "log_level": 0}
    sender = open_sender({"bootstrap.servers": broker.address, "transactional.id": "t", **config})
    sender.producer.init_transactions(PATIENCE)
    sender.producer.begin_transaction()

    values = [b"a", b"b", b"c"]
    assert produce(sender, ProducerColumns(values, [b"1", b"2", b"3"], repeat(0), None)) == (set(), {})

    sender.producer.commit_transaction(PATIENCE)
    assert kafka.visible == [Row("out", 0, b"%d" % n, value) for n, value in enumerate(values, 1)]


def used_again(kafka: TransactionalBroker) -> set[str]:
    return {name for name, count in kafka.initialized.items() if count > 1}


def stamp(row: Row) -> str:
    """The row's provenance, which is its last header."""
    name, text = row.headers[-1]
    assert name == HEADER
    assert text is not None
    return text.decode()


@either_client
def test_epochs_of_several_writers_are_prepared_and_committed_each_for_itself(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    """One writer is an epoch ahead of the other; a commit is announced when two more epochs are prepared."""
    kafka.max_message_bytes = 1_000
    session = Session(broker.address)
    first, second = session.writer("a", headers=lambda value: [("own", value)]), session.writer("b", "other")
    ending.callback(first.discard)
    first.write(batch(b"a1", b"x" * 2_000, b"a2", b"w" * 2_000, b"a3"))
    first.write(batch(b"y" * 2_000, start=50))
    second.write(batch(b"b1", partition=4, start=7))

    assert tuple(first.seal(epoch(1))()) == (), "the other writer still writes into it"
    first.write(batch(b"a4", b"a5", start=20, partition=1))
    second.write(batch(b"b2", b"b3", partition=4, start=8))
    prepared = [*second.seal(epoch(1))()]
    late = first.seal(epoch(2)), second.seal(epoch(2))
    first.write(batch(b"a6", start=30))
    early = first.seal(epoch(3)), second.seal(epoch(3))
    for precommit in (*late, *early):
        prepared += precommit()

    assert [refused[:3] for refused in session.refused] == [
        ("a", b"x" * 2_000, 11), ("a", b"w" * 2_000, 13), ("a", b"y" * 2_000, 50)
    ]  # fmt: skip
    assert [each.by_sink for each in prepared] == [{"a": 3, "b": 3}, {"a": 2}, {"a": 1}]
    assert [each.records for each in prepared] == [6, 2, 1]
    assert [[*each.spread] for each in prepared] == [["a", "b"], ["a"], ["a"]]
    assert [(each.spread["a"].topic, each.spread["a"].fewest, each.spread["a"].most) for each in prepared] == [
        ("out", 1, 1)
    ] * 3
    assert (prepared[0].spread["b"].topic, len(kafka.open), kafka.visible) == ("other", 3, [])
    session.commit(prepared[1])
    assert kafka.values == [b"a4", b"a5"]
    session.commit(prepared[0])
    first.notify_committed(epoch(1))
    session.commit(prepared[2])

    rows = [row for row in kafka.visible if row.topic == "out"]
    assert [row.value for row in rows] == [b"a4", b"a5", b"a1", b"a2", b"a3", b"a6"]
    assert [row.value for row in kafka.visible if row.topic == "other"] == [b"b1", b"b2", b"b3"]
    assert [stamp(row) for row in rows] == [
        "job.3.2/src/in/1/20/0.0", "job.3.2/src/in/1/21/0.0",
        "job.3.1/src/in/0/10/0.0", "job.3.1/src/in/0/12/0.0", "job.3.1/src/in/0/14/0.0",
        "job.3.3/src/in/0/30/0.0",
    ]  # fmt: skip
    assert [row.headers[0] for row in rows] == [("own", row.value) for row in rows]
    assert [len(row.headers) for row in rows] == [2] * 6


def test_a_commit_frees_the_slots_of_its_epoch_and_of_those_before_and_no_other(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    session = Session(broker.address)
    writer = session.writer("a")
    ending.callback(writer.discard)
    prepared: list[Committable] = []

    def write(number: int) -> None:
        writer.write(batch(b"%d" % number, start=number))
        prepared.extend(writer.seal(epoch(number))())

    for number in (1, 2, 3):
        write(number)
    session.commit(*prepared[:2])
    writer.notify_committed(epoch(2))
    writer.notify_committed(epoch(2))
    write(4)
    session.commit(prepared[2])
    writer.notify_committed(epoch(3))
    for number in range(5, 12):
        write(number)
    names = [each.payload["transactional_id"] for each in prepared]

    eventually(lambda: used_again(kafka) == set(names[:3]), "the three slots serve again, and no other")
    assert len(set(names[3:])) == 8, "none of them serves twice at the same time"
    session.commit(*prepared[3:])
    assert kafka.values == [b"%d" % number for number in range(1, 12)]


@either_client
def test_provenance_says_which_output_of_a_row_each_record_is(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    session = Session(broker.address, first=5)
    writer = session.writer("a")
    ending.callback(writer.discard)
    several = replace(batch(b"a", b"b", b"c"), origin_rows=[0, 0, 2], lane=4)
    writer.write(several)
    writer.write(replace(several, updates=[1, 2, 9]))
    writer.write(replace(several, branch=["0-1-", "", "0-2-"]))
    writer.write(replace(batch(b"a", b"b", lane=1), updates=[5, 6]))
    writer.write(replace(batch(b"a", b"b", start=30), branch=["0-1-", "0-2-"]))
    session.commit(*writer.seal(epoch(5))())
    ends = [stamp(row).removeprefix("job.3.5/src/in/0/") for row in kafka.visible]

    assert ends[:3] == ["10/4.0", "10/4.1", "12/4.0"]
    assert ends[3:6] == ["10/4.0/1", "10/4.1/2", "12/4.0/9"]
    assert [end.rpartition("-")[0] for end in ends[6:9]] == ["10/4.0-1", "", "12/4.0-2"]
    assert ends[9:11] == ["10/1.0/5", "11/1.0/6"]
    assert [end.rpartition("-")[0] for end in ends[11:]] == ["30/0.0-1", "31/0.0-2"]


def test_a_batch_without_rows_that_can_be_written_begins_no_transaction(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    session = Session(broker.address)
    writer = session.writer("a")
    ending.callback(writer.discard)
    writer.write(batch(1, 2))

    assert [refused[:3] for refused in session.refused] == [("a", 1, 10), ("a", 2, 11)]
    assert tuple(writer.seal(epoch(1))()) == ()
    writer.write(batch(3, b"4"))
    (prepared,) = writer.seal(epoch(2))()
    assert (prepared.by_sink, len(kafka.open)) == ({"a": 1}, 1)


@either_client
def test_the_ledger_names_the_origin_of_each_record_in_the_order_of_the_records(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    kafka._topics, kafka.max_message_bytes = {"out": 3, "other": 1}, 1_000
    session = Session(broker.address)
    keyed: dict[str, Any] = {"provenance": "ledger", "key": lambda value: value[:1]}
    first, second = session.writer("a", **keyed), session.writer("b", "other", **keyed)
    ending.callback(first.discard)
    first.write(batch(b"a", b"z" * 2_000, b"b", b"c", b"a"))
    second.write(batch(b"a", start=70))
    first.write(batch(b"c", b"d", start=40))
    first.seal(epoch(1))
    (prepared,) = second.seal(epoch(1))()
    session.commit(prepared)

    assert isinstance(prepared, UnstoredCommittable)
    found = decode(prepared.content)
    assert (found.term, found.epoch, sorted(found.blocks)) == (TERM, Epoch(1), ["other", "out"])
    (other,), (out,) = (map(decode_block, found.blocks[topic]) for topic in ("other", "out"))
    assert [list(other.offsets), list(out.offsets)] == [[70], [10, 12, 13, 14, 40, 41]]
    written = [row for row in kafka.visible if row.topic == "out"]
    expected = dict(zip([b"a", b"b", b"c", b"d"], map(out.output_partitions.__getitem__, (0, 1, 2, 5)), strict=True))
    assert len(set(expected.values())) > 1
    assert {row.value: row.partition for row in written} == expected
    assert list(out.output_partitions) == [expected[value] for value in (b"a", b"b", b"c", b"a", b"c", b"d")]
    assert {row.headers for row in kafka.visible} == {()}


def test_a_failed_delivery_ends_the_attempt_at_the_next_write_or_look(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    looks: list[Callable[[Writer[Any]], None]] = [lambda each: each.poll(), lambda each: each.write(batch(b"2"))]
    for look in looks:
        writer = Session(broker.address).writer("a")
        ending.callback(writer.discard)
        writer.write(batch(b"1"))
        assert isinstance(writer, TransactionalWriter)
        assert writer._staged is not None
        writer._staged.warm._events.failed(KafkaError(KafkaError._MSG_TIMED_OUT), Message(topic="out"))

        with pytest.raises(RestartFromCheckpoint, match="records were not delivered: out: Local: Message timed out"):
            look(writer)


def test_a_session_that_ends_aborts_nothing_that_is_prepared_and_stops_its_clients(
    kafka: TransactionalBroker, broker: ScriptedBroker
) -> None:
    before = set(threading.enumerate())
    session = Session(broker.address)
    first, second = session.writer("a"), session.writer("b", "other")
    first.write(batch(b"1"))
    first.seal(epoch(1))
    prepared = [*second.seal(epoch(1))()]
    first.write(batch(b"2", start=20))
    eventually(lambda: len(kafka.open) == 2, "the second transaction is open")
    first.discard()
    second.discard()

    eventually(lambda: len(kafka.open) == 1, "the second transaction is aborted")
    eventually(lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("kafka-")],
               "the threads of the pool end")  # fmt: skip
    session.commit(*prepared)
    assert kafka.values == [b"1"]
    with pytest.raises(Bug, match="after the first barrier"):
        session.writer("c")


def test_a_topic_that_is_gone_ends_the_attempt_before_it_is_prepared(
    kafka: TransactionalBroker, broker: ScriptedBroker, ending: ExitStack
) -> None:
    session = Session(broker.address)
    first, second = session.writer("a"), session.writer("b", "other")
    ending.callback(first.discard)
    first.write(batch(b"1"))
    second.write(batch(b"2"))
    first.seal(epoch(1))

    def written() -> bool:
        second.poll()
        return kafka.batches.total() == 2

    eventually(written, "both are written")
    kafka._topics = {"out": 1}

    with pytest.raises(RestartFromCheckpoint, match="^other: the topic does not exist any more"):
        second.seal(epoch(1))()


def test_sinks_of_one_topic_record_provenance_in_one_place(broker: ScriptedBroker, ending: ExitStack) -> None:
    session = Session(broker.address)
    first = session.writer("a", provenance="ledger")
    ending.callback(first.discard)
    session.writer("b", "other", provenance=None)
    session.writer("c", provenance="ledger")

    with pytest.raises(ConfigError, match="sinks that write to out"):
        session.writer("d", provenance=None)
    with pytest.raises(ConfigError, match="sinks that write to other"):
        session.writer("e", "other", provenance="ledger")


# ---------------------------------------------------------------- at least once


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """What a topic of it refuses is remembered for minutes."""
    return f"kafka://{request.node.name}"


def at_least_once(scope: str) -> AtLeastOnceWriter[Any]:
    return AtLeastOnceWriter(
        TaskContext(JobContext("job", TERM, {}), 0, 1, "a"),
        CurrentLimits(lambda: TopicLimits("out", None, 1_000_000, 1)),
        lambda some: ProducerColumns(some.values, repeat(None), repeat(0), None),
        dict(NOWHERE),
        0.05,
        provenance=False,
        scope=scope,
    )


@pytest.mark.parametrize("codes", [(87, 13), (13, 87), (13, 7, 87, 13)])
def test_an_error_names_each_failed_delivery_and_remembers_a_refusal_among_them(
    codes: tuple[int, ...], scope: str
) -> None:
    writer = at_least_once(scope)
    for code in codes:
        writer._failed(KafkaError(code), Message(topic="out"))

    with pytest.raises(EnvironmentFailed) as told:
        writer.seal(epoch(1))

    assert all(KafkaError(code).str() in str(told.value) for code in codes)
    search = RefusalSearch(scope, lambda topic, _rows: topic == "out")
    assert search.find_refused("out", [(4, (b"a", None, 0, None, -1))]) == {4}, "the next attempt tries its rows out"


def test_an_error_names_five_kinds_of_failed_deliveries_at_most(scope: str) -> None:
    writer = at_least_once(scope)
    for code in (13, 7, 13, 19, 20, 21, 22, 3):
        writer._failed(KafkaError(code), Message(topic="out"))

    with pytest.raises(RestartFromCheckpoint) as told:
        writer.write(batch(b"a"))

    text = str(told.value)
    assert [KafkaError(code).str() in text for code in (13, 7, 19, 20, 21, 22, 3)] == [True] * 5 + [False] * 2


@either_client
def test_rows_that_are_not_acknowledged_in_time_or_without_a_login_end_the_attempt(scope: str) -> None:
    writer = at_least_once(scope)
    writer.write(batch(b"a"))
    with pytest.raises(RestartFromCheckpoint, match=r"records for out were not delivered: 1 not acknowledged"):
        writer.seal(epoch(1))
    writer._on_error(KafkaError(KafkaError._TRANSPORT))
    writer.write(batch(b"b"))
    writer._on_error(KafkaError(KafkaError._AUTHENTICATION))
    with pytest.raises(LoginRefused, match="^records for out: "):
        writer.write(batch(b"c"))


# ---------------------------------------------------------------- what a sink and a source are


def test_a_sink_and_a_source_of_kafka_say_what_they_are() -> None:
    sink: dict[str, Any] = {"connector": "kafka", "topic": "out", "bootstrap_servers": None, "config": {}}
    assert KafkaSink("out", value=bytes).describe() == {
        **sink, "delivery": "exactly-once", "transaction_timeout_ms": None
    }  # fmt: skip
    config = {"sasl.password": "hush", "linger.ms": 3}
    given: Any = {"bootstrap_servers": "a:1", "config": config, "transaction_timeout": 60, "provenance": "ledger"}
    shown = {"bootstrap_servers": "a:1", "config": {"sasl.password": "********", "linger.ms": "3"}}
    assert KafkaSink("out", value=bytes, **given).describe() == {
        **sink, **shown, "delivery": "exactly-once", "transaction_timeout_ms": 60_000, "provenance": "ledger"
    }  # fmt: skip
    once = KafkaSink("out", value=bytes, delivery="at-least-once").describe()
    assert once == {**sink, "delivery": "at-least-once", "transaction_timeout_ms": None}

    source: dict[str, Any] = {"connector": "kafka", "bootstrap_servers": None, "group_id": None, "config": {}}
    assert KafkaSource("in", value=int).describe() == {**source, "topic": "in", "start": "earliest"}
    every: Any = {"start": "latest", "group_id": "g", "until": "latest", "header_filter": bool}
    found = KafkaSource(["a", "b"], value=int, bootstrap_servers="a:1", config=config, **every).describe()
    assert found == {
        **source, **shown, "topics": "a, b", "start": "latest", "group_id": "g", "until": "latest",
        "header_filter": True,
    }  # fmt: skip


def test_whole_records_are_encoded_by_the_types_of_the_stream_or_of_the_sink() -> None:
    def written(sink: KafkaSink[Any], tp: Any) -> list[tuple[bytes | None, bytes | None]]:
        rows = batch(Record("k", 5), Record(None, 6))
        _, records = sink.for_stream_type(tp).written(rows, "a", lambda *_: pytest.fail("refused"))
        return [(record.key, record.value) for record in records]

    encoded = [(b"k", b"5"), (None, b"6")]
    assert written(KafkaSink.records("out"), Record[str | None, int]) == encoded
    assert written(KafkaSink.records("out", key=str, value=int), None) == encoded
    assert written(KafkaSink.records("out", key=str), Record[str, int]) == encoded
    for tp, lacking in ((Record, "key"), (None, "key")):
        with pytest.raises(PlanError, match=f"does not declare that of the {lacking}. Give the sink {lacking}=Type"):
            KafkaSink.records("out").for_stream_type(tp)
    with pytest.raises(PlanError, match="does not declare that of the value. Give the sink value=Type"):
        KafkaSink.records("out", key=str).for_stream_type(None)
    with pytest.raises(PlanError, match="writes whole records, but the stream has values of type int"):
        KafkaSink.records("out", key=str, value=int).for_stream_type(int)
    for given, wrong in (({"key": str, "value": str}, Record[str, int]), ({"key": int}, Record[str, int])):
        with pytest.raises(PlanError):
            KafkaSink.records("out", **given).for_stream_type(wrong)


@pytest.mark.parametrize("wrong", ["late", 1.5, None, 1 << 63, -(1 << 63) - 1])
def test_a_timestamp_that_the_client_cannot_write_refuses_its_row(wrong: Any) -> None:
    refused: dict[int, str] = {}
    times = {"a": 5, "b": wrong, "c": -1, "d": 1 << 62}

    def reject(_: object, index: int, operator: str, error: Exception) -> None:
        refused[index] = f"{operator}: {error}"

    sink = KafkaSink("out", value=str, timestamp=lambda value: times[value])
    kept, written = sink.written(batch(*times), "a", reject)

    assert kept.values == ["a", "c", "d"]
    assert [record.timestamp for record in written] == [5, -2, 1 << 62]
    assert list(refused) == [1] and refused[1].startswith("a: a timestamp is an int, the milliseconds since 1970")


@pytest.mark.parametrize(
    ("given", "limit", "size"),
    [
        ({}, None, None), ({}, 10**9, None), ({}, 5_000, 5_000), ({}, 0, 1), ({"batch.size": 700}, 5_000, 700),
        ({"batch.size": 5_000}, 5_000, 5_000), ({"batch.size": 5_001}, 5_000, 5_000),
    ],
)  # fmt: skip
def test_a_batch_is_not_larger_than_its_topic_takes(given: dict[str, Any], limit: int | None, size: int | None) -> None:
    where = Cluster("a:1", {**given, "linger.ms": 3})

    found = batching(where, TopicLimits("out", limit, 10**6, 1))

    assert (found.bootstrap, found.config["linger.ms"], found.config.get("batch.size")) == ("a:1", 3, size)
