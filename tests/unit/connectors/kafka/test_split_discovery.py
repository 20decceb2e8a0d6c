"""Where a source of several topics begins, goes on and ends, by what a survey of the cluster has found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import pytest

from kafka_eos.connectors.kafka.client.access_rights import AclOperation
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import TopicMetadata
from kafka_eos.connectors.kafka.source.end_offsets import EndingOffsets, expect_behind
from kafka_eos.connectors.kafka.source.split_discovery import SplitDiscovery
from kafka_eos.connectors.kafka.source.subscription import Subscription
from kafka_eos.connectors.kafka.source.topic_survey import (
    HIGH_WATERMARK,
    LOG_START,
    STABLE_OFFSET,
    OffsetRule,
    TopicSurvey,
)
from kafka_eos.core.errors import ConfigError, InputLost, Retryable
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
AT_NOON = OffsetRule.of(NOON)
OFFSETS: Mapping[str, Mapping[OffsetRule, Sequence[int]]] = {
    "a": {LOG_START: [0, 5], HIGH_WATERMARK: [10, 12], STABLE_OFFSET: [9, 12], AT_NOON: [9, -1]},
    "b": {LOG_START: [1, 2, 3], HIGH_WATERMARK: [4, 5, 6], STABLE_OFFSET: [4, 5, 5], AT_NOON: [2, 2, 5]},
    "c": {LOG_START: [7], HIGH_WATERMARK: [8], STABLE_OFFSET: [8], AT_NOON: [7]},
}
ALL = re.compile("[a-d]")


class Surveyed(TopicSurvey):
    """A survey that has its answers already."""

    def __init__(self, *topics: str, missing: Sequence[str] = (), **facts: Any) -> None:
        self._bootstrap, self._where = "kafka:9092", Cluster("kafka:9092")
        known = {"partitions": 3, "replicas": 1, "leaderless": (), **facts}
        self._topics = {topic: TopicMetadata(f"id {topic}", **known) for topic in topics} | dict.fromkeys(missing)
        self._found = {
            (topic, rule): dict(enumerate(offsets)) for topic in topics for rule, offsets in OFFSETS[topic].items()
        }


def discovery(topics: Any = ALL, until: Any = None, start: Any = "earliest", **options: Any) -> SplitDiscovery:
    chosen = Subscription.of(topics, **options)
    return SplitDiscovery(chosen, start, None if until is None else EndingOffsets.of(until, chosen))


def positions(until: Mapping[str, int] | None = None, **offsets: Sequence[int | None]) -> Any:
    """Of the partitions of these topics, each of which begins where its log does."""
    found = {}
    for topic, given in offsets.items():
        for partition, offset in enumerate(given):
            if offset is not None:
                split, begin = f"{topic}/{partition}", OFFSETS[topic][LOG_START][partition]
                end = {} if until is None or split not in until else {"until": until[split]}
                found[split] = {"offset": offset, "topic_id": f"id {topic}", "begin": begin, **end}
    return found


ENDS = {"a/0": 9, "a/1": 12, "b/0": 4, "b/1": 5, "b/2": 5, "c/0": 8}
FIRST = positions(a=[0, 5], b=[1, 2, 3], c=[7])


@pytest.mark.parametrize("topics", [["a", "b", "c"], ALL])
def test_all_partitions_of_all_topics_begin_by_the_rule_of_the_source(topics: Any) -> None:
    assert discovery(topics).find_positions(Surveyed("a", "b", "c"), None) == FIRST
    latest = discovery(topics, start="latest").find_positions(Surveyed("a", "b", "c"), None)
    assert {split: at["offset"] for split, at in latest.items()} == ENDS


def test_known_partitions_go_on_and_new_ones_are_read_from_their_beginning() -> None:
    known = positions(a=[4, None], b=[None, None, 6], c=[8])

    found = discovery(start="latest").find_positions(Surveyed("a", "b", "c"), known)

    assert found == positions(a=[4, 5], b=[1, 2, 6], c=[8])


@pytest.mark.parametrize("lost", ["a/0", "b/1", "b/2", "c/0"])
def test_one_partition_that_cannot_go_on_is_lost_input_whichever_it_is(lost: str) -> None:
    known = {**FIRST, lost: {**FIRST[lost], "offset": 1_000}}

    with pytest.raises(InputLost, match=f"{lost} was truncated"):
        discovery().find_positions(Surveyed("a", "b", "c"), known)


def test_excluded_topics_keep_their_positions_also_where_they_are_gone() -> None:
    known = {**FIRST, "b/0": {"offset": 99, "topic_id": "another", "begin": 1}, "d/7": {"offset": 3}}
    source = discovery(exclude=["b", "d"])

    assert source.find_positions(Surveyed("a", "b", "c"), known) == known
    assert source.find_positions(Surveyed("a", "c", missing=["b"]), known) == known
    assert source.select_surveyed(["a", "c", "x"], known) == {"a", "c"}
    assert discovery().select_surveyed(["a", "x"], known) == {"a", "b", "c", "d"}
    assert discovery(["a", "e"]).select_surveyed(["a", "x"], known) == {"a", "e"}


def test_a_topic_that_was_read_and_is_gone_is_lost_and_one_that_was_not_is_nothing() -> None:
    survey = Surveyed("a", "b", missing=["c"])

    with pytest.raises(InputLost, match="topic c, which the job has read, does not exist"):
        discovery().find_positions(survey, FIRST)
    known = positions(a=[0, 5], b=[1, 2, 3])
    assert discovery().find_positions(survey, known) == known
    with pytest.raises(ConfigError, match=r"\bc\b"):
        discovery(["a", "c"]).find_positions(survey, None)
    with pytest.raises(ConfigError, match="no topic matches"):
        discovery().find_positions(Surveyed(), None)


def test_each_topic_is_asked_for_the_offsets_that_are_compared() -> None:
    survey = Surveyed("a", "c")

    def asked(source: SplitDiscovery, known: Any = None) -> list[tuple[str, OffsetRule]]:
        found = source.list_lookups(survey, known)
        assert [topic for topic, _ in found] == sorted(topic for topic, _ in found)
        assert [rule for topic, rule in found if topic == "a"] == [rule for topic, rule in found if topic == "c"]
        return [rule for topic, rule in found if topic == "a"]

    assert asked(discovery(), FIRST) == [LOG_START, HIGH_WATERMARK]
    assert asked(discovery(until=NOON), FIRST) == [LOG_START, HIGH_WATERMARK]
    assert asked(discovery()) == [LOG_START]
    assert asked(discovery(until="latest")) == [LOG_START, STABLE_OFFSET]
    assert asked(discovery(until={"a/0": 1})) == [LOG_START, STABLE_OFFSET]
    assert asked(discovery(start="latest", until=NOON)) == [STABLE_OFFSET, STABLE_OFFSET, AT_NOON]


# ---------------------------------------------------------------- ends


def test_each_partition_ends_where_it_ended_at_the_first_start() -> None:
    source = discovery(until="latest")
    first = source.find_positions(Surveyed("a", "b", "c"), None)

    assert first == positions(ENDS, a=[0, 5], b=[1, 2, 3], c=[7])
    without: Positions = {split: at for split, at in first.items() if split not in ("a/1", "b/2")}
    assert source.find_positions(Surveyed("a", "b", "c"), without) == without, "what came later is behind the end"
    bounds = source.get_bounds(first)
    assert bounds == {split: {**at, "offset": ENDS[split]} for split, at in first.items()}
    assert discovery().get_bounds(first) is None
    assert discovery().find_positions(Surveyed("a", "b", "c"), first) == FIRST


def test_an_end_is_looked_up_for_each_partition_that_has_none() -> None:
    source, survey = discovery(until="latest"), Surveyed("a", "b", "c")
    partly = positions(dict.fromkeys(("a/0", "b/0", "b/2"), 4), a=[0, 5], b=[1, 2, 3], c=[7])

    assert source.find_positions(survey, partly) == positions(
        {**ENDS, "a/0": 4, "b/0": 4, "b/2": 4}, a=[0, 5], b=[1, 2, 3], c=[7]
    )
    assert source.find_positions(survey, {}) == positions(ENDS, a=[0, 5], b=[1, 2, 3], c=[7])
    behind = positions(a=[10, 12], b=[4, 5, 6], c=[8])
    assert source.find_positions(survey, behind)[SplitId("a/0")]["until"] == 10


def test_partitions_that_were_read_to_their_end_are_listed() -> None:
    source = discovery(until="latest", exclude=["c"])
    ended = positions(ENDS, a=[9, 11], b=[5, 4, 5], c=[8])

    assert list(source.list_finished_splits(ended)) == ["a/0", "b/0", "b/2"]
    assert {*(source.get_bounds(ended) or ())} == {"a/0", "a/1", "b/0", "b/1", "b/2"}
    assert list(source.list_finished_splits(positions(a=[9, 12]))) == []
    assert list(discovery().list_finished_splits(ended)) == []


def test_the_end_at_a_time_is_the_first_record_after_it_unless_a_transaction_before_it_is_open() -> None:
    source = discovery(["a", "b"], until=NOON)
    found = source.find_positions(Surveyed("a", "b"), None)

    assert {split: at["until"] for split, at in found.items()} == {"a/0": 9, "a/1": 12, "b/0": 2, "b/1": 2, "b/2": 5}
    open_transaction = Surveyed("a", "b")
    open_transaction._found["b", STABLE_OFFSET] = {0: 4, 1: 1, 2: 5}
    with pytest.raises(Retryable, match="b/1 is to be read up to offset 2, but a transaction"):
        source.find_positions(open_transaction, None)
    later = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(ConfigError, match="in the future"):
        discovery(["a"], until=later).find_positions(Surveyed("a"), None)
    assert discovery(["a"], until=later).find_positions(Surveyed("a"), positions(ENDS, a=[0, 5])) == positions(
        ENDS, a=[0, 5]
    ), "it was looked up before"


def test_given_ends_are_those_of_all_partitions_and_of_no_others() -> None:
    given = {"b/1": 5, "a/1": 12, "b/0": 0, "a/0": 1, "b/2": 5}
    source, survey = discovery(["a", "b"], until=given), Surveyed("a", "b")

    assert source.end is not None
    assert source.end.text == "a/0: 1, a/1: 12, b/0: 0, b/1: 5, b/2: 5"
    found = source.find_positions(survey, None)
    assert {split: at["until"] for split, at in found.items()} == {**given, "b/0": 1}
    assert source.find_positions(survey, found) == found
    with pytest.raises(ConfigError, match="until= has no offset for a/1, b/0, b/2: list"):
        discovery(["a", "b"], until={"b/1": 1, "a/0": 1}).find_positions(survey, None)
    with pytest.raises(ConfigError, match=r"until= lists a/7, b/3, but the source reads a/0, a/1, b/0, b/1, b/2: "):
        discovery(["a", "b"], until={**given, "b/3": 1, "a/7": 1}).find_positions(survey, None)
    with pytest.raises(ConfigError, match="until= ends a/0 before offset 10, and its committed records end before 9"):
        discovery(["a", "b"], until={**given, "a/0": 10}).find_positions(survey, None)


@pytest.mark.parametrize(
    "until",
    [
        "now",
        {},
        [("a/0", 1)],
        {"a/0": 1, "x/0": 1},
        {"x/0": 1, "a/0": 1},
        {"a/0": 1, "a/b": 1},
        {"a": 1},
        {0: 1},
        {PurePosixPath("a/0"): 1},
        {"a/0": True},
        {"a/0": "1"},
        {"a/0": -1},
    ],
)
def test_an_end_that_names_no_partition_or_no_offset_is_refused(until: Any) -> None:
    with pytest.raises(ConfigError, match="until="):
        EndingOffsets.of(until, Subscription.of(["a", "b"]))


def test_partitions_of_the_one_topic_may_be_numbers() -> None:
    assert EndingOffsets.of({1: 0, 0: 3}, Subscription.of("t")).offsets == {"t/1": 0, "t/0": 3}


@pytest.mark.parametrize("apart", [0, -1])
def test_an_end_is_after_a_beginning_at_a_time(apart: int) -> None:
    expect_behind(NOON, NOON - timedelta(seconds=1))
    expect_behind(NOON, "earliest")
    with pytest.raises(ConfigError, match="would read nothing"):
        expect_behind(NOON + timedelta(seconds=apart), NOON)


def test_the_ends_of_now_are_those_of_committed_records() -> None:
    found = discovery().find_end_positions(Surveyed("a", "b", "c"))

    assert {split: at["offset"] for split, at in found.items()} == ENDS
    with pytest.raises(InputLost, match="topic c, which"):
        discovery(["a", "c"]).find_end_positions(Surveyed("a", missing=["c"]))


# ---------------------------------------------------------------- the survey itself


def test_topics_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigError) as missing:
        Surveyed("a", missing=["orders", "bills"]).facts("bills")
    assert ["orders" in line for line in str(missing.value).splitlines()] == [True, False]
    assert ["bills" in line for line in str(missing.value).splitlines()] == [False, True]
    with pytest.raises(ConfigError, match="a"):
        Surveyed("a", may=frozenset({AclOperation.WRITE})).facts("a")
    assert Surveyed("a", may=frozenset({AclOperation.READ})).facts("a").topic_id == "id a"
    with pytest.raises(Retryable, match="topic a has no leader now for partition 0, 2"):
        Surveyed("a", leaderless=(0, 2)).offsets("a", LOG_START)
    assert Surveyed("a", "b", missing=["x"]).there == ["a", "b"]


def test_a_survey_is_in_trouble_while_any_of_its_offsets_is_unknown() -> None:
    survey = Surveyed("a", "b")
    assert not survey.in_trouble
    survey._found["a", LOG_START] = Retryable("no response")

    assert survey.in_trouble
    with pytest.raises(Retryable, match="no response"):
        survey.offsets("a", LOG_START)
    assert survey.offsets("b", LOG_START) == {0: 1, 1: 2, 2: 3}
