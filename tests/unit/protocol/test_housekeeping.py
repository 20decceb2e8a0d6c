"""When old epochs are dropped, and when the next epoch waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos.protocol.actions import Sweep
from kafka_eos.protocol.cleanup_schedule import Housekeeping

FRESH = Housekeeping(every=2, looked_at=10.0, look_every=5.0)


def test_it_is_due_after_so_many_epochs_and_the_next_one_waits() -> None:
    one = FRESH.decided()

    assert not one.due(10.0) and not one.holds
    assert one.decided().due(10.0) and one.decided().holds


def test_it_is_due_by_the_clock_and_no_epoch_waits_for_that() -> None:
    assert [FRESH.due(now) for now in (10.0, 14.9, 15.0, 15.1)] == [False, False, True, True]
    assert not FRESH.holds
    assert not Housekeeping(every=2, looked_at=0.0).due(1e9), "unless it says how often"


def test_what_may_have_been_left_open_is_looked_for_at_once() -> None:
    littered = replace(FRESH, littered=True)

    assert littered.due(10.0) and littered.holds
    assert littered.begun(10.0)[1] == Sweep(thorough=True, fence=True)


def test_it_can_be_asked_to_look_once_more() -> None:
    assert FRESH.looks_once_more().due(10.0)


def test_no_epoch_begins_while_it_is_done() -> None:
    begun, sweep = FRESH.begun(11.0)

    assert begun.holds
    assert sweep == Sweep(thorough=False)
    assert not begun.swept(12.0).holds


def test_only_a_look_counts_as_one() -> None:
    assert FRESH.decided().begun(11.0)[0].swept(12.0) == FRESH
    assert FRESH.begun(16.0)[0].swept(17.0) == replace(FRESH, looked_at=17.0)


@pytest.mark.parametrize("fences", [True, False])
def test_what_is_left_open_while_it_is_done_is_looked_for_afterwards(fences: bool) -> None:
    begun, _ = replace(FRESH, littered=fences).begun(16.0)
    done = replace(begun, littered=True).swept(17.0)

    assert done.littered is not fences


def test_what_was_not_begun_is_not_done() -> None:
    assert FRESH.decided().swept(20.0) == FRESH.decided()
