"""The Kafka sink on a real broker: one shared transaction an epoch, in order, committable by anyone."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable, Committer
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, Record, dead_letter
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.broker_refusals import record_refusals
from kafka_eos.connectors.kafka.sink.committer import FENCED_MS
from kafka_eos.connectors.kafka.sink.record_sizes import batch_bytes
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import CommittableLost, ConfigError, EnvironmentFailed, PoisonRecord, RestartFromCheckpoint
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.core.records import Batch, RejectedRecord
from kafka_eos.devtools.broker import Broker
from kafka_eos.storage.job_storage import LocalStorage
from tests.broker.kafka_kit import Rows, batch, commit, epoch, job, prepare, set_topic_config, task, values_of, visible
from tests.broker.transaction_kit import create_topic
from tests.marks import campaign
from tests.record_clients import RECORD_CLIENTS, use_record_client
from tests.waiting import eventually

Topic = Callable[..., str]
Open = Callable[..., tuple[Writer[Any], Committer]]


@pytest.fixture(autouse=True, params=[*map(campaign, RECORD_CLIENTS[:-1]), RECORD_CLIENTS[-1]])
def record_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_record_client(request.param, monkeypatch)


@pytest.fixture
def ctx(bootstrap: str) -> JobContext:
    return job(bootstrap)


@pytest.fixture
def opened(ctx: JobContext) -> Iterator[Open]:
    """Opens writers of one worker session, and the committer; lets go of them afterwards."""
    services = Services()
    closing: list[Callable[[], None]] = []

    def open_(sink: KafkaSink[Any], operator: str = "out") -> tuple[Writer[Any], Committer]:
        writer, committer = sink.writer(task(ctx, operator, services)), sink.committer(ctx)
        closing.extend((writer.discard, committer.close))
        return writer, committer

    yield open_
    for close in closing:
        close()


def test_a_writer_that_is_attended_to_within_a_transaction_goes_on(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(KafkaSink(out))
    writer.poll()
    for value in (b"a", b"b"):
        writer.write(batch(value))
        writer.poll()

    commit(committer, writer.seal(epoch(1))(), epoch(1))

    eventually(lambda: values_of(bootstrap, out) == [b"a", b"b"], "both values, once")


def test_output_is_invisible_until_committed(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(KafkaSink(out))

    prepared = prepare(writer, batch(b"a", b"b"), epoch(1))
    before = values_of(bootstrap, out)
    outcomes = commit(committer, prepared, epoch(1)) + commit(committer, prepared, epoch(1))

    assert before == []
    assert [one.records for one in prepared] == [2]
    assert outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ALREADY]
    eventually(lambda: values_of(bootstrap, out) == [b"a", b"b"], "both values, once")


def test_an_empty_epoch_prepares_nothing(topic: Topic, opened: Open) -> None:
    writer, _ = opened(KafkaSink(topic()))

    assert list(writer.seal(epoch(1))()) == []
    assert len(prepare(writer, batch(b"a"), epoch(2))) == 1
    assert list(writer.seal(epoch(3))()) == []


def test_sinks_of_one_worker_share_one_transaction(bootstrap: str, topic: Topic, opened: Open) -> None:
    first, second = topic(), topic()
    one, committer = opened(KafkaSink(first), "one")
    two, _ = opened(KafkaSink(second), "two")
    one.write(batch(b"a"))
    two.write(batch(b"b", b"c"))

    prepared = [c for precommit in (one.seal(epoch(1)), two.seal(epoch(1))) for c in precommit()]
    commit(committer, prepared, epoch(1))

    assert [one.records for one in prepared] == [3]
    eventually(lambda: values_of(bootstrap, first) == [b"a"] and values_of(bootstrap, second) == [b"b", b"c"], "all")


def test_a_sink_may_be_an_epoch_ahead_of_its_sibling(bootstrap: str, topic: Topic, opened: Open) -> None:
    """Between the two barriers one writes to epoch 2 while the other still writes to epoch 1, and overtakes nothing.

    The client keeps back the row of epoch 1, as long as it may, and sends those of epoch 2 at once: they fill a batch.
    """
    first, second = topic(), topic()
    config = {"linger.ms": 1000, "batch.num.messages": 2}
    one, committer = opened(KafkaSink(first, config=config), "one")
    two, _ = opened(KafkaSink(second, config=config), "two")
    one.write(batch(b"1"))
    one_sealed = one.seal(epoch(1))
    one.write(batch(b"2", b"3"))
    two.write(batch(b"1"))
    prepared = [committable for precommit in (one_sealed, two.seal(epoch(1))) for committable in precommit()]
    commit(committer, prepared, epoch(1))

    assert [committable.records for committable in prepared] == [2]
    eventually(lambda: values_of(bootstrap, first) == [b"1"] and values_of(bootstrap, second) == [b"1"], "epoch 1 only")
    prepared = [committable for writer in (one, two) for committable in writer.seal(epoch(2))()]
    commit(committer, prepared, epoch(2))
    eventually(lambda: len(values_of(bootstrap, first)) == 3, "both epochs")
    assert values_of(bootstrap, first) == [b"1", b"2", b"3"]


def test_rows_keep_their_order_over_epochs(bootstrap: str, topic: Topic, opened: Open) -> None:
    """The next epoch is written before the pre-commit of this one has begun."""
    out = topic()
    writer, committer = opened(KafkaSink(out))
    sealed = []
    for n in range(5):
        writer.write(batch(*(f"{n}.{i}".encode() for i in range(200))))
        sealed.append((epoch(n + 1), writer.seal(epoch(n + 1))))
    for at, precommit in sealed:
        commit(committer, precommit(), at)

    wanted = [f"{n}.{i}".encode() for n in range(5) for i in range(200)]
    eventually(lambda: len(values_of(bootstrap, out)) == len(wanted), "all epochs")
    assert values_of(bootstrap, out) == wanted


def test_slots_are_used_again_after_the_receipt(bootstrap: str, topic: Topic, opened: Open) -> None:
    """Those of the committed epoch alone: at least two later ones are prepared when the notice comes."""
    out = topic()
    writer, committer = opened(KafkaSink(out))

    names = commit_behind(committer, lambda at: prepare(writer, batch(str(at).encode()), at), writer.notify_committed)

    assert len(set(names)) <= LIMITS.spare_producers + 7
    eventually(lambda: values_of(bootstrap, out) == EACH_EPOCH, "a row of each epoch, in order")


EACH_EPOCH = [str(epoch(n)).encode() for n in range(1, 22)]


def commit_behind(
    committer: Committer, prepare_epoch: Callable[[EpochId], Sequence[Committable]], notify: Callable[[EpochId], None]
) -> list[str]:
    """Prepare epochs, three at a time; commit all but the last two, at the end all. Returns the transactional ids."""
    waiting: deque[tuple[EpochId, Sequence[Committable]]] = deque()
    names = []
    for n in range(1, 22):
        waiting.append((epoch(n), prepare_epoch(epoch(n))))
        names += [str(one.payload["transactional_id"]) for one in waiting[-1][1]]
        while n % 3 == 0 and len(waiting) > (2 if n < 21 else 0):
            at, oldest = waiting.popleft()
            assert commit(committer, oldest, at) == [CommitOutcome.COMMITTED]
            notify(at)
    return names


def test_a_producer_instance_carries_one_transaction(topic: Topic, opened: Open) -> None:
    writer, committer = opened(KafkaSink(topic()))
    seen = set()
    for n in range(1, 9):
        prepared = prepare(writer, batch(b"x"), epoch(n))
        commit(committer, prepared, epoch(n))
        writer.notify_committed(epoch(n))
        seen |= {(one.payload["producer_id"], one.payload["producer_epoch"]) for one in prepared}

    assert len(seen) == 8


def test_provenance(bootstrap: str, topic: Topic, opened: Open, ctx: JobContext) -> None:
    """Each record names its attempt, its input row, and which output of that row it is."""
    out = topic()
    writer, committer = opened(KafkaSink(out, headers=lambda value: [("own", value)]))
    rows = batch(b"a", b"b", b"c")
    rows.origin_rows = [0, 0, 2]
    commit(committer, prepare(writer, rows, epoch(1)), epoch(1))
    commit(committer, prepare(writer, batch(b"d", first=7), epoch(2)), epoch(2))

    records = eventually(lambda: len(found := visible(bootstrap, out)) == 4 and found, "four records")
    texts = [dict(record.headers)["kafka_eos"].decode() for record in records]
    assert texts == [
        f"{ctx.job}.1.1/numbers/in/0/0/0.0",
        f"{ctx.job}.1.1/numbers/in/0/0/0.1",
        f"{ctx.job}.1.1/numbers/in/0/2/0.0",
        f"{ctx.job}.1.2/numbers/in/0/7/0.0",
    ]
    assert [parse_provenance(text).source for text in texts] == ["numbers"] * 4
    assert dict(records[0].headers)["own"] == b"a"
    assert [record.timestamp for record in records[:3]] == [Rows(1).timestamps()[0] + n for n in (0, 0, 2)]


MURMUR_2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Keys and their hashes, as the tests of the Java client have them."""


def test_keys_go_to_the_partitions_of_the_java_client(
    bootstrap: str, topic: Topic, opened: Open, ctx: JobContext
) -> None:
    out = topic(partitions=3)
    writer, committer = opened(KafkaSink(out, value=str, key=lambda value: value))
    commit(committer, prepare(writer, batch(*MURMUR_2), epoch(1)), epoch(1))
    source = KafkaSource(out, value=str)
    reader = source.reader(task(ctx, "check"), source.discover(ctx, None))
    found: dict[str, int] = {}
    while len(found) < len(MURMUR_2):
        rows = reader.poll(100, 1)
        found |= {} if rows is None else dict(zip(rows.values, rows.origin.partitions, strict=True))
    reader.close()

    assert found == {key: (hashed & 0x7FFFFFFF) % 3 for key, hashed in MURMUR_2.items()}


def test_records_and_tombstones(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(KafkaSink.records(out, key=str, value=dict))
    rows = batch(Record("k", {"n": 1}, [("h", b"1")], 1_600_000_000_000), Record("k", None))
    commit(committer, prepare(writer, rows, epoch(1)), epoch(1))

    first, second = eventually(lambda: len(found := visible(bootstrap, out)) == 2 and found, "two records")
    assert (first.key, first.value, first.timestamp) == ("k", b'{"n":1}', 1_600_000_000_000)
    assert dict(first.headers)["h"] == b"1"
    assert (second.key, second.value) == ("k", None)


def test_times_before_1970_are_kept(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(KafkaSink(out, value=str, timestamp=int))
    commit(committer, prepare(writer, batch("-5000", "-1", "0", "1"), epoch(1)), epoch(1))

    records = eventually(lambda: len(found := visible(bootstrap, out)) == 4 and found, "four records")
    assert [record.timestamp for record in records] == [-5000, -2, 1, 1]


def test_dead_letters_keep_the_original(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(dead_letter(out).sink)
    rows = batch(RejectedRecord(Rows(9).raw(5), "parse", "ValueError", "not JSON"))
    commit(committer, prepare(writer, rows, epoch(1)), epoch(1))

    (letter,) = eventually(lambda: visible(bootstrap, out), "the letter")
    headers = {name.removeprefix("dead_letter."): value for name, value in letter.headers}
    assert (letter.value, letter.timestamp) == (b"raw", Rows(9).timestamps()[5])
    assert (headers["topic"], headers["partition"], headers["offset"]) == (b"in", b"0", b"5")
    assert (headers["operator"], headers["error"], headers["message"]) == (b"parse", b"ValueError", b"not JSON")


def test_a_value_that_cannot_be_encoded_names_its_row(topic: Topic, opened: Open) -> None:
    writer, _ = opened(KafkaSink(topic(), value=str))

    with pytest.raises(PoisonRecord, match="in/0/1"):
        writer.write(batch("fine", 7))


def test_a_key_that_is_no_key_names_its_row(topic: Topic, opened: Open) -> None:
    writer, _ = opened(KafkaSink(topic(), key=lambda value: 1.5))

    with pytest.raises(PoisonRecord, match="key_codec"):
        writer.write(batch(b"x"))


def test_a_record_that_the_broker_refuses_fails_the_epoch(bootstrap: str, topic: Topic, opened: Open) -> None:
    """Nothing is prepared when one record was not delivered."""
    out = topic()
    writer, _ = opened(KafkaSink(out, config={"compression.type": "none"}))
    writer.write(batch(b"small"))
    precommit = writer.seal(epoch(1))
    assert len(precommit()) == 1
    set_topic_config(bootstrap, out, "max.message.bytes", "1000")
    writer.write(batch(b"x" * 10_000))
    precommit = writer.seal(epoch(2))

    with pytest.raises(RestartFromCheckpoint, match=r"not delivered.*the topic .* max\.message\.bytes"):
        precommit()


DELIVERIES = pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])


@pytest.mark.parametrize(
    ("config", "record"),
    [
        (("message.timestamp.after.max.ms", "1000"), Record("k", "v", [], 4_000_000_000_000)),
        (("message.timestamp.before.max.ms", "1000"), Record("k", "v", [], 1)),
        (("cleanup.policy", "compact"), Record(None, "v")),
    ],
)
def test_a_record_that_its_topic_refuses_is_rejected_alone(
    bootstrap: str, topic: Topic, ctx: JobContext, config: tuple[str, str], record: Record[Any, Any]
) -> None:
    """The other rows of the epoch are committed."""
    out = topic()
    refused: list[tuple[int, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, str(error)))

    set_topic_config(bootstrap, out, *config)
    sink: KafkaSink[Any] = KafkaSink.records(out, key=str, value=str, timestamp=None)
    writer, committer = sink.writer(task(ctx, "out", Services(reject_row=reject))), sink.committer(ctx)
    commit(committer, prepare(writer, batch(Record("k", "fine"), record, Record("k", "too")), epoch(1)), epoch(1))

    assert eventually(lambda: values_of(bootstrap, out), "the good rows") == [b"fine", b"too"]
    writer.discard()
    committer.close()
    assert [place for place, _ in refused] == [1]
    assert config[0] in refused[0][1] and out in refused[0][1]


@DELIVERIES
def test_all_records_that_the_broker_refuses_are_rejected_by_the_next_attempt(
    bootstrap: str, topic: Topic, ctx: JobContext, delivery: str
) -> None:
    """No writer knows a rule of the topic, as if it were none of its settings. The client reports whole batches, and a
    good record with the value of a refused one must be written.
    """
    out = topic()
    refused: list[tuple[int, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, str(error)))

    sink: KafkaSink[Any] = KafkaSink.records(out, key=str, value=str, delivery=delivery)
    attempts = [replace(ctx, term=Term(number)) for number in (1, 2)]
    first, second = [sink.writer(task(attempt, "out", Services(reject_row=reject))) for attempt in attempts]
    committer = sink.committer(attempts[-1])
    set_topic_config(bootstrap, out, "cleanup.policy", "compact")
    good, bad = Record("k", "same"), Record(None, "same")
    several = [batch(good, bad, bad, Record("k", "2")), batch(bad, Record("k", "3")), batch(Record("k", "4"))]
    with pytest.raises(EnvironmentFailed):
        prepare(first, several[0], epoch(1))
    first.discard()
    assert refused == []

    committer.abort_leftovers(attempts[-1])  # open transactions of failed attempts hide what follows from readers
    for rows in several[:-1]:
        second.write(rows)
    commit(committer, prepare(second, several[-1], epoch(1)), epoch(1))
    expected = [b"same", b"2", b"3", b"4"]
    if delivery == "exactly-once":
        assert eventually(lambda: values_of(bootstrap, out), "the good rows") == expected
    else:
        eventually(lambda: set(values_of(bootstrap, out)) == {*expected}, "the good rows")
    second.discard()
    committer.close()
    assert [place for place, _ in refused] == [1, 2, 0]
    assert "the broker rejected this output" in refused[0][1] and out in refused[0][1]


@DELIVERIES
def test_a_refusal_is_the_reason_that_is_reported_although_many_rows_follow_it(
    bootstrap: str, topic: Topic, ctx: JobContext, delivery: str
) -> None:
    """The client refuses the rows that follow before it reports the delivery that failed."""
    out = topic()
    sink: KafkaSink[Any] = KafkaSink.records(out, key=str, value=str, delivery=delivery)
    writer = sink.writer(task(ctx, "out"))
    set_topic_config(bootstrap, out, "cleanup.policy", "compact")

    several = [batch(Record(None, "refused"), *[Record("k", "v" * 100)] * 20_000)] * 50

    with pytest.raises(EnvironmentFailed, match="failed to validate record"):
        deque(map(writer.write, several), maxlen=0)

    writer.discard()


def test_many_refused_records_are_found_before_the_worker_counts_as_hung(
    bootstrap: str, topic: Topic, ctx: JobContext
) -> None:
    """A client that has met a refusal needs half a second before it can send again, so another one is used. The last
    one waits for the next refusal, and somebody must read its statistics.
    """
    out, refused = topic(), list[int]()
    sink: KafkaSink[Any] = KafkaSink.records(out, key=str, value=str)
    services = Services(reject_row=lambda rows, index, *_: refused.append(index))
    writer = sink.writer(task(ctx, "out", services))
    set_topic_config(bootstrap, out, "cleanup.policy", "compact")
    record_refusals(sink.scope(ctx), [out])
    began = time.monotonic()

    writer.write(batch(*[Record("k" if row % 10 else None, "v") for row in range(100)]))
    took = time.monotonic() - began

    idle = writer._transactions._try_out._idle  # type: ignore[attr-defined]
    eventually(lambda: not len(idle.producer), "its statistics are read", 10.0)
    writer.discard()
    assert refused == [*range(0, 100, 10)]
    assert took < 30.0


@DELIVERIES
def test_an_output_over_the_topics_limit_is_refused_before_it_is_sent(
    bootstrap: str, topic: Topic, ctx: JobContext, delivery: str
) -> None:
    """The largest that the topic takes goes out, one byte more goes to the policy, however well it compresses."""
    out = topic(config={"max.message.bytes": "2000"})
    refused: list[tuple[int, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, str(error)))

    sink: KafkaSink[Any] = KafkaSink(out, delivery=delivery, config={"compression.type": "none"}, provenance=None)
    writer, committer = sink.writer(task(ctx, "out", Services(reject_row=reject))), sink.committer(ctx)
    around = batch_bytes(bytes(1900), None, []) - 1900
    fits = bytes(2000 - around)
    commit(committer, prepare(writer, batch(b"a", fits, fits + b"x", b"z", b"y" * 99_999), epoch(1)), epoch(1))

    eventually(lambda: len(values_of(bootstrap, out)) == 3, "the good rows")
    committer.close()
    writer.discard()
    assert values_of(bootstrap, out) == [b"a", fits, b"z"]
    assert [place for place, _ in refused] == [2, 4]
    assert f"has 2001 bytes before compression, but the topic {out} accepts at most 2000" in refused[0][1]


@pytest.mark.parametrize("delivery", ["exactly-once", campaign("at-least-once")])
def test_batches_are_not_larger_than_the_topic_takes(
    bootstrap: str, topic: Topic, ctx: JobContext, delivery: str
) -> None:
    """Many small outputs, of all sizes up to the limit, with headers; each alone would fit."""
    out = topic(config={"max.message.bytes": "1500"})
    sink: KafkaSink[Any] = KafkaSink(
        out, delivery=delivery, config={"compression.type": "none"}, headers=lambda value: [("h", value[:40])]
    )
    writer, committer = sink.writer(task(ctx)), sink.committer(ctx)
    wanted = [bytes(size) for size in range(1300)]
    commit(committer, prepare(writer, batch(*wanted), epoch(1)), epoch(1))

    eventually(lambda: len(values_of(bootstrap, out)) == len(wanted), "all rows")
    committer.close()
    writer.discard()
    assert values_of(bootstrap, out) == wanted


def test_a_limit_counts_from_the_next_session_and_one_that_is_raised_at_once(
    bootstrap: str, topic: Topic, ctx: JobContext
) -> None:
    out = topic()
    sink: KafkaSink[Any] = KafkaSink(out)
    set_topic_config(bootstrap, out, "max.message.bytes", "1000")
    writer = sink.writer(task(ctx))

    with pytest.raises(PoisonRecord, match=r"in/0/1.*max\.message\.bytes"):
        writer.write(batch(b"fine", b"x" * 1000))

    def is_accepted() -> bool:
        try:
            writer.write(batch(b"x" * 1000))
        except PoisonRecord:
            return False
        return True

    set_topic_config(bootstrap, out, "max.message.bytes", "5000")
    eventually(is_accepted, "the raised limit counts")
    writer.discard()


@pytest.mark.parametrize(("size", "limit"), [(5_000, "1000"), (3_000_000, "2000000")], ids=["topic", "client"])
def test_a_dead_letter_over_a_limit_is_written_without_the_contents_of_its_record(
    bootstrap: str, topic: Topic, opened: Open, size: int, limit: str
) -> None:
    """Producers may write records that are far larger before compression than any topic's limit."""
    out = topic(config={"max.message.bytes": limit})
    writer, committer = opened(dead_letter(out).sink)
    raws = [replace(Rows(3).raw(row), key=b"k", value=bytes(length)) for row, length in enumerate((10, size, 20))]
    rows = Batch([RejectedRecord(raw, "parse", "ValueError", "no") for raw in raws], [0, 1, 2], Rows(3))
    commit(committer, prepare(writer, rows, epoch(1)), epoch(1))

    letters = eventually(lambda: len(found := visible(bootstrap, out)) == 3 and found, "three letters")
    assert [letter.key for letter in letters] == ["k"] * 3
    assert [letter.value for letter in letters] == [bytes(10), None, bytes(20)]
    left_out = [dict(letter.headers).get("dead_letter.left_out") for letter in letters]
    assert left_out == [None, str(size + 1).encode(), None]
    assert [dict(letter.headers)["dead_letter.offset"] for letter in letters] == [b"0", b"1", b"2"]


def test_a_dead_letter_whose_timestamp_its_topic_refuses_has_the_time_of_writing(
    bootstrap: str, topic: Topic, opened: Open
) -> None:
    """The topic of the record may take any timestamp."""
    now = round(time.time() * 1000)
    bounds = {"message.timestamp.after.max.ms": "60000", "message.timestamp.before.max.ms": "60000"}
    out = topic(config=bounds)
    writer, committer = opened(dead_letter(out).sink)
    times = [now + 10**9, now - 1000, now - 10**9]
    raws = [replace(Rows(3).raw(row), timestamp=time) for row, time in enumerate(times)]
    rows = Batch([RejectedRecord(raw, "parse", "ValueError", "no") for raw in raws], [0, 1, 2], Rows(3))
    commit(committer, prepare(writer, rows, epoch(1)), epoch(1))

    letters = eventually(lambda: len(found := visible(bootstrap, out)) == 3 and found, "three letters")
    assert [int(dict(letter.headers)["dead_letter.timestamp"]) for letter in letters] == times
    written = [letter.timestamp for letter in letters]
    assert written[1] == times[1]
    assert not {times[0], times[2]} & {*written}


def test_a_dead_letter_over_its_topics_limit_names_its_record(topic: Topic, opened: Open) -> None:
    writer, _ = opened(dead_letter(topic(config={"max.message.bytes": "1000"})).sink)
    rejected = RejectedRecord(Rows(1, 5).raw(0), "parse", "ValueError", "x" * 1000)

    with pytest.raises(PoisonRecord, match=r"in/0/5.*max\.message\.bytes"):
        writer.write(Batch([rejected], [0], Rows(1, 5)))


@DELIVERIES
def test_rows_that_cannot_be_written_are_left_out_where_the_policy_takes_them(
    bootstrap: str, topic: Topic, ctx: JobContext, delivery: str
) -> None:
    """In the value, the key, the headers, or in size: their neighbours are written in order and counted."""
    out = topic()
    refused: list[tuple[int, str, str]] = []

    def reject(rows: Batch[Any], index: int, operator: str, error: Exception) -> None:
        refused.append((rows.origin.raw(rows.origin_rows[index]).offset, operator, type(error).__name__))

    sink: KafkaSink[Any] = KafkaSink(
        out,
        value=str,
        key=lambda value: 1.5 if value == "bad key" else "k",
        headers=lambda value: [("h", 7)] if value == "bad header" else [],  # type: ignore[list-item]
        config={"message.max.bytes": 10_000},
        delivery=delivery,
    )
    writer, committer = sink.writer(task(ctx, "out", Services(reject_row=reject))), sink.committer(ctx)
    rows = batch("a", 7, "bad key", "b", "x" * 20_000, "bad header", 8, "c")
    prepared = prepare(writer, rows, epoch(1))
    commit(committer, prepared, epoch(1))

    eventually(lambda: len(values_of(bootstrap, out)) == 3, "the good rows")
    committer.close()
    writer.discard()
    assert values_of(bootstrap, out) == [b"a", b"b", b"c"]
    assert [one.records for one in prepared] == ([3] if delivery == "exactly-once" else [])
    assert sorted(refused) == [
        (1, "out", "ValueError"),
        (2, "out", "TypeError"),
        (4, "out", "UnfitValue"),
        (5, "out", "TypeError"),
        (6, "out", "ValueError"),
    ]


def test_an_output_too_large_for_the_producer_names_its_row(topic: Topic, opened: Open) -> None:
    writer, _ = opened(KafkaSink(topic(), config={"message.max.bytes": 10_000}))

    with pytest.raises(PoisonRecord, match=r"in/0/1.*has 20\d{3} bytes .*message\.max\.bytes") as refused:
        writer.write(batch(b"fine", b"x" * 20_000))
    said = str(refused.value)
    assert "accepts at most 1048588 (max.message.bytes) and its producer at most 10000 (message.max.bytes)" in said
    assert "raise message.max.bytes of the producer" in said
    assert "…" not in said


def test_a_full_queue_waits_for_deliveries(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, committer = opened(KafkaSink(out, config={"queue.buffering.max.messages": 10, "linger.ms": 0}))
    wanted = [str(n).encode() for n in range(500)]
    commit(committer, prepare(writer, batch(*wanted), epoch(1)), epoch(1))

    eventually(lambda: len(values_of(bootstrap, out)) == 500, "all rows")
    assert values_of(bootstrap, out) == wanted


def test_a_fenced_writer_prepares_nothing(bootstrap: str, topic: Topic, opened: Open, ctx: JobContext) -> None:
    """A newer term took the id over between the rows and the barrier."""
    sink: KafkaSink[Any] = KafkaSink(topic())
    writer, _ = opened(sink)
    writer.write(batch(b"zombie"))
    newer = job(bootstrap, 2, ctx.job)
    recovery = sink.committer(newer)
    eventually(lambda: recovery.list_staged(newer), "the open transaction")
    recovery.abort_leftovers(newer)
    recovery.close()

    with pytest.raises(RestartFromCheckpoint):
        writer.seal(epoch(1))()


def test_orphans_of_older_terms_are_fenced_once(bootstrap: str, topic: Topic, opened: Open, ctx: JobContext) -> None:
    """Open ones are aborted, idle ones too; the next recovery has nothing to do. A job of a similar name is left."""
    sink: KafkaSink[Any] = KafkaSink(topic())
    writer, _ = opened(sink)
    prepare(writer, batch(b"orphan"), epoch(1))
    writer.discard()
    eventually(lambda: not _warming_up(), "the older term starts no producer any more")
    near = job(bootstrap, 1, f"{ctx.job}-2")
    other = sink.writer(task(near))
    kept = prepare(other, batch(b"other"), epoch(1))
    newer = job(bootstrap, 2, ctx.job)
    recovery = sink.committer(newer)

    first, second = recovery.abort_leftovers(newer), recovery.abort_leftovers(newer)
    standing = recovery.probe(kept[0]).status

    recovery.close()
    other.discard()
    assert any("Ongoing" in name for name in first)
    assert all(name.startswith(f"{ctx.job}.1.0.") for name in first)
    assert list(second) == []
    assert standing is CommitStatus.PREPARED


def _warming_up() -> list[str]:
    """Threads of this process that may be starting a transactional producer."""
    return [thread.name for thread in threading.enumerate() if thread.name == "kafka-warm-up"]


def test_own_term_is_not_aborted(topic: Topic, opened: Open, ctx: JobContext) -> None:
    writer, committer = opened(KafkaSink(topic()))
    (prepared,) = prepare(writer, batch(b"mine"), epoch(1))

    assert list(committer.abort_leftovers(ctx)) == []
    assert committer.probe(prepared).status is CommitStatus.PREPARED


def test_probe_and_commit_over_the_life_of_a_committable(bootstrap: str, topic: Topic, opened: Open) -> None:
    sink: KafkaSink[Any] = KafkaSink(topic(), transaction_timeout=600)
    writer, committer = opened(sink)
    (kept,), (lost,) = prepare(writer, batch(b"a"), epoch(1)), prepare(writer, batch(b"b"), epoch(2))
    prepared = committer.probe(kept)
    commit(committer, [kept], epoch(1))
    with KafkaRequests(Cluster(bootstrap)) as rpc:
        rpc.fence(str(lost.payload["transactional_id"]), FENCED_MS)

    assert prepared.status is CommitStatus.PREPARED
    assert 500 < prepared.expires_in <= 600
    eventually(lambda: committer.probe(kept).status is CommitStatus.COMMITTED, "committed")
    assert committer.probe(lost).status is CommitStatus.LOST
    with pytest.raises(CommittableLost, match="epoch 2"):
        commit(committer, [lost], epoch(2))


def test_recovery_commits_what_an_older_term_prepared(
    bootstrap: str, topic: Topic, opened: Open, ctx: JobContext
) -> None:
    out = topic()
    sink: KafkaSink[Any] = KafkaSink(out)
    writer, _ = opened(sink)
    prepared = prepare(writer, batch(b"a"), epoch(1))
    recovery = sink.committer(job(bootstrap, 2, ctx.job))
    outcomes = [*commit(recovery, prepared, epoch(1)), *commit(recovery, prepared, epoch(1))]
    recovery.abort_leftovers(job(bootstrap, 2, ctx.job))
    outcomes += commit(recovery, prepared, epoch(1))
    recovery.close()

    assert outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ALREADY, CommitOutcome.ALREADY]
    eventually(lambda: values_of(bootstrap, out) == [b"a"], "the value, once")


def test_recovery_with_the_old_version_fences_the_id(
    bootstrap: str, topic: Topic, opened: Open, ctx: JobContext
) -> None:
    """On a broker without v5: commit, then fence, and the marker answers whoever asks again.

    Two transactions of one worker: the first is of a checkpoint that was given up, and committed with the next one.
    """
    out = topic()
    sink: KafkaSink[Any] = KafkaSink(out)
    writer, _ = opened(sink)
    prepared = [
        Committable(one.scope, {**one.payload, "end_txn_version": 4}, one.records)
        for number, value in ((1, b"a"), (2, b"b"))
        for one in prepare(writer, batch(value), epoch(number))
    ]
    newer = job(bootstrap, 2, ctx.job)
    recovery = sink.committer(newer)
    outcomes = [*commit(recovery, prepared, epoch(2)), *commit(recovery, prepared, epoch(2))]
    with KafkaRequests(Cluster(bootstrap)) as rpc:
        seen = [rpc.describe(str(one.payload["transactional_id"])) for one in prepared]
    recovery.close()

    assert outcomes == [CommitOutcome.COMMITTED] * 2 + [CommitOutcome.ALREADY] * 2
    assert [(one.state, one.timeout_ms) for one in seen if one is not None] == [("Empty", FENCED_MS)] * 2
    assert values_of(bootstrap, out) == [b"a", b"b"]


def test_at_least_once_is_visible_at_the_barrier(bootstrap: str, topic: Topic, opened: Open) -> None:
    out = topic()
    writer, _ = opened(KafkaSink(out, delivery="at-least-once"))

    assert list(prepare(writer, batch(b"a"), epoch(1))) == []
    assert values_of(bootstrap, out) == [b"a"]


@pytest.mark.campaign
def test_a_prepared_transaction_survives_a_broker_restart(
    broker_factory: Callable[..., Broker], ctx: JobContext
) -> None:
    """And so do the committer and the writer: the same objects go on afterwards."""
    broker = broker_factory()
    create_topic(broker.bootstrap, "out")
    here = job(broker.bootstrap)
    sink: KafkaSink[Any] = KafkaSink("out")
    writer, committer = sink.writer(task(here)), sink.committer(here)
    first = prepare(writer, batch(b"a"), epoch(1))
    broker.stop()
    broker.start()
    commit(committer, first, epoch(1))
    writer.notify_committed(epoch(1))
    commit(committer, prepare(writer, batch(b"b"), epoch(2)), epoch(2))

    eventually(lambda: values_of(broker.bootstrap, "out") == [b"a", b"b"], "both")
    writer.discard()
    committer.close()


def test_check_names_what_the_broker_does_not_allow(broker_factory: Callable[..., Broker]) -> None:
    broker = broker_factory(overrides={"transaction.max.timeout.ms": "900000"})
    create_topic(broker.bootstrap, "out")
    here = job(broker.bootstrap)

    with pytest.raises(ConfigError, match="transaction.max.timeout.ms=3600000"):
        KafkaSink("out", transaction_timeout=3600).check(here)
    assert any("15 min" in notice for notice in KafkaSink("out").check(here))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"offsets.retention.minutes": "1440"}, "offsets.retention.minutes=1440"),
        campaign({"transactional.id.expiration.ms": "600000"}, "transactional.id.expiration.ms=600000"),
    ],
)
def test_a_cluster_that_forgets_too_soon_is_refused(
    broker_factory: Callable[..., Broker], overrides: dict[str, str], said: str
) -> None:
    broker = broker_factory(overrides=overrides)
    create_topic(broker.bootstrap, "out")

    with pytest.raises(ConfigError, match=said):
        KafkaSink("out", transaction_timeout=900).check(job(broker.bootstrap))


def test_a_checkpoint_interval_beyond_the_transaction_timeout_is_refused(ctx: JobContext, topic: Topic) -> None:
    here = replace(ctx, settings={**ctx.settings, "checkpoint_interval": 60.0, "commit_margin": 0.0})

    with pytest.raises(ConfigError, match="checkpoint_interval is 1 min"):
        KafkaSink(topic(), transaction_timeout=60).check(here)


@pytest.mark.usefixtures("instant_topic_search")
def test_check_of_a_missing_topic_says_how_to_create_it(ctx: JobContext) -> None:
    with pytest.raises(ConfigError, match="kafka-topics.sh .* --topic no-such-topic"):
        KafkaSink("no-such-topic").check(ctx)


@pytest.mark.usefixtures("instant_topic_search")
def test_a_start_names_all_missing_topics_at_once(bootstrap: str, tmp_path: Path) -> None:
    pipeline: Any = Pipeline("orders")
    for name in ("in-1", "in-2", "both"):
        pipeline.source(KafkaSource(name, value=str), name=name).sink(KafkaSink(f"{name}-out"), name=f"{name}-out")
    pipeline.source(KafkaSource("last", value=str), name="last").sink(KafkaSink("both"), name="both-again")
    storage = LocalStorage(tmp_path / "orders")
    settings = {"bootstrap_servers": bootstrap}
    patience = Retrier(threading.Event(), print)
    coordinator = Coordinator(pipeline.plan(), storage, History(storage, print), patience, settings, 3)

    with pytest.raises(ConfigError) as refused:
        coordinator.check()

    missing = ["in-1-out", "in-2-out", "both-out", "both", "in-1", "in-2", "last"]
    assert [line.split("'")[1] for line in str(refused.value).split("\n")] == missing
    assert all("kafka-topics.sh" in line for line in str(refused.value).split("\n"))


def test_secrets_are_never_shown() -> None:
    config = {
        "sasl.username": "ada",
        "sasl.password": "hunter2",
        "ssl.key.password": "hunter2",
        "ssl.key.pem": "hunter2",
        "sasl.oauthbearer.client.secret": "hunter2",
        "sasl.oauthbearer.config": "hunter2",
        "sasl.jaas.config": "hunter2",
    }
    sink: KafkaSink[Any] = KafkaSink("out", config=config)

    assert "hunter2" not in f"{sink!r} {sink.describe()} {Cluster('b:1', config)!r}"
    assert "ada" in repr(sink)


def test_settings_that_carry_the_guarantee_are_refused() -> None:
    for key in ("transactional.id", "acks", "enable.idempotence", "bootstrap.servers"):
        with pytest.raises(ConfigError, match=key):
            KafkaSink("out", config={key: "x"})


def test_two_configurations_of_a_worker_never_share_a_transactional_id(
    bootstrap: str, topic: Topic, ctx: JobContext
) -> None:
    """Their ids differ in the slot alone."""
    out, services = topic(), Services()
    writers = [KafkaSink(out, transaction_timeout=wait).writer(task(ctx, "out", services)) for wait in (60, 90)]

    found = [one.payload["transactional_id"] for writer in writers for one in prepare(writer, batch(b"x"), epoch(1))]

    for writer in writers:
        writer.discard()
    assert len(found) == len(set(found)) == 2
