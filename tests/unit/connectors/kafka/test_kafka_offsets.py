"""What a broker's answers about offsets mean: a beginning that is not known is never taken for the end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.kafka.source.topic_survey import Start, known_offsets
from kafka_eos.core.errors import Retryable
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term

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
