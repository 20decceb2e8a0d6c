"""What a broker's answers about offsets mean: a beginning that is not known is never taken for the end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.job_names import OffsetMetadata
from kafka_eos.connectors.kafka.source.group_offsets import list_group_incarnations, offsets_by_topic
from kafka_eos.connectors.kafka.source.topic_survey import Start, known_offsets
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, SplitId, Term
from kafka_eos.core.json_values import Positions

ENDS = {0: 1890, 1: 7}


def test_what_is_known_is_taken_as_it_is() -> None:
    assert known_offsets("in", {0: 0, 1: 3}, "earliest", lambda: ENDS) == {0: 0, 1: 3}


def test_a_time_after_the_last_record_is_the_end() -> None:
    assert known_offsets("in", {0: -1, 1: 3}, datetime(2026, 1, 1, tzinfo=UTC), lambda: ENDS) == {0: 1890, 1: 3}


@pytest.mark.parametrize("rule", ["earliest", "latest"])
def test_a_beginning_that_is_not_known_is_asked_again(rule: Start) -> None:
    with pytest.raises(Retryable, match=r"unknown now, in partitions \[0\]"):
        known_offsets("in", {0: -1, 1: 3}, rule, lambda: ENDS)


def test_offsets_that_are_only_shown_hold_up_an_epoch_for_two_seconds_at_most() -> None:
    source: KafkaSource[bytes] = KafkaSource("in", bootstrap_servers="127.0.0.1:1")
    position = {"offset": 1, "topic_id": "x"}

    with pytest.raises(Retryable, match="no response in 2 s"):
        source.notify_committed(JobContext("j", Term(1), {}), EpochId(Epoch(1), Term(1)), {SplitId("in/0"): position})


def test_offsets_are_shown_for_each_partition_of_each_topic() -> None:
    positions: Positions = {
        SplitId(f"{topic}/{n}"): {"offset": 10 * n} for topic in ("a", "b/c", "d") for n in range(3)
    }

    assert offsets_by_topic(positions) == {topic: {0: 0, 1: 10, 2: 20} for topic in ("a", "b/c", "d")}


def test_each_incarnation_of_the_job_is_seen_with_what_it_has_committed_last() -> None:
    one, other = JobIdentity("a" * 12), JobIdentity("b" * 12)

    def by(job: str, identity: JobIdentity | None, term: int, epoch: int, pid: int) -> OffsetMetadata:
        return OffsetMetadata(job, identity, EpochId(Epoch(epoch), Term(term)), f"host {pid}", pid)

    committers = [
        by("orders", one, 2, 5, 1),
        by("orders", one, 3, 7, 2),
        by("orders", one, 3, 6, 3),
        by("payments", one, 9, 9, 4),
        by("orders", None, 1, 1, 5),
        by("orders", other, 4, 2, 6),
        by("orders", other, 3, 8, 7),
    ]
    found = list_group_incarnations("orders", "totals", committers)

    assert [(sign.identity, sign.term, sign.committed, sign.process) for sign in found] == [
        (one, Term(3), Epoch(7), ("host 2", 2)),
        (None, Term(1), Epoch(1), ("host 5", 5)),
        (other, Term(4), Epoch(8), ("host 6", 6)),
    ]
    assert {sign.place for sign in found} == {"consumer group 'totals'"}
