"""Rows that wait to be sent to other workers: each once, in order, and no longer than they may."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kafka_eos.core.records import Batch
from kafka_eos.runtime.exchange.output_buffers import OutputBuffer
from kafka_eos.runtime.operators.exchanged_rows import EncodedRows
from kafka_eos.testing.list_source import ListOrigin

ORIGIN = ListOrigin("in", "rows", 0, 0, [None] * 100)


def rows(*values: int, lane: int = 0) -> EncodedRows:
    encoded: Any = b""
    return EncodedRows(Batch(list(values), list(values), ORIGIN, lane=lane), encoded)


class Sending:
    """A buffer, and what it has sent."""

    def __init__(self, enough: int = 3, timeout: float = 60.0) -> None:
        self.sent: list[tuple[int, list[list[int]]]] = []
        self.buffer = OutputBuffer(self._send, enough, timeout)

    def _send(self, target: int, parts: Any) -> None:
        self.sent.append((target, [part.batch.values for part in parts]))


def test_rows_wait_until_there_are_enough_for_one_worker() -> None:
    found = Sending()
    for target, part in [(1, rows(1)), (2, rows(2)), (1, rows(3)), (2, rows(4))]:
        found.buffer.add(target, part)
    assert found.sent == [] and not found.buffer.empty

    found.buffer.add(1, rows(5))
    assert found.sent == [(1, [[1], [3], [5]])] and not found.buffer.empty

    found.buffer.add(1, rows(6, 7))
    assert len(found.sent) == 1
    found.buffer.add(2, rows(8, 9))
    assert found.sent[1:] == [(2, [[2], [4], [8, 9]])]


def test_all_that_waits_is_sent_once_to_each_worker() -> None:
    found = Sending()
    for target in (1, 2, 3):
        found.buffer.add(target, rows(target))

    found.buffer.flush()
    assert found.sent == [(1, [[1]]), (2, [[2]]), (3, [[3]])]
    assert found.buffer.empty
    found.buffer.flush()
    assert len(found.sent) == 3


def test_rows_that_one_frame_cannot_hold_are_sent_before_and_the_new_ones_wait_as_long_as_any() -> None:
    found = Sending()
    found.buffer.add(1, rows(1, 2))
    found.buffer.add(1, rows(3, 4, lane=1))
    assert found.sent == [(1, [[1, 2]])]

    found.buffer.flush()
    assert found.sent[1:] == [(1, [[3, 4]])]


def test_without_a_timeout_nothing_waits() -> None:
    found = Sending(timeout=0)
    found.buffer.add(1, rows(1))

    assert found.sent == [(1, [[1]])]
    assert found.buffer.empty


def test_rows_wait_from_the_first_one_of_a_frame_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    found = Sending(enough=2, timeout=5.0)
    found.buffer.add(1, rows(1))
    now[0] = 102.0
    found.buffer.add(2, rows(2))
    found.buffer.add(3, rows(3))

    found.buffer.flush_old(104.0)
    assert found.sent == []
    found.buffer.flush_old(105.0)
    assert found.sent == [(1, [[1]])]
    found.buffer.flush_old(107.0)
    assert found.sent[1:] == [(2, [[2]]), (3, [[3]])]

    now[0] = 110.0
    found.buffer.add(1, rows(4))
    found.buffer.flush_old(111.0)
    assert len(found.sent) == 3
