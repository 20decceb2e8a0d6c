"""The reader's positions, against a log at the wire: what moves them, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message
from kio.schema.errors import ErrorCode

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.source import Reader
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.source import reader as reader_module
from kafka_eos.connectors.kafka.source.fetched_records import FetchedRecords, MessageRecords
from kafka_eos.connectors.kafka.source.positions import moved, offset_of, partition_of, position, split_id
from kafka_eos.connectors.kafka.source.reader import KafkaReader
from kafka_eos.core.errors import Bug, ConfigError, Fatal, InputLost, KafkaEosError, LossCause, PoisonRecord
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RawRecord
from tests.kafka_log import Log, fetched_records
from tests.scripted_broker import ScriptedBroker
from tests.waiting import PATIENCE, eventually

Opened = Callable[..., Reader[Any]]


@pytest.fixture
def log() -> Log:
    """Of two partitions."""
    return Log(2)


@pytest.fixture
def broker(log: Log) -> Iterator[ScriptedBroker]:
    with log.served() as broker:
        yield broker


@pytest.fixture
def opened(record_client: str, broker: ScriptedBroker) -> Iterator[Opened]:
    """``opened({partition: offset})``: readers of the log."""
    readers: list[Reader[Any]] = []

    def open_(
        at: dict[int, int], services: Services | None = None, value: Any = int, *, whole: bool = False, **config: Any
    ) -> Reader[Any]:
        job = JobContext("job", Term(1), {"bootstrap_servers": broker.address})
        task = TaskContext(job, 0, 1, "numbers", services or Services())
        soon = {"fetch.wait.max.ms": 10, **config}
        source: Any = KafkaSource.records if whole else KafkaSource
        readers.append(source("in", value=value, config=soon).reader(task, positions(at)))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.close()


def positions(at: dict[int, int]) -> dict[SplitId, Any]:
    return {split_id("in", partition): position(offset, f"id-{partition}") for partition, offset in at.items()}


def read_from(at: dict[int, tuple[int, int]]) -> dict[SplitId, Any]:
    """``{partition: (first, next)}``: where each was read first, and where it is read next."""
    begun = positions({partition: first for partition, (first, _) in at.items()})
    return {split: moved(where, at[partition_of(split)][1]) for split, where in begun.items()}


def at(reader: Reader[Any]) -> dict[int, int]:
    return {partition_of(split): offset_of(where) for split, where in reader.positions().items()}


def ends(at: dict[int, int]) -> Positions:
    return positions(at)


def read_to(reader: Reader[Any], end: dict[int, int], most: int = 100) -> list[Any]:
    """All values up to there. After each batch the position is behind the last record of it, or further."""
    found: list[Any] = []

    def there() -> bool:
        batch = reader.poll(most, 0.1)
        if batch is not None:
            assert len(batch.values) <= most
            found.extend(batch.values)
        return reader.has_reached(ends(end))

    eventually(there, f"{end} is reached")
    return found


def fetched_all(log: Log, partition: int = 0) -> None:
    """The client has all that is there, and has been told twice that there is no more."""
    part = log.parts[partition]
    eventually(lambda: part.fetched_from[-3:] == [part.end] * 3, "everything is fetched")


# ---------------------------------------------------------------- what moves a position


def test_a_position_is_where_to_go_on(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1", b"2", b"3")
    log.append(1, b"10", b"11")
    reader = opened({0: 1, 1: 0})

    assert sorted(read_to(reader, {0: 4, 1: 2})) == [1, 2, 3, 10, 11]
    assert reader.positions() == read_from({0: (1, 4), 1: (0, 2)})


def test_an_offset_behind_the_end_of_its_partition_is_refused_and_moves_nothing(log: Log, opened: Opened) -> None:
    """A broker stores the offsets that a producer states within a batch. Records behind it would be skipped."""
    log.append(0, b"0")
    log.append(0, b"1", ahead=3)
    reader = opened({0: 0})

    with pytest.raises(InputLost, match=r"in/0 .* offset 4, .* ends at 2") as lost:
        read_to(reader, {0: 5})

    assert lost.value.cause is LossCause.ALTERED
    assert at(reader) == {0: 0}


def test_what_is_fetched_and_not_returned_moves_nothing(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1", b"2")
    reader = opened({0: 0})
    fetched_all(log)

    assert at(reader) == {0: 0}
    for done in (1, 2, 3):
        batch = reader.poll(1, 0)
        assert batch is not None and batch.values == [done - 1]
        assert at(reader) == {0: done}


class Asking(Codec[int]):
    """A codec that decodes one record at a time, as one that asks a server does."""

    type, name, schema = int, "asking", "int"

    def encode(self, value: int) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes) -> int:
        return int(data)


def test_records_that_take_long_are_batches_of_their_own(
    log: Log, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record may take a request, and a checkpoint waits for the batch: even for the first one of a reader."""
    monkeypatch.setattr(reader_module, "_DECODED_AT_ONCE", 0.0)
    log.append(0, b"0", b"1", b"bad", b"3")
    refused: list[int] = []
    reader = opened(
        {0: 0}, Services(reject_record=lambda source, raw, error: refused.append(raw.offset)), value=Asking()
    )
    fetched_all(log)

    found = []
    for number in range(1, 5):
        batch = reader.poll(100, 0)
        found.append(batch and batch.values)
        assert at(reader) == {0: number}
        assert reader.list_splits_at_end() == ([] if number < 4 else [split_id("in", 0)])
    assert found == [[0], [1], None, [3]]
    assert refused == [2]


@pytest.mark.limits(decoded_bytes=4)
def test_a_batch_ends_before_its_values_have_too_many_bytes(log: Log, opened: Opened) -> None:
    """A decoded value may take fifty times its bytes."""
    log.append(0, b"1", b"22", b"333", b"4444444", b"55", b"66")
    reader = opened({0: 0})
    fetched_all(log)

    found = []
    for number in (2, 3, 4, 6):
        batch = reader.poll(100, 0)
        found.append(batch and batch.values)
        assert at(reader) == {0: number}
    assert found == [[1, 22], [333], [4444444], [55, 66]]


@pytest.mark.limits(decoded_bytes=200)
@pytest.mark.parametrize("whole", [False, True])
def test_a_batch_ends_before_its_records_have_too_many_headers(log: Log, opened: Opened, whole: bool) -> None:
    """Two bytes in the log are a hundred as an object. Those of which one cannot be read do not end the count."""
    many, few = [(b"", b"")] * 8, [(b"\xff", b"")]
    for headers in (few, many, few, many, many, few):
        log.append(0, b"1", headers=headers)
    refused: list[int] = []
    reader = opened({0: 0}, Services(lambda name, raw, error: refused.append(raw.offset)), whole=whole)
    fetched_all(log)

    ends = []
    while at(reader) != {0: 6}:
        reader.poll(100, 0.1)
        if at(reader) not in ends:
            ends.append(at(reader))
    assert ends == [{0: 3}, {0: 4}, {0: 6}]
    assert refused == ([0, 2, 5] if whole else [])


@pytest.mark.limits(decoded_bytes=4)
def test_a_batch_ends_before_its_keys_have_too_many_bytes_if_they_are_decoded() -> None:
    records = MessageRecords("in", [Message("in", 0, offset, key=b"333", value=b"1") for offset in range(3)])

    assert [records.count_within(4, keys=keys) for keys in (False, True)] == [3, 1]


def test_who_waits_is_given_what_comes_meanwhile(log: Log, opened: Opened) -> None:
    reader = opened({0: 0})
    fetched_all(log)
    assert reader.poll(1, 0) is None
    threading.Thread(target=lambda: log.append(0, b"0")).start()

    batch = reader.poll(10, PATIENCE)

    assert batch is not None and batch.values == [0]


def test_who_waits_takes_as_many_as_it_may_of_what_has_come(log: Log, opened: Opened) -> None:
    """And not the first record alone, which is what the client gives to who waits."""
    reader = opened({0: 0})
    fetched_all(log)
    assert reader.poll(1, 0) is None
    threading.Thread(target=lambda: log.append(0, b"0", b"1", b"2")).start()

    batch = reader.poll(2, PATIENCE)

    assert batch is not None and batch.values == [0, 1]
    assert read_to(reader, {0: 3}) == [2]


def test_control_records_at_the_end_are_passed_when_the_end_is_reached(log: Log, opened: Opened) -> None:
    log.append(0, b"0", None, b"2", None)
    reader = opened({0: 0})
    fetched_all(log)

    batch = reader.poll(2, 0)
    assert batch is not None and batch.values == [0, 2]
    assert at(reader) == {0: 3}
    assert read_to(reader, {0: 4}) == []
    assert at(reader) == {0: 4}
    assert read_to(opened(at(reader)), {0: 4}) == []


def test_an_end_behind_which_more_has_come_moves_nothing_back(log: Log, opened: Opened) -> None:
    """One poll returns a record, the end as it was, and a record behind it: that one would be read twice."""
    log.append(0, b"0")
    reader = opened({0: 0})
    fetched_all(log)
    log.append(0, b"1")
    fetched_all(log)

    batch = reader.poll(10, 0)

    assert batch is not None and batch.values == [0, 1]
    assert at(reader) == {0: 2}


def test_a_refused_record_moves_nothing_even_if_the_end_is_reached(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"bad", None)
    log.append(1, None)
    reader = opened({0: 0, 1: 0})
    fetched_all(log, 0)
    fetched_all(log, 1)

    for _ in range(3):
        with pytest.raises(PoisonRecord, match="in/0/1"):
            reader.poll(10, 0)
        assert at(reader) == {0: 0, 1: 0}


def test_what_was_put_aside_is_passed(log: Log, opened: Opened) -> None:
    aside: list[RawRecord] = []
    log.append(0, b"bad", b"1", b"bad")
    log.append(1, b"bad")
    reader = opened({0: 0, 1: 0}, Services(reject_record=lambda source, raw, error: aside.append(raw)))
    fetched_all(log, 0)
    fetched_all(log, 1)

    batch = reader.poll(10, 0)

    assert batch is not None and batch.values == [1]
    assert sorted((raw.partition, raw.offset) for raw in aside) == [(0, 0), (0, 2), (1, 0)]
    assert at(reader) == {0: 3, 1: 1}


def test_a_poll_of_which_all_is_put_aside_has_no_rows_and_moves_on(log: Log, opened: Opened) -> None:
    log.append(0, b"bad")
    reader = opened({0: 0}, Services(reject_record=lambda source, raw, error: None))
    fetched_all(log)

    assert reader.poll(10, 0) is None
    assert at(reader) == {0: 1}


# ---------------------------------------------------------------- splits


def test_a_split_that_is_added_begins_where_it_is_said_and_the_others_go_on(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1")
    log.append(1, b"10", b"11")
    reader = opened({0: 0})
    assert read_to(reader, {0: 2}) == [0, 1]

    reader.assign(positions({1: 1}))

    assert read_to(reader, {0: 2, 1: 2}) == [11]
    assert reader.positions() == read_from({0: (0, 2), 1: (1, 2)})


def test_a_reader_without_splits_waits_for_one(log: Log, opened: Opened) -> None:
    log.append(0, b"0")
    reader = opened({})

    assert reader.poll(10, 0) is None
    assert reader.positions() == {}
    assert reader.has_reached({})
    reader.assign(positions({0: 0}))
    assert read_to(reader, {0: 1}) == [0]


def test_an_end_is_reached_by_all_of_its_splits(log: Log, opened: Opened) -> None:
    reader = opened({0: 4, 1: 2})

    assert reader.has_reached(ends({0: 4, 1: 2}))
    assert reader.has_reached(ends({0: 3}))
    assert not reader.has_reached(ends({0: 4, 1: 3}))
    assert not reader.has_reached(ends({0: 4, 2: 0})), "a partition that was added is in the end before it is assigned"


def test_what_a_stored_position_says_besides_its_offset_stays(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1")
    reader = opened({})

    reader.assign({SplitId("in/0"): {"offset": 1, "of": "an earlier version"}})

    assert read_to(reader, {0: 2}) == [1]
    assert reader.positions() == {"in/0": {"offset": 2, "of": "an earlier version"}}


@pytest.mark.parametrize("at", [{}, {"offset": "3"}])
def test_what_has_no_offset_is_no_position(at: dict[str, Any]) -> None:
    with pytest.raises(Bug, match="not a Kafka position"):
        offset_of(at)


def test_positions_of_another_topic_are_refused(broker: ScriptedBroker) -> None:
    job = JobContext("job", Term(1), {"bootstrap_servers": broker.address})
    foreign = {split_id("other", 0): position(0, ""), split_id("in", 1): position(0, "")}

    with pytest.raises(ConfigError, match="positions of other/0, but the source now reads 'in'"):
        KafkaSource("in").reader(TaskContext(job, 0, 1, "numbers"), foreign)


# ---------------------------------------------------------------- how far behind


def test_the_lag_is_what_is_left_up_to_the_end_that_was_told(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1", b"2", None)
    reader = opened({0: 0, 1: 0})
    log.append(1, b"10")
    fetched_all(log, 0)
    fetched_all(log, 1)

    assert reader.lag() == 5
    assert read_to(reader, {0: 4, 1: 1}) != []
    assert reader.lag() == 0


def test_who_reads_an_empty_partition_is_not_behind(log: Log, opened: Opened) -> None:
    reader = opened({0: 0})
    fetched_all(log)

    assert reader.lag() == 0


def test_nobody_knows_the_lag_of_what_was_never_fetched(log: Log, opened: Opened) -> None:
    log.parts[1].leader = -1
    log.append(0, b"0")
    reader = opened({0: 0, 1: 0})
    fetched_all(log, 0)

    assert reader.lag() is None


def test_nobody_knows_the_lag_while_a_partition_waits(log: Log, opened: Opened) -> None:
    """Nothing is fetched of it, so what was told of its end grows old."""
    log.append(0, b"0")
    reader = opened({0: 0, 1: 0})
    fetched_all(log, 0)
    fetched_all(log, 1)
    assert reader.lag() == 1

    reader.pause([split_id("in", 1)])
    log.append(1, b"1")
    assert reader.lag() is None
    reader.pause([])
    eventually(lambda: reader.lag() == 2, "the end is told again")


# ---------------------------------------------------------------- errors


def raised(reader: Reader[Any]) -> KafkaEosError:
    """What polling raises in the end."""
    found: list[KafkaEosError] = []

    def raises() -> bool:
        try:
            reader.poll(10, 0.1)
        except KafkaEosError as error:
            found.append(error)
        return bool(found)

    eventually(raises, "an error")
    return found[0]


def test_what_the_log_has_no_more_is_lost(log: Log, opened: Opened) -> None:
    log.parts[0].refused = ErrorCode.offset_out_of_range
    error = raised(opened({0: 7}))

    assert isinstance(error, InputLost)
    assert "read in/0 at offset 7: " in str(error)
    assert error.cause is LossCause.ALTERED, "the log does not begin behind it: it was cut"


def test_what_expired_in_front_of_a_reader_is_told_from_a_log_that_was_cut(log: Log, opened: Opened) -> None:
    log.parts[0].start = log.parts[0].end = 9
    error = raised(opened({0: 7}))

    assert isinstance(error, InputLost)
    assert error.cause is LossCause.EXPIRED


def test_what_passes_is_waited_for(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1")
    log.append(1, b"10")
    reader = opened({0: 0, 1: 0})
    assert sorted(read_to(reader, {0: 2, 1: 1})) == [0, 1, 10]
    log.parts[0].refused = ErrorCode.request_timed_out
    fetched = len(log.parts[0].fetched_from)
    with log.changed:
        log.changed.notify_all()
    eventually(lambda: len(log.parts[0].fetched_from) > fetched + 1, "it was refused")

    assert reader.poll(10, 0) is None
    log.parts[0].refused = ErrorCode.none
    log.append(0, b"2")
    assert read_to(reader, {0: 3}) == [2]


def test_an_error_of_the_topic_ends_the_attempt(log: Log, opened: Opened) -> None:
    log.parts[0].refused = ErrorCode.topic_authorization_failed

    error = raised(opened({0: 5}))

    assert isinstance(error, ConfigError)
    assert "read in/0 at offset 5: " in str(error)


def test_what_is_damaged_is_named_by_its_own_offset(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1", b"2")
    log.damage(0, 1)
    reader = opened({0: 0})

    error = raised(reader)

    assert isinstance(error, Fatal)
    assert "read in/0 at offset 1: " in str(error)
    assert at(reader)[0] < 2


def test_a_batch_that_unpacks_too_large_names_the_limit_and_the_setting(
    log: Log, broker: ScriptedBroker, opened: Opened
) -> None:
    """Less than 1 kB of it are 8 MB."""
    log.append(0, b"7" + b" " * 8_000_000, packed=True)

    error = raised(opened({0: 0}, **{"fetch.max.bytes": 1_000_000, "receive.message.max.bytes": 2_000_000}))

    assert isinstance(error, Fatal)
    assert "read in/0 at offset 0: " in str(error)
    assert "raise that in the source's config=…" in str(error)
    assert "receive.message.max.bytes" in str(error)
    assert read_to(opened({0: 0}), {0: 1}) == [7]


def test_an_error_of_no_partition_names_the_topic(log: Log, opened: Opened) -> None:
    log.group_error = ErrorCode.group_authorization_failed

    error = raised(opened({0: 0}))

    assert isinstance(error, ConfigError)
    assert "read in: " in str(error)


# ---------------------------------------------------------------- the client behind it


def test_a_client_that_has_forgotten_every_broker_is_replaced_and_nothing_is_read_twice_or_never(
    log: Log, broker: ScriptedBroker, opened: Opened
) -> None:
    """A broker that was just started names none, not even itself; the client then never asks again."""
    log.append(0, b"0", b"1")
    log.append(1, b"10")
    reader = opened({0: 0, 1: 0}, **{"topic.metadata.refresh.interval.ms": 50})
    assert sorted(read_to(reader, {0: 2, 1: 1})) == [0, 1, 10]
    log.append(0, b"2", b"3")
    fetched_all(log)
    assert read_to(reader, {0: 3}, most=1) == [2]
    log.port = 0
    eventually(lambda: all(link.fileno() < 0 for link in broker.links), "every broker is forgotten")
    log.port = broker.port

    assert read_to(reader, {0: 4}) == [3]
    log.append(1, b"11")
    assert read_to(reader, {1: 2}) == [11]


def test_who_is_closed_holds_no_connection(log: Log, broker: ScriptedBroker, opened: Opened) -> None:
    reader = opened({0: 0})
    fetched_all(log)

    reader.close()

    eventually(lambda: all(link.fileno() < 0 for link in broker.links), "the broker has seen their end")
    reader.close()


# ---------------------------------------------------------------- splits that wait


def test_a_partition_that_waits_brings_nothing_of_what_was_fetched_and_goes_on_where_it_was(
    log: Log, opened: Opened
) -> None:
    log.append(0, *(b"%d" % n for n in range(100)))
    log.append(1, *(b"%d" % n for n in range(100, 200)))
    reader = opened({0: 0, 1: 0})
    fetched_all(log)
    fetched_all(log, 1)
    found: list[Any] = []
    for turn in range(10):
        waits = turn % 2
        reader.pause([split_id("in", waits)])
        stands = at(reader)[waits]
        found += read_to(reader, {1 - waits: 20 * (turn // 2 + 1)}, 7)
        assert at(reader)[waits] == stands

    reader.pause([])
    assert sorted(found + read_to(reader, {0: 100, 1: 100})) == list(range(200))
    assert [value for value in found if value < 100] == sorted(value for value in found if value < 100)


def test_a_partition_that_waits_does_so_with_the_clients_successor_too(
    log: Log, broker: ScriptedBroker, opened: Opened
) -> None:
    reader = opened({0: 0, 1: 0}, **{"topic.metadata.refresh.interval.ms": 50})
    assert reader.poll(1, 0.1) is None
    reader.pause([split_id("in", 0)])
    log.port = 0
    eventually(lambda: all(link.fileno() < 0 for link in broker.links), "every broker is forgotten")
    fetched = len(log.parts[0].fetched_from)
    log.port = broker.port

    log.append(0, b"0")
    log.append(1, b"10")
    assert read_to(reader, {1: 1}) == [10]
    assert reader.poll(10, 0.3) is None
    assert len(log.parts[0].fetched_from) == fetched, "what waits is not fetched either: it would fill the memory"
    reader.pause([])
    assert read_to(reader, {0: 1}) == [0]


def test_a_partition_is_at_its_end_until_more_comes_of_it(log: Log, opened: Opened) -> None:
    log.append(0, b"0", b"1")
    reader = opened({0: 0, 1: 0})
    assert reader.list_splits_at_end() == []

    def ends() -> set[str]:
        reader.poll(1, 0.05)
        return set(reader.list_splits_at_end())

    eventually(lambda: ends() == {"in/0", "in/1"}, "both are at their ends")
    log.append(0, b"2", b"3", b"4")
    eventually(lambda: at(reader)[0] == 3 or not ends(), "more is read")
    assert set(reader.list_splits_at_end()) == {"in/1"}
    eventually(lambda: ends() == {"in/0", "in/1"}, "both are at their ends again")


# ---------------------------------------------------------------- what the client has returned, and nobody has read yet


def buffer(reader: Reader[Any], *batches: list[tuple[int, int]]) -> KafkaReader[Any]:
    """Partitions and offsets of records that a fetch has returned."""
    assert isinstance(reader, KafkaReader)
    reader._fetched = [fetched_records(*batch) for batch in batches]
    return reader


def places(records: FetchedRecords | None) -> list[tuple[Any, Any]]:
    return [] if records is None else list(zip(records.partitions, records.offsets, strict=True))


def test_buffered_records_of_partitions_that_wait_stay_where_they_are(opened: Opened) -> None:
    reader = buffer(opened({}), [(0, 0), (1, 0), (0, 1), (1, 1)], [(1, 2), (1, 3), (1, 4)])
    reader._paused = frozenset({("in", 0)})

    taken = [places(reader._next_of_one_topic(most)) for most in (10, 2, 2, 2)]
    reader._paused = frozenset()
    taken += [places(reader._next_of_one_topic(1)) for _ in range(3)]

    assert taken == [[(1, 0), (1, 1)], [(1, 2), (1, 3)], [(1, 4)], [], [(0, 0)], [(0, 1)], []]


def test_an_end_is_passed_once_the_records_before_it_are_read(opened: Opened) -> None:
    reader = buffer(opened({0: 0, 1: 0, 2: 0}), [(2, 4), (0, 5)])
    reader._ends, reader._at_end = {("in", 0): 6, ("in", 1): 3, ("in", 2): 5}, {("in", 0), ("in", 1), ("in", 2)}

    reader._settle()
    assert (at(reader), reader.list_splits_at_end()) == ({0: 0, 1: 3, 2: 0}, ["in/1"])

    buffer(reader)._settle()
    assert (at(reader), {*reader.list_splits_at_end()}) == ({0: 6, 1: 3, 2: 5}, {"in/0", "in/1", "in/2"})
