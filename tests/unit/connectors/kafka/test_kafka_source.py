"""Where a source begins, and whether what it still needs is there: against a log at the wire."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.source import topic_survey as survey
from kafka_eos.connectors.kafka.source.kafka_source import _READ_ALWAYS
from kafka_eos.connectors.kafka.source.positions import partition_of, position, split_id
from kafka_eos.core.errors import ConfigError, InputLost, LossCause, Retryable, UserError
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Positions
from tests.kafka_log import LIST_OFFSETS, Log
from tests.scripted_broker import NOW, SILENCE, ScriptedBroker
from tests.waiting import eventually
from tests.wire import METADATA

EPOCH = EpochId(Epoch(4), Term(3))
OFFSET_COMMIT = 8


@pytest.fixture
def log() -> Log:
    """Of two partitions: offsets 2 to 4 and 0 to 2 of them are there, of which the last is of an open transaction."""
    log = Log(2)
    log.append(0, b"0", b"1", b"2", b"3", timestamp=1_000)
    log.append(1, b"10", timestamp=5_000)
    log.append(1, b"11", timestamp=9_000)
    log.parts[0].start = 2
    log.parts[0].stable, log.parts[1].stable = 3, 2
    return log


@pytest.fixture
def broker(log: Log) -> Iterator[ScriptedBroker]:
    with log.served() as broker:
        yield broker


@pytest.fixture
def ctx(broker: ScriptedBroker) -> JobContext:
    return JobContext("job", Term(1), {"bootstrap_servers": broker.address})


def offsets(positions: Positions) -> dict[int, Any]:
    return {partition_of(split): at["offset"] for split, at in positions.items()}


def asked(broker: ScriptedBroker, key: int) -> int:
    return [request.__api_key__ for request in broker.seen].count(key)


def serve_twin(log: Log, broker: ScriptedBroker) -> Log:
    """Let the broker describe a second topic beside the first."""
    described, twin = log.answers[METADATA], Log(1, "twin")

    def both(request: Any) -> Any:
        twin.port = log.port
        answer = described(request)
        others = [topic for topic in twin.answers[METADATA](request).topics if topic.name == "twin"]
        known = [topic for topic in answer.topics if topic.name == "in"]
        return type(answer)(
            throttle_time=answer.throttle_time,
            brokers=answer.brokers,
            controller_id=answer.controller_id,
            topics=(*known, *others),
        )

    broker.script(METADATA, both)
    return twin


@pytest.fixture
def known(ctx: JobContext) -> dict[SplitId, Any]:
    """Where the job is: at the beginning of both."""
    return dict(KafkaSource("in").discover(ctx, None))


def at(offset: int, known: Positions, partition: int = 0) -> dict[SplitId, Any]:
    """The same, with another offset in one partition."""
    return {**known, split_id("in", partition): {**known[split_id("in", partition)], "offset": offset}}


def test_a_reader_is_forced_to_what_the_guarantee_rests_on() -> None:
    """Whatever the user's config says: committed records, whole ones, from the checkpoint's positions and no others."""
    assert _READ_ALWAYS == {
        "isolation.level": "read_committed",
        "check.crcs": True,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }


@pytest.mark.parametrize("start", ["newest", 5])
def test_a_rule_that_is_none_is_refused(start: Any) -> None:
    with pytest.raises(ConfigError, match=f'start={start!r}: use "earliest", "latest" or a datetime'):
        KafkaSource("in", start=start)


# ---------------------------------------------------------------- the first start


@pytest.mark.parametrize(
    ("start", "begins"),
    [
        ("earliest", {0: 2, 1: 0}),
        ("latest", {0: 3, 1: 2}),
        (datetime.fromtimestamp(5, UTC), {0: 4, 1: 0}),
        (datetime.fromtimestamp(5.001, UTC), {0: 4, 1: 1}),
    ],
)
def test_a_job_begins_where_its_rule_says(ctx: JobContext, start: Any, begins: dict[int, int]) -> None:
    """The latest record is the last that a reader of committed ones sees; a time after all is behind them all."""
    assert offsets(KafkaSource("in", start=start).discover(ctx, None)) == begins


def test_a_beginning_that_is_still_to_come_is_refused(ctx: JobContext) -> None:
    """Else the job would begin at the end, and read what comes before that time."""
    with pytest.raises(ConfigError, match="start=2999-01-01.*in the future"):
        KafkaSource("in", start=datetime(2999, 1, 1, tzinfo=UTC)).discover(ctx, None)


def test_a_time_between_two_milliseconds_begins_with_the_later_one(ctx: JobContext) -> None:
    start = datetime.fromtimestamp(5, UTC) + timedelta(microseconds=1)
    assert offsets(KafkaSource("in", start=start).discover(ctx, None))[1] == 1


def test_a_position_tells_the_topic_that_it_is_of(ctx: JobContext, log: Log) -> None:
    known = KafkaSource("in").discover(ctx, None)
    log.topic_id = UUID(int=8)
    later = KafkaSource("in").discover(ctx, None)

    assert known.keys() == later.keys() == {"in/0", "in/1"}
    assert len({str(where["topic_id"]) for where in (*known.values(), *later.values())}) == 2


def test_what_has_nothing_yet_begins_at_its_beginning(ctx: JobContext, log: Log) -> None:
    log.parts[1].records.clear()
    log.parts[1].end, log.parts[1].stable = 0, None

    for start in ("earliest", "latest"):
        assert offsets(KafkaSource("in", start=start).discover(ctx, None))[1] == 0  # type: ignore[arg-type]


# ---------------------------------------------------------------- later


def test_known_positions_are_kept_and_new_partitions_are_read_from_their_beginning(
    ctx: JobContext, log: Log, known: dict[SplitId, Any]
) -> None:
    """However the first start began: what is in a new partition came after it."""
    first = {split_id("in", 0): known[split_id("in", 0)]}
    log.parts[1].start = 1

    found = KafkaSource("in", start="latest").discover(ctx, first)

    assert offsets(found) == {0: 2, 1: 1}
    assert {at["topic_id"] for at in found.values()} == {known[split_id("in", 0)]["topic_id"]}


@pytest.mark.parametrize("offset", [2, 3, 4])
def test_a_position_within_the_log_can_be_read_on_also_behind_what_is_committed(
    ctx: JobContext, known: dict[SplitId, Any], offset: int
) -> None:
    """A reader passes control records; after an unclean shutdown of the broker they are stable again only later."""
    there = at(offset, known)

    assert KafkaSource("in").discover(ctx, there) == there


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (
            1,
            r"retention removed records of in/0 .* stopped at offset 1, but the log now starts at 2 \(1 offsets were",
        ),
        (5, r"in/0 was truncated: the job has read up to offset 5, but the log now ends at 4"),
    ],
)
def test_a_position_outside_of_the_log_is_lost_input(
    ctx: JobContext, known: dict[SplitId, Any], offset: int, why: str
) -> None:
    with pytest.raises(InputLost, match=why):
        KafkaSource("in").discover(ctx, at(offset, known))


def test_a_partition_that_is_gone_is_lost_input(ctx: JobContext, known: dict[SplitId, Any]) -> None:
    gone = {**known, split_id("in", 2): position(7, known[split_id("in", 0)]["topic_id"])}

    with pytest.raises(
        InputLost, match="partition in/2 does not exist any more, but the job still needed it from offset 7"
    ):
        KafkaSource("in").discover(ctx, gone)


def test_the_same_offset_of_a_topic_that_was_created_again_is_lost_input(
    ctx: JobContext, log: Log, known: dict[SplitId, Any]
) -> None:
    log.topic_id = UUID(int=8)

    with pytest.raises(InputLost, match="was deleted and created again"):
        KafkaSource("in").discover(ctx, known)


@pytest.fixture
def stale(log: Log, broker: ScriptedBroker) -> Iterator[Log]:
    """What a second broker of the cluster shows."""
    shown = Log(2)
    with shown.served() as other:
        log.cluster = shown.cluster = {1: broker.port, 2: other.port}
        yield shown


@pytest.fixture
def asks_stale(stale: Log) -> JobContext:
    """The second broker is asked first."""
    return JobContext("job", Term(1), {"bootstrap_servers": f"127.0.0.1:{stale.cluster[2]}"})


@pytest.mark.parametrize("lacks", ["topic", "partition", "id"])
def test_what_one_broker_shows_otherwise_than_known_is_asked_of_the_others(
    log: Log, known: dict[SplitId, Any], stale: Log, asks_stale: JobContext, lacks: str
) -> None:
    """Its metadata may be old. Only what no broker shows is lost; librdkafka's offsets are waited for."""
    match lacks:
        case "topic":
            stale.topic = "other"
        case "partition":
            stale.parts.pop()
        case "id":
            stale.topic_id = UUID(int=6)

    def found() -> Positions | None:
        try:
            return KafkaSource("in").discover(asks_stale, known)
        except Retryable:
            stale.topic, stale.parts = log.topic, log.parts  # the broker has heard of it
            return None

    assert eventually(found, "the offsets") == known


@pytest.mark.parametrize(
    ("shown", "cause", "why"),
    [
        ("replaced", LossCause.REPLACED, "topic in was deleted and created again"),
        ("deleted", LossCause.MISSING, "topic in, which the job has read, does not exist any more"),
    ],
)
def test_a_topic_is_compared_with_the_one_that_was_read(
    ctx: JobContext, log: Log, known: dict[SplitId, Any], shown: str, cause: LossCause, why: str
) -> None:
    source: KafkaSource[Any] = KafkaSource("in")
    source.ensure_same_input(ctx, [(source, known)])
    if shown == "replaced":
        log.topic_id = UUID(int=8)
    else:
        log.topic = "other"

    with pytest.raises(InputLost, match=why) as lost:
        source.ensure_same_input(ctx, [(source, known)])
    assert lost.value.cause is cause


def test_the_leader_says_which_topic_was_read(
    log: Log, known: dict[SplitId, Any], stale: Log, asks_stale: JobContext
) -> None:
    """It serves the new topic, of which another broker has not heard."""
    log.topic_id, stale.topic_id = UUID(int=8), log.topic_id
    source: KafkaSource[Any] = KafkaSource("in")

    with pytest.raises(InputLost, match="created again"):
        source.ensure_same_input(asks_stale, [(source, known)])


def test_an_excluded_topic_is_not_compared(ctx: JobContext, log: Log, known: dict[SplitId, Any]) -> None:
    source: KafkaSource[Any] = KafkaSource(re.compile("in|out"), exclude=["in"])
    log.topic = "other"

    source.ensure_same_input(ctx, [(source, known)])


def test_a_topic_that_is_gone_is_lost_input(ctx: JobContext, log: Log, known: dict[SplitId, Any]) -> None:
    source: KafkaSource[Any] = KafkaSource("in")
    log.topic = "other"

    with pytest.raises(InputLost, match="topic in, which the job has read, does not exist any more"):
        source.ensure_same_input(ctx, [(source, known)])


def test_positions_of_another_topic_are_refused(ctx: JobContext, known: dict[SplitId, Any]) -> None:
    foreign = {split_id("other", partition_of(split)): at for split, at in known.items()}

    with pytest.raises(ConfigError, match="positions of other/0, other/1, but the source now reads 'in'"):
        KafkaSource("in").discover(ctx, foreign)


def test_the_end_is_that_of_what_is_committed(ctx: JobContext, known: dict[SplitId, Any]) -> None:
    ends = KafkaSource("in").get_end_positions(ctx)

    assert offsets(ends) == {0: 3, 1: 2}
    assert {str(where["topic_id"]) for where in ends.values()} == {str(at["topic_id"]) for at in known.values()}


# ---------------------------------------------------------------- what cannot be told


def test_a_topic_that_is_not_there_is_named(ctx: JobContext) -> None:
    with pytest.raises(ConfigError, match="other"):
        KafkaSource("other").discover(ctx, None)


def test_a_partition_without_a_leader_is_waited_for(
    ctx: JobContext, log: Log, broker: ScriptedBroker, known: dict[SplitId, Any]
) -> None:
    log.parts[1].leader = -1
    asked_before = asked(broker, LIST_OFFSETS)

    for before in (None, known):
        with pytest.raises(Retryable, match="topic in has no leader now for partition 1"):
            KafkaSource("in").discover(ctx, before)
    with pytest.raises(Retryable, match="no leader"):
        KafkaSource("in").get_end_positions(ctx)
    assert asked(broker, LIST_OFFSETS) == asked_before, "nobody is there who could tell"


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_beginning_that_the_broker_does_not_know_is_asked_again(ctx: JobContext, log: Log, start: Any) -> None:
    """Taken for the end, it would pass over all that is between them."""
    log.parts[1].start = log.parts[1].end = log.parts[1].stable = -1  # type: ignore[assignment]
    log.parts[1].records.clear()

    with pytest.raises(Retryable, match=rf"the {start} offsets of in are unknown now, in partitions \[1\]"):
        KafkaSource("in", start=start).discover(ctx, None)


def test_offsets_that_a_broker_cannot_tell_are_asked_again_by_another_client(
    ctx: JobContext, log: Log, known: dict[SplitId, Any]
) -> None:
    """The old client may not know a new leader for minutes."""
    source: KafkaSource[bytes] = KafkaSource("in")
    assert source.discover(ctx, known) == known
    first = source._admin
    assert source.discover(ctx, known) == known
    assert source._admin is first, "as long as it tells"
    for number in (0, 1):
        log.parts[number].refused = ErrorCode.invalid_request
        with pytest.raises(Retryable, match=f"the offsets of in could not be read: partition {number}"):
            source.discover(ctx, known)
        log.parts[number].refused = ErrorCode.none

    assert source.discover(ctx, known) == known
    assert source._admin is not first


def test_one_rule_that_a_broker_cannot_tell_is_enough_for_another_client(
    ctx: JobContext, log: Log, broker: ScriptedBroker, known: dict[SplitId, Any]
) -> None:
    source: KafkaSource[bytes] = KafkaSource("in")
    source.discover(ctx, known)
    first, told = source._admin, log.answers[LIST_OFFSETS]

    def no_end(request: Any) -> Any:
        latest = request.topics[0].partitions[0].timestamp == -1
        log.parts[0].refused = ErrorCode.invalid_request if latest else ErrorCode.none
        return told(request)

    broker.script(LIST_OFFSETS, no_end)
    with pytest.raises(Retryable):
        source.discover(ctx, known)
    broker.script(LIST_OFFSETS, told)
    log.parts[0].refused = ErrorCode.none

    assert source.discover(ctx, known) == known
    assert source._admin is not first


def test_a_look_says_itself_what_nobody_can_tell(log: Log, broker: ScriptedBroker) -> None:
    def no_client() -> Any:
        raise Retryable("there is no client")

    look = survey.TopicSurvey(Cluster(broker.address), lambda listed: ["in", "other"], no_client)
    with pytest.raises(Retryable, match="the offsets of in could not be read: there is no client"):
        look.offsets("in", survey.STABLE_OFFSET)
    assert look.in_trouble
    with pytest.raises(ConfigError, match="'other' does not exist"):
        look.offsets("other", survey.STABLE_OFFSET)
    log.parts[0].leader = -1
    with pytest.raises(Retryable, match="no leader"):
        survey.TopicSurvey(Cluster(broker.address), lambda listed: ["in"], no_client).offsets(
            "in", survey.STABLE_OFFSET
        )


def test_only_topics_that_are_missing_are_named(ctx: JobContext) -> None:
    source, other = KafkaSource("in"), KafkaSource("other")

    with pytest.raises(ConfigError, match="topic 'other' does not exist") as raised:
        source.discover_all(ctx, [(source, None), (other, None)])
    assert "'in'" not in str(raised.value)


def test_offsets_that_a_broker_refuses_are_a_matter_of_settings(
    ctx: JobContext, log: Log, known: dict[SplitId, Any]
) -> None:
    log.parts[1].refused = ErrorCode.topic_authorization_failed

    with pytest.raises(ConfigError, match="partition 1"):
        KafkaSource("in").discover(ctx, known)


def test_an_answer_that_never_comes_is_not_waited_for(
    ctx: JobContext, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_ADMIN_TIMEOUT", 0.2)
    broker.script(LIST_OFFSETS, lambda request: SILENCE)

    with pytest.raises(Retryable, match="the offsets of in could not be read"):
        KafkaSource("in").discover(ctx, None)


# ---------------------------------------------------------------- what lag tools are shown


@pytest.mark.parametrize("group", [None, "of-others"])
def test_a_group_is_shown_where_the_job_is_and_who_says_so(group: str | None) -> None:
    shown: list[Any] = []

    def commit(request: Any) -> Any:
        shown.append(request)
        return committed(request, ErrorCode.none)

    with ScriptedBroker({OFFSET_COMMIT: commit}) as broker:
        ctx = JobContext("job", Term(3), {"bootstrap_servers": broker.address})
        source: KafkaSource[bytes] = KafkaSource("in", group_id=group)
        source.notify_committed(ctx, EPOCH, {split_id("in", 0): position(5, "x"), split_id("in", 1): position(7, "x")})
        source.notify_committed(ctx, EPOCH, {})

    (request,) = shown
    (topic,) = request.topics
    assert (request.group_id, topic.name) == (group or "job", "in")
    assert {(part.partition_index, part.committed_offset) for part in topic.partitions} == {(0, 5), (1, 7)}
    assert {part.committed_metadata for part in topic.partitions} == {
        f"kafka_eos job - 4/3 {socket.gethostname()}/{os.getpid()}"
    }


def test_a_partition_of_which_the_group_is_refused_is_no_success() -> None:
    def refuse(request: Any) -> Any:
        return committed(request, ErrorCode.none, ErrorCode.invalid_request)

    with ScriptedBroker({OFFSET_COMMIT: refuse}) as broker:
        ctx = JobContext("job", Term(3), {"bootstrap_servers": broker.address})
        known = {split_id("in", partition): position(5, "x") for partition in (0, 1)}
        with pytest.raises(UserError, match="OffsetCommit of group job was refused"):
            KafkaSource("in").notify_committed(ctx, EPOCH, known)


def committed(request: Any, *errors: ErrorCode) -> Any:
    """An answer with these errors of the first partitions; the last one is that of all others."""
    (asked_of,) = request.topics
    of = [*errors, *[errors[-1]] * len(asked_of.partitions)]
    part, topic, answer = (
        _any(kind) for kind in (OffsetCommitResponsePartition, OffsetCommitResponseTopic, OffsetCommitResponse)
    )
    parts = [
        part(partition_index=each.partition_index, error_code=error)
        for each, error in zip(asked_of.partitions, of, strict=False)
    ]
    return answer(throttle_time=NOW, topics=(topic(name=asked_of.name, partitions=tuple(parts)),))


def _any(made: type) -> Any:
    return made


# ---------------------------------------------------------------- many at a time


def test_many_sources_are_asked_with_one_request_a_rule(
    ctx: JobContext, broker: ScriptedBroker, known: dict[SplitId, Any]
) -> None:
    source: KafkaSource[bytes] = KafkaSource("in", start="latest")
    source.discover(ctx, None)
    before = asked(broker, LIST_OFFSETS)

    first, *others = source.discover_all(ctx, [(source, None), (source, known), (source, known)])

    assert not isinstance(first, Retryable) and offsets(first) == {0: 3, 1: 2}
    assert others == [known, known]
    assert asked(broker, LIST_OFFSETS) - before == 3, "the rule of the start, and both ends of the log"


def test_one_request_a_rule_is_for_all_topics(ctx: JobContext, log: Log, broker: ScriptedBroker) -> None:
    serve_twin(log, broker)
    source, other = (KafkaSource[bytes](topic, start="latest") for topic in ("in", "twin"))
    source.discover(ctx, None)
    before = asked(broker, LIST_OFFSETS)

    found = source.discover_all(ctx, [(source, None), (other, None)])

    assert [offsets(each) for each in found if not isinstance(each, Retryable)] == [{0: 3, 1: 2}, {0: 3}]
    assert asked(broker, LIST_OFFSETS) - before == 1


@pytest.mark.parametrize("turn", [1, -1])
def test_topics_are_listed_for_the_source_of_a_pattern_wherever_it_stands(ctx: JobContext, turn: int) -> None:
    named, by_pattern = KafkaSource("in"), KafkaSource[bytes](re.compile("i."))

    found = named.discover_all(ctx, [(named, None), (by_pattern, None)][::turn])

    assert [offsets(each) for each in found if not isinstance(each, Retryable)] == [{0: 2, 1: 0}] * 2


def test_who_cannot_be_told_for_now_is_so_by_itself(ctx: JobContext, log: Log, broker: ScriptedBroker) -> None:
    serve_twin(log, broker).parts[0].leader = -1
    source, other = KafkaSource("in"), KafkaSource("twin")

    found, trouble = source.discover_all(ctx, [(source, None), (other, None)])
    end, no_end = source.get_all_end_positions(ctx, [source, other])

    assert not isinstance(found, Retryable) and offsets(found) == {0: 2, 1: 0}
    assert not isinstance(end, Retryable) and offsets(end) == {0: 3, 1: 2}
    assert isinstance(trouble, Retryable) and isinstance(no_end, Retryable)
