"""When old epochs are dropped, and when the next epoch waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos.protocol.actions import RunCleanup
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule

FRESH = CleanupSchedule(epoch_interval=2, looked_at=10.0, max_interval=5.0)


def test_it_is_due_after_so_many_epochs_and_the_next_one_waits() -> None:
    one = FRESH.record_epoch()

    assert not one.is_due(10.0) and not one.blocks_epochs
    assert one.record_epoch().is_due(10.0) and one.record_epoch().blocks_epochs


def test_it_is_due_by_the_clock_and_no_epoch_waits_for_that() -> None:
    assert [FRESH.is_due(now) for now in (10.0, 14.9, 15.0, 15.1)] == [False, False, True, True]
    assert not FRESH.blocks_epochs
    assert not CleanupSchedule(epoch_interval=2, looked_at=0.0).is_due(1e9), "unless it says how often"


def test_what_may_have_been_left_open_is_looked_for_at_once() -> None:
    littered = replace(FRESH, has_leftovers=True)

    assert littered.is_due(10.0) and littered.blocks_epochs
    assert littered.start(10.0)[1] == RunCleanup(find_leftovers=True, fence=True)


def test_it_can_be_asked_to_look_once_more() -> None:
    assert FRESH.force().is_due(10.0)


def test_no_epoch_begins_while_it_is_done() -> None:
    begun, sweep = FRESH.start(11.0)

    assert begun.blocks_epochs
    assert sweep == RunCleanup(find_leftovers=False)
    assert not begun.finish(12.0).blocks_epochs


def test_only_a_look_counts_as_one() -> None:
    assert FRESH.record_epoch().start(11.0)[0].finish(12.0) == FRESH
    assert FRESH.start(16.0)[0].finish(17.0) == replace(FRESH, looked_at=17.0)


@pytest.mark.parametrize("fences", [True, False])
def test_what_is_left_open_while_it_is_done_is_looked_for_afterwards(fences: bool) -> None:
    begun, _ = replace(FRESH, has_leftovers=fences).start(16.0)
    done = replace(begun, has_leftovers=True).finish(17.0)

    assert done.has_leftovers is not fences


def test_what_was_not_begun_is_not_done() -> None:
    assert FRESH.record_epoch().finish(20.0) == FRESH.record_epoch()
