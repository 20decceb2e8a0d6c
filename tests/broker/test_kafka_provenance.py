"""Provenance beside the data, on a real broker: a stored record is the one that the recording says, whatever happens on
the way to the log.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_eos.abc.committer import Committable, Committer, UnstoredCommittable
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.connectors.kafka import KafkaSink, dead_letter
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.provenance_blocks import decode, decode_block
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.settings import free_ports
from tests.broker.kafka_kit import batch, commit, epoch, job, task
from tests.chaos.harness import create_topic
from tests.chaos.metadata_proxy import ForgetfulProxy
from tests.marks import campaign
from tests.waiting import PATIENCE, eventually

Topic = Callable[..., str]


class Worker:
    """A worker's session with a sink or more; ``told`` is what its transactions recorded of a topic."""

    def __init__(self, bootstrap: str, services: Services | None = None) -> None:
        self.ctx = job(bootstrap)
        self._services = services or Services()
        self._closing: list[Callable[[], None]] = []
        self.told: dict[tuple[str, int, int, int], list[tuple[str, int]]] = defaultdict(list)
        """By topic, producer id and epoch, and partition: sink and input offset of each record."""

    def open(self, sink: KafkaSink[Any], operator: str = "out") -> Writer[Any]:
        writer = sink.writer(task(self.ctx, operator, self._services))
        self._closing.append(writer.discard)
        return writer

    def commit(self, committer: Committer, number: int, *writers: Writer[Any]) -> None:
        prepared = [each for writer in writers for each in writer.seal(epoch(number))()]
        self._closing.append(committer.close)
        for each in prepared:
            self._note(each)
        commit(committer, prepared, epoch(number))
        for writer in writers:
            writer.notify_committed(epoch(number))

    def _note(self, prepared: Committable) -> None:
        assert isinstance(prepared, UnstoredCommittable)
        assert prepared.provenance is not None
        found = decode(prepared.content)
        assert prepared.provenance.name == f"{found.producer_id}-{found.producer_epoch}"
        for topic, blocks in found.blocks.items():
            for block in map(decode_block, blocks):
                sinks = [block.names[span.sink] for span in block.spans for _ in range(span.count)]
                for sink, place, offset in zip(sinks, block.output_partitions, block.offsets, strict=True):
                    self.told[topic, found.producer_id, found.producer_epoch, place].append((sink, offset))

    def close(self) -> None:
        for close in self._closing:
            close()


@pytest.fixture
def worker(bootstrap: str) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(at: str = bootstrap) -> Worker:
        made.append(Worker(at))
        return made[-1]

    yield make
    for each in made:
        each.close()


def settled_end(bootstrap: str, at: TopicPartition) -> int:
    """Where a partition ends, once no transaction is open in it: the markers come after the answer to EndTxn."""

    def ends() -> tuple[int, int]:
        found = [end(isolation) for isolation in ("read_committed", "read_uncommitted")]
        return found[0], found[1]

    def end(isolation: str) -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation})
        try:
            return int(consumer.get_watermark_offsets(at, timeout=PATIENCE)[1])
        finally:
            consumer.close()

    eventually(lambda: len(set(ends())) == 1, f"no transaction is open in {at.topic}/{at.partition}")
    return ends()[0]


def stored(bootstrap: str, topic: str, partitions: int) -> list[tuple[tuple[str, int, int, int], int, bytes]]:
    """Of every record that is visible: topic, producer and partition; its number there; its value."""
    found: list[tuple[tuple[str, int, int, int], int, bytes]] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "isolation.level": "read_committed",
                         "enable.partition.eof": True, "fetch.wait.max.ms": 10})  # fmt: skip
    with KafkaRequests(Cluster(bootstrap)) as rpc:
        for partition in range(partitions):
            end = settled_end(bootstrap, TopicPartition(topic, partition))
            numbers = {
                offset: ((topic, each.producer_id, each.producer_epoch, partition), each.sequence + offset - each.first)
                for each in rpc.batches(topic, partition, 0, end)
                for offset in range(each.first, each.last + 1)
                if each.producer_id >= 0
            }
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(PATIENCE)) is not None and message.error() is None:
                found.append((*numbers[message.offset() or 0], message.value() or b""))
    consumer.close()
    return found


def expect_told(bootstrap: str, topic: str, partitions: int, workers: Sequence[Worker], records: int) -> None:
    """Every visible record is the one that a worker recorded: its value is its input's offset."""
    told = {place: of for each in workers for place, of in each.told.items()}
    seen = stored(bootstrap, topic, partitions)
    wrong = [(place, number, value) for place, number, value in seen if told[place][number][1] != number_of(value)]
    assert wrong == []
    assert len(seen) == records


def number_of(value: bytes) -> int:
    return int(value.rpartition(b"/")[2])


def sink_to(topic: str, provenance: str = "ledger", **options: Any) -> KafkaSink[bytes]:
    """Records have the time of writing: those of long ago may expire while a test looks at them."""
    given: Any = provenance
    return KafkaSink(topic, timestamp=None, provenance=given, **options)


def rows(numbers: range, *, keys: int = 50, seed: int = 0) -> list[bytes]:
    chosen = random.Random(seed + numbers.start)
    return [b"k%d/%d" % (chosen.randrange(keys), n) for n in numbers]


def key_of(value: bytes) -> bytes:
    return value.partition(b"/")[0]


def test_transactions_of_several_workers_and_epochs_are_told_apart_in_one_partition(
    bootstrap: str, topic: Topic, worker: Callable[..., Worker]
) -> None:
    """Batches of both come one between the other: they flush after a few milliseconds, seven records at most."""
    out = topic(partitions=2)
    config = {"linger.ms": 1, "batch.num.messages": 7}
    sink = sink_to(out, key=key_of, config=config)
    workers = [worker(), worker()]
    writers = [each.open(sink) for each in workers]
    committers = [sink.committer(each.ctx) for each in workers]
    made = 0
    for number in (1, 2, 3):
        for _ in range(10):
            for writer in writers:
                writer.write(batch(*rows(range(made, made + 23)), first=made))
                made += 23
        for each, writer, committer in zip(workers, writers, committers, strict=True):
            each.commit(committer, number, writer)

    expect_told(bootstrap, out, 2, workers, made)


def test_two_sinks_of_a_worker_that_write_to_one_topic_are_numbered_together(
    bootstrap: str, topic: Topic, worker: Callable[..., Worker]
) -> None:
    out = topic(partitions=2)
    sink = sink_to(out, key=key_of)
    one = worker()
    first, second = one.open(sink, "first"), one.open(sink, "second")
    for start in range(0, 200, 20):
        first.write(batch(*rows(range(start, start + 10)), first=start))
        second.write(batch(*rows(range(start + 10, start + 20)), first=start + 10))
    one.commit(sink.committer(one.ctx), 1, first, second)

    expect_told(bootstrap, out, 2, [one], 200)
    sinks = [sink for of in one.told.values() for sink, _ in of]
    assert {name: sinks.count(name) for name in set(sinks)} == {"first": 100, "second": 100}


def test_sinks_of_one_topic_and_client_must_agree(bootstrap: str, topic: Topic, worker: Callable[..., Worker]) -> None:
    out = topic()
    one = worker()
    one.open(KafkaSink(out, provenance="ledger"), "first")

    with pytest.raises(ConfigError, match="use the same setting for each"):
        one.open(KafkaSink(out, provenance="header"), "second")


@pytest.mark.parametrize(
    "partitioner",
    ["consistent_random", *map(campaign, ("murmur2_random", "fnv1a_random", "consistent", "murmur2", "fnv1a"))],
)
def test_keys_are_where_the_client_would_have_sent_them(
    bootstrap: str, topic: Topic, worker: Callable[..., Worker], partitioner: str
) -> None:
    """Text and bytes, of every length up to nine, and beyond."""
    theirs, ours = topic(partitions=5), topic(partitions=5)
    values = [b"%s/%d" % (bytes(random.Random(n).randbytes(n % 10 + 1)).replace(b"/", b"."), n) for n in range(120)]
    values += [b"%s/120" % (b"long" * 20)]
    config = {"partitioner": partitioner}
    for out, provenance in ((theirs, "header"), (ours, "ledger")):
        one = worker()
        sink = sink_to(out, provenance, key=key_of, config=config)
        writer = one.open(sink)
        writer.write(batch(*values))
        committer = sink.committer(one.ctx)
        commit(committer, writer.seal(epoch(1))(), epoch(1))
        committer.close()

    assert places(bootstrap, theirs, 5, 121) == places(bootstrap, ours, 5, 121)


def places(bootstrap: str, topic: str, partitions: int, records: int) -> dict[bytes, int]:
    eventually(lambda: len(stored(bootstrap, topic, partitions)) == records, "all are visible")
    return {value: place[3] for place, _, value in stored(bootstrap, topic, partitions)}


def test_records_without_keys_are_spread(bootstrap: str, topic: Topic, worker: Callable[..., Worker]) -> None:
    out = topic(partitions=3)
    sink = sink_to(out)
    one = worker()
    writer, committer = one.open(sink), sink.committer(one.ctx)
    made = number = 0

    def spread() -> bool:
        nonlocal made, number
        writer.write(batch(*rows(range(made, made + 10)), first=made))
        made, number = made + 10, number + 1
        one.commit(committer, number, writer)
        return {place for _, _, _, place in one.told} == {0, 1, 2}

    eventually(spread, "all partitions get some")
    expect_told(bootstrap, out, 3, [one], made)


def test_a_row_that_is_refused_takes_no_number(bootstrap: str, topic: Topic) -> None:
    """One that is too large, one with a key of a wrong type; the rows around them keep theirs."""
    out = topic()
    refused: list[int] = []
    policy = Services(reject_row=lambda rows, index, operator, error: refused.append(rows.origin.offsets[index]))
    one = Worker(bootstrap, policy)
    keys: dict[bytes, Any] = {b"x/3": 7}
    sink = sink_to(
        out, key=lambda v: keys.get(v, key_of(v)), config={"compression.type": "none", "message.max.bytes": 100_000},
    )  # fmt: skip
    writer = one.open(sink)
    values = [b"a/0", b"y" * 200_000 + b"/1", b"c/2", b"x/3", b"d/4"]
    writer.write(batch(*values))
    try:
        one.commit(sink.committer(one.ctx), 1, writer)
        expect_told(bootstrap, out, 1, [one], 3)
    finally:
        one.close()
    assert sorted(refused) == [1, 3]


def test_a_topic_that_grows_is_seen_by_the_next_epochs(
    bootstrap: str, admin: AdminClient, topic: Topic, worker: Callable[..., Worker]
) -> None:
    out = topic(partitions=1)
    sink = sink_to(out, key=key_of)
    one = worker()
    writer, committer = one.open(sink), sink.committer(one.ctx)
    writer.write(batch(*rows(range(50))))
    one.commit(committer, 1, writer)
    admin.create_partitions([NewPartitions(out, 4)])[out].result(PATIENCE)
    eventually(lambda: _partitions(one.ctx, out) == 4, "the brokers know of it")
    made, number = 50, 1

    def grown() -> bool:
        nonlocal made, number
        writer.write(batch(*rows(range(made, made + 50)), first=made))
        made, number = made + 50, number + 1
        one.commit(committer, number, writer)
        return {place for _, _, _, place in one.told} == {0, 1, 2, 3}

    eventually(grown, "keys are spread over all four partitions")
    expect_told(bootstrap, out, 4, [one], made)


def _partitions(ctx: JobContext, topic: str) -> int:
    with KafkaRequests(Cluster(str(ctx.settings["bootstrap_servers"]))) as rpc:
        facts = rpc.topic(topic)
        return 0 if facts is None else facts.partitions


@pytest.fixture(scope="module")
def cut_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForgetfulProxy, str]]:
    """A proxy whose connections can be closed, and the address of the broker behind it."""
    port, upstream = free_ports(2)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    broker = Broker(tmp_path_factory.mktemp("cut") / "kafka", upstream, advertised).start()
    with ForgetfulProxy(port, upstream) as between:
        yield between, f"127.0.0.1:{port}"
    broker.kill()


@pytest.mark.campaign
def test_batches_that_were_sent_again_keep_their_numbers(cut_link: tuple[ForgetfulProxy, str]) -> None:
    """The connection is cut again and again while the transaction is written: what was under way is sent again."""
    between, bootstrap = cut_link
    create_topic(bootstrap, "out", 2)
    config = {"linger.ms": 1, "batch.num.messages": 20}
    sink = sink_to("out", key=key_of, config=config)
    one = Worker(bootstrap)
    try:
        writer = one.open(sink)
        for start in range(0, 4000, 40):
            writer.write(batch(*rows(range(start, start + 40)), first=start))
            if start % 400 == 0:
                between.disconnect()
        one.commit(sink.committer(one.ctx), 1, writer)

        expect_told(bootstrap, "out", 2, [one], 4000)
    finally:
        one.close()


def test_an_at_least_once_sink_has_no_transaction_to_keep_it_with() -> None:
    with pytest.raises(ConfigError, match='use "header" or None'):
        KafkaSink("out", delivery="at-least-once", provenance="ledger")


@pytest.mark.parametrize(
    ("given", "told"), [(True, '"header"'), (False, "None"), ("file", '"header", "ledger" or None')]
)
def test_what_provenance_may_be_is_said(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=f"use {told}"):
        KafkaSink("out", provenance=given)
    with pytest.raises(ConfigError, match=f"use {told}"):
        dead_letter("letters", provenance=given)
