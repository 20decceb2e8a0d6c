"""What a topic requires of each record, from its settings."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import pytest

from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.topic_rules import SETTINGS, TopicRules

NOW = 1_700_000_000_000
FOREVER = str(2**63 - 1)


def rules(**given: str) -> TopicRules:
    settings = dict.fromkeys(SETTINGS) | {name.replace("_", "."): value for name, value in given.items()}
    return TopicRules.of(settings)


def refused(of: TopicRules, times: Any = repeat(0), keys: Any = repeat(None), count: int = 3) -> dict[int, str]:
    return of.find_refused("out", ProducerColumns([b"v"] * count, keys, times, None), NOW)


@pytest.mark.parametrize(
    ("of", "bounds"),
    [
        (rules(), (2**63 - 1, 2**63 - 1)),
        (rules(message_timestamp_before_max_ms="5", message_timestamp_after_max_ms="7"), (5, 7)),
        (rules(message_timestamp_difference_max_ms="9"), (9, 9)),
        (rules(message_timestamp_difference_max_ms="9", message_timestamp_after_max_ms=FOREVER), (9, 9)),
        (rules(message_timestamp_difference_max_ms="9", message_timestamp_after_max_ms="7"), (9, 7)),
        (rules(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms="7"), (2**63 - 1, 2**63 - 1)),
    ],
)
def test_bounds_of_timestamps_are_those_of_the_broker(of: TopicRules, bounds: tuple[int, int]) -> None:
    assert (of.before, of.after) == bounds


def test_a_row_outside_the_bounds_is_refused_alone() -> None:
    of = rules(message_timestamp_before_max_ms="5", message_timestamp_after_max_ms="7")

    found = refused(of, [NOW + 7, NOW + 8, NOW - 5, NOW - 6, 0], count=5)

    assert list(found) == [1, 3]
    assert "8 ms ahead of the clock" in found[1] and "message.timestamp.after.max.ms=7" in found[1]
    assert "6 ms behind the clock" in found[3] and "message.timestamp.before.max.ms=5" in found[3]
    assert refused(of) == {}


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_needs_keys(policy: str) -> None:
    of = rules(cleanup_policy=policy)

    assert list(refused(of, keys=[b"a", None, ""])) == [1]
    assert list(refused(of)) == [0, 1, 2]
    assert "has no key, but the topic out is compacted" in refused(of)[0]
    assert refused(of, keys=[b"a", b"b", b"c"]) == refused(rules(cleanup_policy="delete")) == {}
