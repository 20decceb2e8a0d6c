"""Which topics a source reads, where it ends for good, and what its header filter leaves out: without a broker, or
against a log at the wire."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.abc.source import Reader
from kafka_eos.codecs import BytesCodec, codec_for
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.librdkafka import TopicPartition
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.cluster_facts import TopicMetadata, _topic_facts
from kafka_eos.connectors.kafka.rpc.messages.cluster import MetadataPartition, MetadataTopic
from kafka_eos.connectors.kafka.source.fetched_records import MessageRecords
from kafka_eos.connectors.kafka.source.message_decoder import MessageDecoder, record_decoder
from kafka_eos.connectors.kafka.source.reader import KafkaReader
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.core.errors import ConfigError, PoisonRecord, UserError
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RawRecord
from kafka_eos.ops.dead_letters.topics import find_dead_letter_topics
from tests.kafka_log import TOPIC_ID, Log, Part, fetched_records
from tests.scripted_broker import ScriptedBroker
from tests.waiting import eventually


@pytest.fixture
def log() -> Log:
    """Of two partitions, with four records each: from second 1 on, one a second."""
    log = Log(2)
    for partition in (0, 1):
        for second in range(1, 5):
            log.append(partition, f"{partition}{second}".encode(), timestamp=second * 1000)
    return log


@pytest.fixture
def broker(log: Log) -> Iterator[ScriptedBroker]:
    with log.served() as broker:
        yield broker


@pytest.fixture
def ctx(broker: ScriptedBroker) -> JobContext:
    return JobContext("job", Term(1), {"bootstrap_servers": broker.address})


@pytest.fixture
def opened(record_client: str, ctx: JobContext) -> Iterator[Callable[..., Reader[Any]]]:
    readers: list[Reader[Any]] = []

    def open_(source: KafkaSource[Any], positions: Positions, services: Services | None = None) -> Reader[Any]:
        readers.append(source.reader(TaskContext(ctx, 0, 1, "numbers", services or Services()), positions))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.close()


def source_of(**options: Any) -> KafkaSource[Any]:
    return KafkaSource("in", value=str, config={"fetch.wait.max.ms": 10}, **options)


def at(positions: Positions, part: str = "offset") -> list[Any]:
    return [where.get(part) for _, where in sorted(positions.items())]


def read(reader: Reader[Any], ends: Positions) -> list[str]:
    found: list[str] = []

    def there() -> bool:
        batch = reader.poll(3, 0.05)
        found.extend([] if batch is None else batch.values)
        return reader.has_reached(ends)

    eventually(there, "the end")
    return sorted(found)


# ---------------------------------------------------------------- which topics


def test_a_pattern_must_match_whole_names_and_leaves_out_what_is_excluded() -> None:
    topics = Subscription.of(re.compile(r"orders-.+"), ["orders-old"])

    assert topics.select_topics(["orders", "orders-a", "orders-old", "my-orders-b"]) == ["orders-a"]
    assert topics.is_excluded("orders-old")
    assert topics.can_read("orders-old"), "its positions stay known"


def test_an_excluded_name_that_was_never_a_topic_may_be_mistyped() -> None:
    topics = Subscription.of(re.compile("orders-.+"), ["orders-tset", "orders-gone", "orders-us"])
    known = [SplitId("orders-gone/0"), SplitId("orders-eu/0")]

    (said,) = topics.find_unknown_exclusions(["orders-eu", "orders-test", "orders-us", "others"], known)

    assert said.startswith("exclude= has 'orders-tset', but the cluster shows no such topic.")
    assert "The source reads: orders-eu, orders-test. If one" in said
    assert topics.find_unknown_exclusions(["orders-tset", "orders-us"], known) == []
    (said,) = topics.find_unknown_exclusions([], known)
    assert "exclude= has 'orders-tset', 'orders-us', but the cluster" in said
    assert "The source reads: none." in said
    (said,) = topics.find_unknown_exclusions([f"orders-{n:03}" for n in range(12)], [])
    assert "orders-009 and 2 more. If one" in said


def test_positions_of_topics_that_are_read_no_more_are_all_named() -> None:
    topics = Subscription.of(re.compile("orders-.+"), ["orders-old", "orders-a"])
    splits = [SplitId(f"{topic}/0") for topic in ("others", "orders-eu", "orders-old", "bills")]

    topics.check(splits[1:3])
    for known in (splits, splits[::-1]):
        with pytest.raises(ConfigError, match="positions of bills/0, others/0, but the source now reads topics that"):
            topics.check(known)
    with pytest.raises(ConfigError, match="positions of others/0, but the source now reads 'bills, orders-eu'"):
        Subscription.of(["bills", "orders-eu"]).check([splits[3], splits[1], splits[0]])


@pytest.mark.parametrize(
    ("topics", "described"),
    [
        (Subscription.of("a"), {"topic": "a"}),
        (Subscription.of(["b", "a"]), {"topics": "b, a"}),
        (Subscription.of(re.compile("a.+")), {"topics": "those that match a.+"}),
        (
            Subscription.of(re.compile("a.+"), ["ad", "ac", "ab"]),
            {"topics": "those that match a.+", "exclude": "ab, ac, ad"},
        ),
    ],
)
def test_the_plan_shows_which_topics_are_read(topics: Subscription, described: object) -> None:
    assert topics.describe() == described


def test_named_topics_are_wanted_whether_they_are_there_or_not() -> None:
    assert Subscription.of(["a", "b"]).select_topics(["b", "c"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("topics", "options", "why"),
    [
        ([], {}, "a source reads one topic, several different ones, or a pattern"),
        (["a", "a"], {}, "several different ones"),
        (["a", "no topic"], {}, "'no topic' is not a Kafka topic name"),
        ("", {}, "'' is not a Kafka topic name"),
        ("orders-.+", {}, r"'orders-\.\+' is not a Kafka topic name.*written as re.compile"),
        ("bücher", {}, "'bücher' is not a Kafka topic name: use 1 to 249 letters of ASCII"),
        ("a" * 250, {}, "is not a Kafka topic name"),
        (re.compile(b"a.*"), {}, r"a topic pattern must be compiled from text, .* not from b'a\.\*'"),
        ("a", {"exclude": ["b"]}, "exclude= needs a pattern of topics"),
        (re.compile("a.*"), {"exclude": "ab"}, r"exclude must be a list of topics: exclude=\['ab'\]"),
        (
            re.compile("a-.*"),
            {"exclude": ["a-b", "b-a", "a"]},
            "exclude= has 'a', 'b-a', which the pattern 'a-.*' does not",
        ),
        ("a", {"header_filter": b"x"}, "header_filter must be a function"),
        ("a", {"until": "now"}, "until='now': use \"latest\""),
        ("a", {"until": {}}, "until={}: use"),
        (
            "a",
            {"start": datetime(2026, 1, 2), "until": datetime(2026, 1, 1)},
            "is not after start=.*: the source would read nothing",
        ),
        ("a", {"until": {0: -1}}, "until="),
        ("a", {"until": {"b/0": 1}}, "until="),
        (["a", "b"], {"until": {0: 1}}, "until="),
    ],
)
def test_what_makes_no_source_is_refused(topics: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        KafkaSource(topics, **options)


def test_positions_of_topics_that_no_pattern_matches_are_refused(ctx: JobContext) -> None:
    known: Any = {SplitId("other/0"): {"offset": 0, "topic_id": "x"}}

    with pytest.raises(ConfigError, match="positions of other/0, but the source now reads topics that match 'i.*'"):
        KafkaSource(re.compile("i.*")).discover(ctx, known)


def test_positions_say_the_same_whether_a_source_reads_one_topic_or_more(ctx: JobContext) -> None:
    """So those of a checkpoint of one topic go on in a list or a pattern that has it, and back."""
    known = KafkaSource("in").discover(ctx, None)

    assert {*known[SplitId("in/0")]} == {"offset", "topic_id", "begin"}
    for source in (KafkaSource(["in"]), KafkaSource(re.compile("i.*")), KafkaSource("in")):
        assert source.discover(ctx, known) == known


# ---------------------------------------------------------------- where it ends


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("latest", [4, 4]),
        (datetime.fromtimestamp(3, UTC), [2, 2]),
        (datetime.fromtimestamp(9, UTC), [4, 4]),
        ({0: 1, 1: 3}, [1, 3]),
        ({"in/0": 0, "in/1": 4}, [0, 4]),
    ],
)
def test_an_end_is_looked_up_at_the_first_start_and_kept(ctx: JobContext, log: Log, until: Any, end: list[int]) -> None:
    source = source_of(until=until)
    known = source.discover(ctx, None)
    log.append(0, b"later", timestamp=2_000)

    assert at(known, "until") == end
    assert source.discover(ctx, known) == known
    bounds = source.bounds(known)
    assert bounds is not None
    assert at(bounds) == end


def test_what_begins_behind_its_end_is_not_read(ctx: JobContext) -> None:
    known = source_of(start="latest", until={0: 1, 1: 4}).discover(ctx, None)

    assert (at(known), at(known, "until")) == ([4, 4], [4, 4])


def test_a_partition_that_comes_later_lies_behind_the_end(ctx: JobContext, log: Log) -> None:
    source = source_of(until="latest")
    known = {split: where for split, where in source.discover(ctx, None).items() if split.endswith("0")}

    assert source.discover(ctx, known) == known


def test_a_source_that_gets_an_end_later_gets_it_then_and_one_that_loses_it_goes_on(ctx: JobContext) -> None:
    endless = source_of().discover(ctx, None)
    bounded = source_of(until="latest").discover(ctx, endless)

    assert at(bounded, "until") == [4, 4]
    assert source_of().discover(ctx, bounded) == endless
    assert source_of().bounds(bounded) is None


def test_what_is_found_at_the_start_that_looks_the_end_up_is_read_up_to_it(ctx: JobContext) -> None:
    known = {split: where for split, where in source_of().discover(ctx, None).items() if split.endswith("0")}

    assert at(source_of(until="latest").discover(ctx, known), "until") == [4, 4]


def test_an_end_that_nobody_can_tell_is_refused(ctx: JobContext) -> None:
    with pytest.raises(ConfigError, match="in the future"):
        source_of(until=datetime.now(UTC) + timedelta(hours=1)).discover(ctx, None)
    with pytest.raises(ConfigError, match="until= ends in/1 before offset 5, and its committed records end before 4"):
        source_of(until={0: 1, 1: 5}).discover(ctx, None)
    with pytest.raises(ConfigError, match="until= has no offset for in/1"):
        source_of(until={0: 1}).discover(ctx, None)
    with pytest.raises(ConfigError, match="until= lists in/7, but the source reads in/0, in/1: remove"):
        source_of(until={0: 1, 1: 1, 7: 1}).discover(ctx, None)


def test_nothing_is_returned_behind_the_end(ctx: JobContext, log: Log, opened: Callable[..., Reader[Any]]) -> None:
    """Also what came into the topic long before the reader did; and there is no lag left."""
    source = source_of(until={0: 2, 1: 3})
    known = source.discover(ctx, None)
    bounds = source.bounds(known)
    assert bounds is not None
    log.append(0, *[b"later"] * 5)
    reader = opened(source, known)

    assert read(reader, bounds) == ["01", "02", "11", "12", "13"]
    assert at(reader.positions()) == [2, 3]
    assert all(reader.poll(10, 0.05) is None for _ in range(3))
    assert sorted(reader.list_splits_at_end()) == ["in/0", "in/1"]
    assert reader.lag() == 0


def test_a_reader_that_begins_at_the_end_is_over_at_once(ctx: JobContext, opened: Callable[..., Reader[Any]]) -> None:
    source = source_of(until={0: 2, 1: 0})
    known = source.discover(ctx, None)
    reader = opened(source, {split: {**where, "offset": where["until"]} for split, where in known.items()})

    assert sorted(reader.list_splits_at_end()) == ["in/0", "in/1"]
    assert reader.poll(10, 0) is None
    reader.pause([SplitId("in/0")])
    reader.pause([])


def test_the_client_hears_of_partitions_that_it_has_alone(
    ctx: JobContext, log: Log, opened: Callable[..., Reader[Any]]
) -> None:
    """One is over since the start, and one since its last record was read."""
    source = source_of(until={0: 0, 1: 2})
    reader = opened(source, source.discover(ctx, None))
    assert isinstance(reader, KafkaReader)

    def told() -> list[tuple[str, int, int]]:
        found: list[TopicPartition] = []
        reader._switch(found.extend, [("in", 0), ("in", 1), ("in", 2)])
        return [(each.topic, each.partition, each.offset) for each in found]

    before = told()
    eventually(lambda: reader.poll(10, 0.05) is None and len(reader.list_splits_at_end()) == 2, "both ends")

    assert [each[:2] for each in before] == [("in", 1), ("in", 2)]
    assert [each[:2] for each in told()] == [("in", 2)]
    assert at(reader.positions()) == [0, 2]
    assert log.parts[0].fetched_from == []


def test_an_end_is_the_first_record_behind_it_or_the_last_before_it(
    ctx: JobContext, opened: Callable[..., Reader[Any]]
) -> None:
    """In front of the end there may be control records, which are not returned."""
    source = source_of(until={0: 2, 1: 3})
    reader = opened(source, source.discover(ctx, None))
    assert isinstance(reader, KafkaReader)

    def ends(*offsets: tuple[int, int], known: dict[tuple[str, int], int]) -> tuple[list[Any], dict[Any, int]]:
        reader._ends = known
        kept = reader._before_the_end(fetched_records(*offsets))
        return list(zip(kept.partitions, kept.offsets, strict=True)), reader._ends

    assert ends((0, 0), (1, 0), (2, 9), (1, 1), known={}) == ([(0, 0), (1, 0), (2, 9), (1, 1)], {})
    assert ends((0, 1), (1, 2), known={}) == ([(0, 1), (1, 2)], {("in", 0): 2, ("in", 1): 3})
    assert ends((1, 1), (0, 5), (0, 2), (1, 3), known={}) == ([(1, 1)], {("in", 0): 2, ("in", 1): 3})


def test_nothing_of_an_excluded_topic_is_read_and_its_positions_stay(
    log: Log, opened: Callable[..., Reader[Any]]
) -> None:
    known = {SplitId("in/0"): {"offset": 1, "topic_id": "id", "begin": 0}}
    reader = opened(KafkaSource(re.compile("in.*"), value=str, exclude=["in"]), known)

    reader.pause([SplitId("in/0")])
    reader.pause([])

    assert reader.poll(10, 0.1) is None
    assert (list(reader.list_splits_at_end()), reader.lag()) == (["in/0"], 0)
    assert reader.positions() == known
    assert log.parts[0].fetched_from == []


def test_an_end_behind_control_records_is_reached(
    ctx: JobContext, log: Log, opened: Callable[..., Reader[Any]]
) -> None:
    """The end of what is there lies past the marker of the last transaction, and more came behind that."""
    log.append(0, None)
    source = source_of(until="latest")
    known = source.discover(ctx, None)
    log.append(0, b"later", None)
    bounds = source.bounds(known)
    assert bounds is not None

    assert read(opened(source, known), bounds) == ["01", "02", "03", "04", "11", "12", "13", "14"]


# ---------------------------------------------------------------- what the cluster says of a topic


def test_a_topic_is_described_with_the_partitions_that_have_a_leader_and_those_without(
    broker: ScriptedBroker, log: Log
) -> None:
    log.parts = [Part() for _ in range(4)]
    log.parts[0].leader = log.parts[3].leader = -1

    with KafkaRequests(Cluster(broker.address)) as rpc:
        found = rpc.topic("in")
        ids = rpc.topic_ids(["in"])
        for part in log.parts:
            part.leader = -1
        alone, of_no_leader = rpc.topic("in"), rpc.topic_ids(["in"])

    assert found is not None
    assert (found.partitions, [*found.leaderless], {*found.leaders}) == (4, [0, 3], {1})
    assert alone is not None
    assert (alone.partitions, [*alone.leaderless], {*alone.leaders}) == (4, [0, 1, 2, 3], set())
    assert ids == of_no_leader == {"in": {str(TOPIC_ID)}}


def test_a_topic_has_the_replicas_of_its_partition_with_the_fewest_and_no_facts_if_it_is_unknown() -> None:
    parts = [(2, -1, 3), (0, 5, 2), (1, 4, 3), (3, -1, 4)]
    found = _topic_facts(MetadataTopic(0, "in", "id", tuple(MetadataPartition(*part) for part in parts), -(2**31)))

    assert found == TopicMetadata("id", 4, 2, (2, 3), None, frozenset({4, 5}))
    assert _topic_facts(MetadataTopic(5, "in", "id", (), -(2**31))) == TopicMetadata("id", 0, 0, ())
    assert _topic_facts(MetadataTopic(3, "in", "", (), -(2**31))) is None
    with pytest.raises(UserError, match="Metadata of topic in"):
        _topic_facts(MetadataTopic(17, "in", "", (), -(2**31)))


# ---------------------------------------------------------------- the header filter


def raw(offset: int, kind: str | None, value: bytes = b"x") -> RawRecord:
    headers = () if kind is None else (("kind", b"old"), ("kind", kind.encode()))
    return RawRecord("in", 0, offset, -1, None, value, headers)


def test_a_filter_sees_headers_and_leaves_records_out_before_they_are_decoded() -> None:
    source = KafkaSource("in", value=int, header_filter=lambda headers: headers.get("kind") == b"order")
    refused: list[int] = []
    raws = [raw(0, "order", b"1"), raw(1, "other", b"no number"), raw(2, None), raw(3, "order", b"4")]

    batch = source.decode("in", [*raws, raw(4, "order", b"bad")], lambda raw, error: refused.append(raw.offset))

    assert (batch.values, list(batch.origin_rows), refused) == ([1, 4], [0, 3], [4])
    assert [batch.origin.offsets[row] for row in batch.origin_rows] == [0, 3]


def test_a_record_on_which_the_filter_raises_is_refused_like_one_that_cannot_be_decoded() -> None:
    source = KafkaSource("in", value=int, header_filter=lambda headers: headers["kind"] == b"order")
    refused: list[tuple[int, str]] = []

    batch = source.decode(
        "in", [raw(0, None), raw(1, "order", b"2")], lambda raw, error: refused.append((raw.offset, repr(error)))
    )

    assert (batch.values, list(batch.origin_rows), refused) == ([2], [1], [(0, "KeyError('kind')")])


def test_what_a_filter_refuses_behind_the_records_of_a_batch_is_refused_with_its_own() -> None:
    """In the order of the offsets, and once."""
    decoding = MessageDecoder(
        lambda topic: record_decoder(BytesCodec(), codec_for(int)), lambda headers: headers["kind"] == b"order"
    )
    kinds = [None, "order", "other", None, "order", None, "other"]
    raws = [raw(offset, kind, b"bad" if offset == 4 else b"%d" % offset) for offset, kind in enumerate(kinds)]
    left = MessageRecords(
        "in",
        [Message("in", 0, each.offset, None, each.value, list(each.headers), timestamp=(0, -1)) for each in raws],
    )
    refused: list[int] = []
    found = []
    while len(left):
        batch, count, left_out = decoding.batch("in", left, lambda raw, error: refused.append(raw.offset), seconds=0)
        found.append(([record.value for record in batch.values], count, left_out, [*refused]))
        left = left.take(range(count, len(left)))

    assert found == [([1], 4, 1, [0, 3]), ([], 3, 1, [0, 3, 4, 5])]


def test_a_reader_counts_what_its_filter_leaves_out_and_passes_it(
    ctx: JobContext, opened: Callable[..., Reader[Any]]
) -> None:
    """No record of the log has a header."""
    counted: list[tuple[str, int]] = []
    source = source_of(header_filter=lambda headers: "kind" in headers, until="latest")
    known = source.discover(ctx, None)
    bounds = source.bounds(known)
    assert bounds is not None
    reader = opened(source, known, Services(count_filtered=lambda name, records: counted.append((name, records))))

    assert read(reader, bounds) == []
    assert at(reader.positions()) == [4, 4]
    assert sum(records for _, records in counted) == 8
    assert {name for name, _ in counted} == {"numbers"}


def test_a_filter_that_raises_stops_the_job_at_the_record(ctx: JobContext, opened: Callable[..., Reader[Any]]) -> None:
    source = source_of(header_filter=lambda headers: headers["kind"])
    reader = opened(source, source.discover(ctx, None))

    with pytest.raises(PoisonRecord, match=r"in/\d/0"):
        eventually(lambda: reader.poll(10, 0.05), "a record")
    assert at(reader.positions()) == [0, 0]


def test_dead_letters_of_several_topics_are_not_taken_for_those_of_one() -> None:
    pipeline = Pipeline("job")
    source = pipeline.source(KafkaSource(["a", "b"], value=str), name="in", on_error=dead_letter("refused"))
    source.sink(KafkaSink("out", value=str), name="out")

    with pytest.raises(ConfigError, match="'in' reads several topics"):
        find_dead_letter_topics(pipeline.plan(), None)
    with pytest.raises(ConfigError, match="reads a, b, not the topic 'c'"):
        find_dead_letter_topics(pipeline.plan(), None, "c")
    assert find_dead_letter_topics(pipeline.plan(), None, "b").create_replay_sink(None).topic == "b"


def test_dead_letters_of_a_list_with_one_topic_need_no_name() -> None:
    pipeline = Pipeline("job")
    source = pipeline.source(KafkaSource(["a"], value=str), name="in", on_error=dead_letter("refused"))
    source.sink(KafkaSink("out", value=str), name="out")

    assert find_dead_letter_topics(pipeline.plan(), None).topic == "a"
