"""When old epochs are dropped, and when output of earlier terms is searched for."""

from __future__ import annotations

from msgspec.structs import replace

from kafka_eos.protocol.actions import RunCleanup
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule

FRESH = CleanupSchedule(searched_at=10.0, search_interval=5.0)


def test_it_is_due_after_each_epoch() -> None:
    assert not FRESH.is_due(10.0)
    assert FRESH.record_epoch().is_due(10.0)


def test_a_search_is_due_by_the_clock() -> None:
    assert [FRESH.is_due(now) for now in (10.0, 14.9, 15.0, 15.1)] == [False, False, True, True]


def test_no_other_begins_while_one_is_done() -> None:
    begun, cleanup = FRESH.record_epoch().start(11.0)

    assert cleanup == RunCleanup(find_leftovers=False)
    assert not begun.is_due(99.0)
    assert begun.finish(12.0) == FRESH


def test_only_a_search_counts_as_one() -> None:
    begun, cleanup = FRESH.start(16.0)

    assert cleanup == RunCleanup(find_leftovers=True)
    assert begun.finish(17.0) == replace(FRESH, searched_at=17.0)


def test_an_end_without_a_beginning_changes_nothing() -> None:
    assert FRESH.finish(17.0) == FRESH
