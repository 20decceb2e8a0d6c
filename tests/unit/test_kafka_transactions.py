"""What a transaction's state and marker say together, where no broker can be made to say it in a test's time."""

from __future__ import annotations

import pytest

from kafka_eos.connectors.kafka.transactions import MARKER_LIFE, Transaction, Verdict, judged

OURS = Transaction("job-1", 7, 3, 5, "uuid", "group", "topic", 0, prepared_at=0, timeout_ms=60_000, term=1)
DAY = 24 * 3600.0


@pytest.mark.parametrize(("age", "verdict"), [(0.0, Verdict.LOST), (7 * DAY, Verdict.UNKNOWN)])
def test_what_left_no_trace_is_lost_only_while_a_trace_would_be_there(age: float, verdict: Verdict) -> None:
    assert judged(OURS, None, None, age) is verdict


def test_the_limit_is_below_what_kafka_keeps_markers_for() -> None:
    assert MARKER_LIFE < 7 * DAY


@pytest.mark.parametrize("age", [0.0, 7 * DAY])
def test_a_marker_of_ours_proves_the_commit_however_old(age: float) -> None:
    assert judged(OURS, None, "uuid", age) is Verdict.COMMITTED
