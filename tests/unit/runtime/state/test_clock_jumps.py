"""A clock that leaps, or a record of the future, neither expires what is stored nor keeps it for ever."""

from __future__ import annotations

from time import CLOCK_BOOTTIME, clock_gettime_ns, time_ns
from typing import Any

import pytest
from msgspec.structs import replace
from state_world import World, snapshot
from test_ttl import Clock, rows, value

from kafka_eos.abc.state import StateDescriptor, StateHandle, Ttl
from kafka_eos.runtime.state.ttl_clock import (
    DOWN_MS,
    LEAP_MS,
    UNKNOWN,
    EventTimeClock,
    ProcessingTimeClock,
    discard_future_time,
    monotonic_clock,
    wall_clock,
)

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
NOW = 1_700_000_000_000
FAR = NOW + 74 * YEAR
"""A machine that believes it is the year 2097."""


class Hands:
    """The machine's clock, and the one that nobody sets. ``pass_`` moves both."""

    def __init__(self, wall: int = NOW) -> None:
        self.wall, self.passed = wall, 0

    def pass_(self, ms: int) -> None:
        self.wall += ms
        self.passed += ms

    def time(self, stored: int = -1) -> ProcessingTimeClock:
        return ProcessingTimeClock(lambda: self.wall, stored, lambda: self.passed)


# ---------------------------------------------------------------- the machine's clock


def test_the_machines_clocks_are_read_in_milliseconds() -> None:
    for read, nanoseconds in ((wall_clock, time_ns), (monotonic_clock, lambda: clock_gettime_ns(CLOCK_BOOTTIME))):
        before = nanoseconds() // 10**6
        assert before <= read() <= nanoseconds() // 10**6


def test_a_clock_leaps_by_more_than_an_hour_and_a_job_is_down_for_a_year_at_most() -> None:
    assert (LEAP_MS, DOWN_MS) == (HOUR, 366 * 24 * HOUR)


def test_processing_time_goes_on_with_the_clock() -> None:
    hands = Hands()
    time = hands.time()
    hands.pass_(500)
    assert time.now() == NOW + 500
    hands.wall += LEAP_MS
    assert time.now() == NOW + 500 + LEAP_MS


def test_a_night_without_a_look_is_no_leap() -> None:
    hands = Hands()
    time = hands.time()
    hands.pass_(12 * HOUR)
    assert time.now() == NOW + 12 * HOUR


def test_a_leap_is_left_out_and_time_goes_on() -> None:
    hands = Hands()
    time = hands.time()
    hands.pass_(1_000)
    hands.wall = FAR
    assert time.now() == NOW + 1_000
    hands.pass_(5_000)
    assert time.now() == NOW + 6_000
    hands.pass_(2 * HOUR)
    hands.wall += 3 * HOUR  # another leap
    assert time.now() == NOW + 6_000 + 2 * HOUR


def test_when_the_clock_is_set_right_after_a_leap_time_has_not_been_elsewhere() -> None:
    hands = Hands()
    time = hands.time()
    hands.wall = FAR
    time.now()
    hands.pass_(5_000)
    time.now()
    hands.wall = NOW + 5_000
    assert time.now() == NOW + 5_000
    hands.pass_(700)
    assert time.now() == NOW + 5_700


def test_a_clock_that_is_set_back_a_little_is_waited_for() -> None:
    hands = Hands()
    time = hands.time()
    hands.wall -= LEAP_MS
    assert time.now() == NOW
    hands.pass_(LEAP_MS - 1)
    assert time.now() == NOW
    hands.pass_(2)
    assert time.now() == NOW + 1


def test_a_clock_that_is_set_back_far_is_followed() -> None:
    hands = Hands(FAR)
    time = hands.time()
    hands.wall = NOW
    assert time.now() == NOW


@pytest.mark.parametrize(
    ("stored", "begins"),
    [
        (NOW - 30 * 24 * HOUR, NOW),  # the job was down for a month
        (NOW - DOWN_MS, NOW),
        (NOW - DOWN_MS - 1, NOW - DOWN_MS - 1),  # the clock has leapt, or the stored time is of a clock that was wrong
        (NOW + LEAP_MS, NOW + LEAP_MS),
        (NOW + LEAP_MS + 1, NOW),
        (FAR, NOW),
    ],
)
def test_a_session_begins_with_the_stored_time_or_the_clock(stored: int, begins: int) -> None:
    hands = Hands()
    time = hands.time(stored)
    assert time.now() == begins
    hands.pass_(3 * LEAP_MS)
    assert time.now() == max(begins, begins + 3 * LEAP_MS if begins <= NOW else NOW + 3 * LEAP_MS)


# ---------------------------------------------------------------- the timestamps of records


def test_a_record_of_the_future_does_not_move_event_time() -> None:
    now = [NOW]
    time = EventTimeClock(lambda: now[0], -1)
    for timestamp in (NOW - 5, FAR, NOW + LEAP_MS + 1, NOW - 3):
        time.advance(timestamp)
    assert time.now() == NOW - 3
    time.advance(NOW + LEAP_MS)
    assert time.now() == NOW + LEAP_MS
    now[0] += 10
    time.advance(NOW + LEAP_MS + 10)
    assert time.now() == NOW + LEAP_MS + 10


def test_the_machines_clock_is_looked_at_only_for_a_record_beyond_what_it_allowed() -> None:
    looks: list[int] = []

    def clock() -> int:
        looks.append(NOW)
        return NOW

    time = EventTimeClock(clock, -1)
    for timestamp in (NOW, NOW + 1, NOW + LEAP_MS, NOW - 1):
        time.advance(timestamp)

    assert len(looks) == 2, "at the beginning, and for the first record"


def test_a_stored_time_of_the_future_says_nothing_to_records() -> None:
    assert discard_future_time("event", NOW + LEAP_MS, NOW) == NOW + LEAP_MS
    assert discard_future_time("event", NOW + LEAP_MS + 1, NOW) == UNKNOWN
    assert discard_future_time("processing", NOW + LEAP_MS + 1, NOW) == NOW


# ---------------------------------------------------------------- state


def opened(world: World, clock: Clock, ttl: Ttl, handle: StateHandle | None = None) -> tuple[Any, Any]:
    backend = world.open([handle] if handle else [], clock=clock)
    return backend, backend.value(value(ttl))


def test_a_leap_expires_nothing_and_makes_nothing_immortal(world: World) -> None:
    clock = Clock(NOW)
    backend, state = opened(world, clock, Ttl(10))
    state.put("before", 1)
    snapshot(world, backend, 1)
    clock.now = FAR
    snapshot(world, backend, 2)
    state.put("within", 2)

    assert (state.get("before"), state.get("within"), rows(backend)) == (1, 2, 1)

    clock.now = NOW
    state.put("after", 3)
    snapshot(world, backend, 3)
    clock.now += 9_999

    assert dict(state.items()) == {"before": 1, "within": 2, "after": 3}

    clock.now += 1_000
    snapshot(world, backend, 4)

    assert (dict(state.items()), rows(backend)) == ({}, 0)


def test_a_job_that_is_started_under_a_clock_that_leapt_loses_nothing(world: World) -> None:
    clock = Clock(NOW)
    backend, state = opened(world, clock, Ttl(10))
    state.put("k", 1)
    handle = snapshot(world, backend, 1)
    clock.now = FAR
    backend, state = opened(world, clock, Ttl(10), handle)

    assert state.get("k") == 1

    clock.now += 10_000
    handle = snapshot(world, backend, 2)

    assert (state.get("k"), rows(backend)) == (None, 0)

    clock.now = NOW + 11_000
    backend, state = opened(world, clock, Ttl(10), handle)
    state.put("k", 2)
    clock.now += 10_000

    assert state.get("k") is None


def test_what_was_stored_under_a_clock_that_was_ahead_expires_a_time_to_live_later(world: World) -> None:
    clock = Clock(FAR)
    backend, state = opened(world, clock, Ttl(10))
    state.put("ahead", 1)
    handle = snapshot(world, backend, 1)
    clock.now = NOW
    backend, state = opened(world, clock, Ttl(10), handle)
    state.put("right", 2)

    assert dict(state.items()) == {"ahead": 1, "right": 2}

    handle = snapshot(world, backend, 2)  # the clean-up gives it a time
    clock.now += 10_000
    backend, state = opened(world, clock, Ttl(10), handle)

    assert dict(state.items()) == {}


def test_a_record_of_the_future_expires_nothing_and_makes_nothing_immortal(world: World) -> None:
    clock, ttl = Clock(NOW), Ttl(10, clock="event")
    backend, state = opened(world, clock, ttl)
    state.advance(NOW)
    state.put("before", 1)
    state.advance(FAR)
    state.put("of the future", 2)
    handle = snapshot(world, backend, 1)

    assert handle.states[0]["marks"] == {"time": NOW}

    state.advance(NOW + 9_999)
    assert dict(state.items()) == {"before": 1, "of the future": 2}
    state.advance(NOW + 10_000)
    assert dict(state.items()) == {}


def test_an_event_time_of_the_future_that_is_stored_is_forgotten(world: World) -> None:
    ttl = Ttl(10, clock="event")
    backend, state = opened(world, Clock(FAR), ttl)
    state.advance(FAR)
    state.put("k", 1)
    handle = snapshot(world, backend, 1)
    assert handle.states[0]["marks"] == {"time": FAR}

    backend, state = opened(world, Clock(NOW), ttl, handle)
    state.advance(NOW)
    assert state.get("k") == 1
    snapshot(world, backend, 2)
    state.advance(NOW + 10_000)

    assert state.get("k") is None


def test_a_change_of_the_value_under_a_clock_that_leapt_keeps_what_is_stored(world: World) -> None:
    clock = Clock(NOW)
    backend, state = opened(world, clock, Ttl(10))
    state.put("k", 1)
    handle = snapshot(world, backend, 1)
    clock.now = FAR
    off: StateDescriptor[Any] = replace(value(Ttl(10)), ttl=None)

    assert dict(world.open([handle], clock=clock).value(off).items()) == {"k": 1}
