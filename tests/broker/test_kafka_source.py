"""The Kafka source on a real broker: committed records only, from exactly where the checkpoint says."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.bulk_calls import STOP_ITERATION_ESCAPED
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import RejectRecord, Services
from kafka_eos.abc.source import Reader
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.client.librdkafka import BrokerWatch
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.source import topic_survey as survey
from kafka_eos.coordination.sources import GroupedSources, SourceCoordinator
from kafka_eos.core.errors import ConfigError, InputLost, PoisonRecord, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RawRecord
from kafka_eos.storage.job_records import Manifest
from kafka_eos.testing import MemorySink
from tests.broker.kafka_kit import epoch, job, read, read_to, send, show, task
from tests.broker.transaction_kit import new_writer, write
from tests.producers import in_order
from tests.waiting import PATIENCE, eventually

Topic = Callable[..., str]


@pytest.fixture
def ctx(bootstrap: str) -> JobContext:
    return job(bootstrap)


@pytest.fixture
def opened(record_client: str, ctx: JobContext) -> Iterator[Callable[..., Reader[Any]]]:
    readers: list[Reader[Any]] = []

    def open_(source: KafkaSource[Any], positions: Positions | None = None, **policy: RejectRecord) -> Reader[Any]:
        at = source.discover(ctx, None) if positions is None else positions
        readers.append(source.reader(task(ctx, "in", Services(**policy)), at))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.close()


def offsets(positions: Any) -> list[Any]:
    return [positions[split]["offset"] for split in sorted(positions)]


def test_positions_are_where_to_go_on(bootstrap: str, topic: Topic, opened: Any) -> None:
    """A second reader that starts at the first one's positions reads exactly the rest."""
    name = topic(partitions=2)
    for partition in (0, 1):
        send(bootstrap, name, *(str(n).encode() for n in range(50)), partition=partition)
    source: KafkaSource[Any] = KafkaSource(name)
    first = opened(source)
    some = first.poll(30, 10)
    while some is None:
        some = first.poll(30, 10)
    rest = read(opened(source, first.positions()), 100 - len(some.values))

    assert sorted(some.values + rest) == sorted(2 * [str(n).encode() for n in range(50)])
    assert len(some.values) <= 30


def test_origin_names_every_row(bootstrap: str, topic: Topic, opened: Any) -> None:
    name = topic()
    send(bootstrap, name, b"a", b"b", key=b"k", timestamp=1_600_000_000_000, headers=[("h", b"1")])
    reader = opened(KafkaSource(name))
    found = eventually(lambda: reader.poll(10, 0.5), "a batch")

    raw = found.origin.raw(found.origin_rows[1])
    assert raw == RawRecord(name, 0, 1, 1_600_000_000_000, b"k", b"b", (("h", b"1"),))
    assert (found.origin.source, found.origin.topic, list(found.origin.offsets)) == ("in", name, [0, 1])
    assert list(found.origin.timestamps()) == [1_600_000_000_000] * 2


def test_only_committed_records_and_the_end_is_reached(
    bootstrap: str, topic: Topic, opened: Any, ctx: JobContext
) -> None:
    """Control records at the end of a partition have offsets but no records: the position moves past them."""
    name = topic()
    source: KafkaSource[Any] = KafkaSource(name)
    for keep, value in ((True, "1"), (False, "2"), (True, "3"), (False, "4")):
        writer = new_writer(bootstrap)
        write(writer, name, value)
        (writer.producer.commit_transaction if keep else writer.producer.abort_transaction)(30)
    eventually(lambda: offsets(source.get_end_positions(ctx)) == [8], "four records and four markers")
    reader = opened(source)

    assert read_to(reader, source.get_end_positions(ctx)) == [b"1", b"3"]
    assert offsets(reader.positions()) == [8]
    assert reader.lag() == 0


def test_a_start_says_which_excluded_topic_is_not_there(topic: Topic, ctx: JobContext) -> None:
    """Not of one that the job has read, and that is gone: its name has to stay."""
    name = topic()
    newest = Manifest(
        job="job", epoch=3, term=1, created_at=0, plan="", max_key_groups=128, parallelism=1, states=(),
        committables=(), sources={"in": {SplitId(f"{name}-gone/0"): {"offset": 0}}}, identity="0123456789ab",
    )  # fmt: skip

    def told(newest: Manifest | None, *exclude: str) -> list[str]:
        pipeline = Pipeline("job")
        source = KafkaSource(re.compile(f"{name}.*"), exclude=[f"{name}{each}" for each in exclude])
        pipeline.source(source, name="in").sink(MemorySink(), name="out")
        return SourceCoordinator(pipeline.plan(), lambda: ctx, Retrier(threading.Event(), print)).check(newest)

    (said,) = told(newest, "", "-gone", "-mistyped")
    assert said.startswith(f"source 'in': exclude= has '{name}-mistyped', but the cluster shows no such topic.")
    assert told(newest, "-gone") == []
    assert f"'{name}-gone'" in told(None, "-gone")[0]
    assert told(newest) == []


def test_an_open_transaction_is_beyond_the_end(bootstrap: str, topic: Topic, opened: Any, ctx: JobContext) -> None:
    name = topic()
    source: KafkaSource[Any] = KafkaSource(name)
    send(bootstrap, name, b"a")
    writer = new_writer(bootstrap)
    write(writer, name, "open")
    latest = KafkaSource(name, start="latest").discover(ctx, None)

    assert offsets(source.get_end_positions(ctx)) == offsets(latest) == [1]
    assert read_to(opened(source), source.get_end_positions(ctx)) == [b"a"]
    writer.producer.abort_transaction(30)


@pytest.mark.usefixtures("instant_topic_search")
def test_start_rules(bootstrap: str, topic: Topic, ctx: JobContext) -> None:
    name = topic()
    for n in range(4):
        send(bootstrap, name, b"x", timestamp=1_600_000_000_000 + 1000 * n)

    def start(rule: Any) -> list[Any]:
        return offsets(KafkaSource(name, start=rule).discover(ctx, None))

    assert start("earliest") == [0]
    assert start("latest") == [4]
    assert start(datetime.fromtimestamp(1_600_000_002, UTC)) == [2]
    assert start(datetime.fromtimestamp(1_700_000_000, UTC)) == [4]


def test_a_time_cuts_a_topic_in_two_also_while_a_transaction_is_open(
    bootstrap: str, topic: Topic, ctx: JobContext
) -> None:
    """What is read up to a time and what is read from it on: each record is in one of both."""
    name, cut = topic(), datetime.fromtimestamp(1_600_000_002, UTC)
    writer = new_writer(bootstrap)
    writer.producer.begin_transaction()
    writer.producer.produce(name, b"before", timestamp=1_600_000_000_000)
    writer.producer.flush(PATIENCE)
    send(bootstrap, name, b"after", timestamp=1_600_000_004_000)
    history: KafkaSource[Any] = KafkaSource(name, until=cut)

    assert offsets(KafkaSource(name, start=cut).discover(ctx, None)) == [1]
    with pytest.raises(Retryable, match="still open.*The source waits for its end"):
        history.discover(ctx, None)
    writer.producer.commit_transaction(PATIENCE)
    ends = history.bounds(eventually(lambda: _answer(history, ctx), "the transaction is over"))
    assert offsets(ends) == [1]


def _answer(source: KafkaSource[Any], ctx: JobContext) -> Positions | None:
    try:
        return source.discover(ctx, None)
    except Retryable:
        return None


def test_known_positions_are_kept_and_new_partitions_start_at_their_beginning(
    bootstrap: str, topic: Topic, admin: AdminClient, ctx: JobContext
) -> None:
    name = topic()
    send(bootstrap, name, b"a", b"b")
    source: KafkaSource[Any] = KafkaSource(name, start="latest")
    known = source.discover(ctx, None)
    admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE)

    def found() -> list[Any]:
        try:
            return offsets(source.discover(ctx, known))
        except Retryable:  # no leader yet
            return []

    eventually(lambda: found() == [2, 0], "the new partition at 0")


@pytest.mark.usefixtures("instant_topic_search")
def test_a_recreated_topic_is_input_lost(bootstrap: str, topic: Topic, admin: AdminClient, ctx: JobContext) -> None:
    name = topic()
    source: KafkaSource[Any] = KafkaSource(name)
    known = source.discover(ctx, None)
    admin.delete_topics([name])[name].result(PATIENCE)

    def created() -> bool:
        try:
            admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE)
        except KafkaException:  # still being deleted
            return False
        return True

    eventually(created, "the topic again")

    with pytest.raises(InputLost, match="created again"):
        source.discover(ctx, known)


def test_retention_that_passed_the_position_is_input_lost(
    bootstrap: str, topic: Topic, admin: AdminClient, ctx: JobContext, opened: Any
) -> None:
    """At recovery, and also for a reader that runs."""
    name = topic()
    source: KafkaSource[Any] = KafkaSource(name)
    known = source.discover(ctx, None)
    send(bootstrap, name, b"a", b"b", b"c")
    at = TopicPartition(name, 0, 2)
    admin.delete_records([at])[at].result(PATIENCE)

    with pytest.raises(InputLost, match="2 offsets were removed"):
        source.discover(ctx, known)
    reader = opened(source, known)
    with pytest.raises(InputLost):
        read(reader, 1)


def test_a_truncated_log_is_input_lost(bootstrap: str, topic: Topic, ctx: JobContext) -> None:
    name = topic()
    send(bootstrap, name, b"a")
    source: KafkaSource[Any] = KafkaSource(name)
    ahead = {split: {**at, "offset": 5} for split, at in source.discover(ctx, None).items()}

    with pytest.raises(InputLost, match="truncated"):
        source.discover(ctx, ahead)


@pytest.mark.usefixtures("instant_topic_search")
def test_a_missing_topic_is_a_config_error(ctx: JobContext) -> None:
    with pytest.raises(ConfigError, match=r"does not exist.*kafka-topics.sh .* --create --topic no-such-topic"):
        KafkaSource("no-such-topic").discover(ctx, None)


def test_positions_of_another_topic_are_refused(topic: Topic, ctx: JobContext) -> None:
    known = KafkaSource(topic()).discover(ctx, None)

    with pytest.raises(ConfigError, match="now reads"):
        KafkaSource(topic()).discover(ctx, known)


def test_a_bad_record_is_named_and_nothing_moves(bootstrap: str, topic: Topic, opened: Any) -> None:
    name = topic()
    send(bootstrap, name, b'{"n":1}', b"not json", b'{"n":3}')
    reader = opened(KafkaSource(name, value=dict))

    with pytest.raises(PoisonRecord, match=f"{name}/0/1"):
        read(reader, 3)
    assert offsets(reader.positions())[0] < 2


def test_bad_records_can_be_put_aside(bootstrap: str, topic: Topic, opened: Any) -> None:
    """The good rows keep their numbers; positions pass the bad ones. A tombstone is a bad value."""
    name = topic()
    send(bootstrap, name, b"bad", b'{"n":1}', b"bad", b"bad", b'{"n":4}', None, b'{"n":6}', b"bad")
    aside: list[int] = []
    reader = opened(KafkaSource(name, value=dict), reject_record=lambda source, raw, error: aside.append(raw.offset))
    rows: list[int] = []
    while len(rows) < 3 or len(aside) < 5:
        found = reader.poll(100, 1)
        if found is not None:
            rows += [found.origin.offsets[row] for row in found.origin_rows]
            assert [value["n"] for value in found.values] == [found.origin.offsets[row] for row in found.origin_rows]

    assert (rows, aside) == ([1, 4, 6], [0, 2, 3, 5, 7])
    assert offsets(reader.positions()) == [8]


def test_no_record_goes_missing_behind_one_whose_codec_raises_stop_iteration(
    bootstrap: str, topic: Topic, opened: Any
) -> None:
    """A validator that takes the ``next`` of nothing raises it; a loop in C takes it for the end of the poll."""

    class Known(Codec[bytes]):
        name, schema = "known", None

        def encode(self, value: bytes) -> bytes:
            return value

        def decode(self, data: bytes) -> bytes:
            return next(data for prefix in (b"a", b"b") if data.startswith(prefix))

    name = topic()
    send(bootstrap, name, b"a1", b"z1", b"b1", b"z2", b"a2")
    aside: list[tuple[int, str]] = []
    source: KafkaSource[Any] = KafkaSource(name, value=Known())
    reader = opened(source, None, reject_record=lambda source, raw, error: aside.append((raw.offset, str(error))))

    assert read(reader, 3) == [b"a1", b"b1", b"a2"]
    assert aside == [(1, STOP_ITERATION_ESCAPED), (3, STOP_ITERATION_ESCAPED)]
    with pytest.raises(PoisonRecord, match=f"{name}/0/1.*{STOP_ITERATION_ESCAPED}"):
        read(opened(source), 3)


def test_whole_records(bootstrap: str, topic: Topic, opened: Any) -> None:
    name = topic()
    send(bootstrap, name, b'{"n":1}', None, key=b"k", timestamp=1_600_000_000_000, headers=[("h", b"1"), ("n", None)])
    first, second = read(opened(KafkaSource.records(name, key=str, value=dict)), 2)

    assert (first.key, first.value, first.timestamp) == ("k", {"n": 1}, 1_600_000_000_000)
    assert first.headers == (("h", b"1"), ("n", None))
    assert (second.key, second.value) == ("k", None)


def test_completed_shows_the_group_where_the_job_is(bootstrap: str, topic: Topic, ctx: JobContext) -> None:
    name, group = topic(), f"g-{uuid.uuid4().hex[:8]}"
    send(bootstrap, name, b"a", b"b")
    source: KafkaSource[Any] = KafkaSource(name, group_id=group)
    show(source, ctx, epoch(7), source.get_end_positions(ctx))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition(name, 0)], 30)
    consumer.close()

    assert found.offset == 2
    assert "7/1" in str(found.metadata)


def test_splits_can_be_added_while_running(bootstrap: str, topic: Topic, opened: Any, ctx: JobContext) -> None:
    name = topic(partitions=2)
    send(bootstrap, name, b"0", partition=0)
    send(bootstrap, name, b"1", partition=1)
    source: KafkaSource[Any] = KafkaSource(name)
    every = source.discover(ctx, None)
    first, second = ({split: at} for split, at in sorted(every.items()))
    reader = opened(source, first)
    before = read(reader, 1)
    early = reader.has_reached(source.get_end_positions(ctx))
    reader.assign(second)

    assert (before, read(reader, 1)) == ([b"0"], [b"1"])
    assert not early, "the end of a partition that is not assigned yet is not reached"
    assert reader.has_reached(source.get_end_positions(ctx))
    assert offsets(reader.positions()) == [1, 1]


def test_all_sources_of_a_cluster_are_asked_with_one_request(
    bootstrap: str, topic: Topic, ctx: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they start, and two of one topic, too; each is told what it is told alone."""
    metadata: list[Any] = []
    lookups: list[Any] = []
    ask, look = KafkaRequests._topics, survey._offsets
    monkeypatch.setattr(KafkaRequests, "_topics", lambda rpc, names: metadata.append(names) or ask(rpc, names))
    monkeypatch.setattr(survey, "_offsets", lambda *asked: lookups.append(asked) or look(*asked))
    topics = [topic(2) for _ in range(4)]
    for name in topics:
        send(bootstrap, name, b"a", b"b", partition=1, timestamp=1_600_000_000_000)
    late = datetime.fromtimestamp(1_700_000_000, UTC)
    chosen: list[tuple[str, Any]] = [*((name, "earliest") for name in topics), (topics[0], "latest"), (topics[1], late)]
    sources = {f"{name} {start}": KafkaSource(name, start=start) for name, start in chosen}
    together = GroupedSources(sources)

    began = together.discover(ctx, dict.fromkeys(sources))
    assert (len(metadata), len(lookups)) == (1, 4), "one for each rule, and one for the time behind all records"
    again = together.discover(ctx, began)  # type: ignore[arg-type]
    assert (len(metadata), len(lookups)) == (2, 6)
    ends = together.ends(ctx, list(sources))
    assert (len(metadata), len(lookups)) == (3, 7)

    assert again == began
    for name, source in sources.items():
        assert began[name] == source.discover(ctx, None)
        assert ends[name] == source.get_end_positions(ctx)
        assert offsets(began[name]) == ([0, 0] if name.endswith("earliest") else [0, 2])


@pytest.mark.usefixtures("instant_topic_search")
def test_all_topics_that_are_missing_are_named_at_once(topic: Topic, ctx: JobContext) -> None:
    sources = {"there": KafkaSource(topic()), "gone": KafkaSource("no-such-topic"), "lost": KafkaSource("nor-this")}

    with pytest.raises(ConfigError, match="'no-such-topic' does not exist.*\n.*'nor-this' does not exist"):
        GroupedSources(sources).discover(ctx, dict.fromkeys(sources))


def test_a_source_reads_no_further_ahead_than_its_share(
    bootstrap: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka tells it. One answer, as large as a share, may be on its way when the share is full."""
    share, out = 2 << 20, topic(3)
    for partition in range(3):
        send(bootstrap, out, *(os.urandom(500_000) for _ in range(14)), partition=partition)
    told: list[int] = []

    def learn(watch: BrokerWatch, statistics: Mapping[str, Any]) -> None:
        parts = [part for each in statistics["topics"].values() for part in each["partitions"].values()]
        told.append(max((part["fetchq_size"] for part in parts), default=0))  # each tells of the queue of all

    monkeypatch.setattr(BrokerWatch, "learn", learn)
    source, ctx = KafkaSource(out), job(bootstrap)
    ctx = replace(ctx, settings={**ctx.settings, "kafka_share": share})
    reader = source.reader(task(ctx), source.discover(ctx, None))
    try:
        assert len(read(reader, 1)) >= 1

        def seen() -> bool:
            time.sleep(1.0)  # statistics come so often, and each look at them takes a record
            reader.poll(1, 0)
            return len([size for size in told if size > share // 2]) >= 2

        eventually(seen, "a buffer that is full")
    finally:
        reader.close()
    assert max(told) <= 2 * share + 500_000


# ---------------------------------------------------------------- several topics


def made(admin: AdminClient, *topics: str) -> None:
    for done in admin.create_topics([NewTopic(name, 2) for name in topics]).values():
        done.result(PATIENCE)


def test_a_batch_is_of_one_topic_and_positions_go_on_in_each(bootstrap: str, topic: Topic, opened: Any) -> None:
    """What was fetched of one topic waits while another one's is returned; nothing is lost or doubled at a restart."""
    names = [topic(2), topic(2), topic(1)]
    for name in names:
        send(bootstrap, name, *(f"{name} {n}".encode() for n in range(20)))
    source: KafkaSource[Any] = KafkaSource(names)
    reader, seen = opened(source), list[bytes]()
    while len(seen) < 25:
        batch = reader.poll(7, 10)
        if batch is not None:
            assert len(batch.values) <= 7
            assert {value.split()[0].decode() for value in batch.values} == {batch.origin.topic}
            seen += batch.values
    rest = read(opened(source, reader.positions()), 60 - len(seen))

    assert sorted(seen + rest) == sorted(f"{name} {n}".encode() for name in names for n in range(20))


def test_a_split_that_waits_brings_nothing_also_of_what_was_fetched_before(
    bootstrap: str, topic: Topic, opened: Any
) -> None:
    names = [topic(1), topic(1)]
    for name in names:
        send(bootstrap, name, *(b"x" for _ in range(10)))
    reader = opened(KafkaSource(names))
    first = eventually(lambda: reader.poll(1, 1), "a record")
    other = next(name for name in names if name != first.origin.topic)
    reader.pause([f"{other}/0"])
    more = read(reader, 9)

    assert len(more) == 9
    assert reader.poll(10, 0.2) is None
    assert reader.positions()[f"{other}/0"]["offset"] == 0
    reader.pause([])
    assert len(read(reader, 10)) == 10


@pytest.mark.usefixtures("instant_topic_search")
def test_topics_that_match_are_found_when_they_come_and_missed_when_they_go(
    bootstrap: str, admin: AdminClient, ctx: JobContext
) -> None:
    prefix = f"found-{uuid.uuid4().hex[:8]}"
    pattern = re.compile(f"{prefix}-.*")
    source: KafkaSource[Any] = KafkaSource(pattern, start="latest")
    with pytest.raises(ConfigError, match="no topic matches"):
        source.discover(ctx, None)
    made(admin, f"{prefix}-a", f"{prefix}-b")
    send(bootstrap, f"{prefix}-a", b"before")
    known = eventually(lambda: _found(source, ctx, None, 4), "two topics")
    made(admin, f"{prefix}-c")
    send(bootstrap, f"{prefix}-c", b"first")

    later = eventually(lambda: _found(source, ctx, known, 6), "the third topic")

    assert {split: later[split] for split in known} == known
    assert [later[f"{prefix}-c/{n}"]["offset"] for n in (0, 1)] == [0, 0], "from its beginning, whatever start says"

    admin.delete_topics([f"{prefix}-b"])[f"{prefix}-b"].result(PATIENCE)
    eventually(lambda: _lost(source, ctx, later), "the second one is missed")
    without: KafkaSource[Any] = KafkaSource(pattern, exclude=[f"{prefix}-b"])
    assert without.discover(ctx, later) == later, "its positions stay"
    reader = without.reader(task(ctx, "in"), later)
    try:
        assert sorted(read(reader, 1)) == [b"first"]
        assert {f"{prefix}-b/0", f"{prefix}-b/1"} <= {*reader.list_splits_at_end()}
        assert reader.positions()[f"{prefix}-b/0"] == later[f"{prefix}-b/0"]
    finally:
        reader.close()


def _found(source: KafkaSource[Any], ctx: JobContext, known: Any, splits: int) -> Any:
    try:
        found = source.discover(ctx, known)
    except Retryable:  # no leader yet
        return None
    return found if len(found) == splits else None


def _lost(source: KafkaSource[Any], ctx: JobContext, known: Any) -> bool:
    try:
        source.discover(ctx, known)
    except InputLost as error:
        return "exclude=" in str(error)
    except Retryable:
        return False
    return False


def test_a_loop_through_another_address_of_the_cluster_is_refused_at_the_start(
    bootstrap: str, ctx: JobContext, topic: Topic
) -> None:
    name, other = topic(), topic()
    address = bootstrap.replace("127.0.0.1", "localhost")
    assert address != bootstrap

    def started(source: KafkaSource[Any], target: str) -> list[str]:
        pipeline: Any = Pipeline("job")
        pipeline.source(source, name="in").sink(KafkaSink(target, bootstrap_servers=address), name="out")
        return SourceCoordinator(pipeline.plan(), lambda: ctx, Retrier(threading.Event(), print)).check(None)

    with pytest.raises(ConfigError, match=f"source 'in': reads topic {name}, to which the pipeline writes"):
        started(KafkaSource(name), name)
    assert started(KafkaSource(name), other) == []
    assert started(KafkaSource(name, allow_feedback=True), name) == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"cleanup.policy": "compact"}, None),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "604800000"}, "cleanup.policy=delete with retention.ms=604800000"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "9000"}, "retention.bytes=9000"),
    ],
    ids=["compacted", "kept for ever", "deleted after a week", "compacted and deleted"],
)
def test_a_table_of_a_topic_that_deletes_the_newest_row_of_a_key_is_a_notice(
    ctx: JobContext, topic: Topic, config: dict[str, str], told: str | None
) -> None:
    name = topic(config=config)
    pipeline: Any = Pipeline("prices")
    table = pipeline.table(KafkaSource.records(name, key=str, value=str), name="prices")
    stream = pipeline.source(KafkaSource(name, value=str), name="orders").key_by(str)
    stream.join(table, lambda order, price: price, name="priced").sink(MemorySink(), name="out")

    notices = SourceCoordinator(pipeline.plan(), lambda: ctx, Retrier(threading.Event(), print)).check(None)

    assert len(notices) == (told is not None)
    for notice in notices:
        assert notice.startswith(f"source 'prices': Topic {name} is read as a table, but ")
        assert told is not None and told in notice
        assert notice.endswith("Set cleanup.policy=compact.")


def test_a_topic_without_compression_takes_no_batch_that_unpacks_to_more_than_its_limit(
    bootstrap: str, topic: Topic, opened: Any
) -> None:
    """Elsewhere the broker looks at the compressed bytes only, and readers unpack what it has let in."""
    usual, guarded = topic(), topic(config={"compression.type": "uncompressed"})
    producer = in_order(bootstrap, {"compression.type": "gzip", "message.max.bytes": 10_000_000})
    told: dict[str, list[Any]] = {usual: [], guarded: []}
    for name in told:
        for size in (5_000_000, 1000):
            producer.produce(name, bytes(size), on_delivery=lambda error, m: told[m.topic()].append(error))
            assert producer.flush(PATIENCE) == 0

    assert [error and error.name() for error in told[usual]] == [None, None]
    assert [error and error.name() for error in told[guarded]] == ["MSG_SIZE_TOO_LARGE", None]
    assert list(map(len, read(opened(KafkaSource(guarded)), 1))) == [1000]
