"""Timers: each once, in the order of time, wherever they are kept; and event time that never goes back for a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from state_world import World, snapshot

from kafka_eos.abc.state import StateHandle, TimerService, Ttl
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.runtime.state.memory_store import MemoryRows
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.timers import PendingTimers, TimeCodec, TimerValueCodec, create_timer_descriptor
from kafka_eos.savepoints.snapshot import descriptor_of
from tests.limits import set_limits

DESCRIPTOR = create_timer_descriptor("event-timers", KeyCodec())
ALL = range(128)


def pending(rows: MemoryRows, limit: int = 1000, groups: range = ALL) -> PendingTimers:
    bounds = groups.start, groups.stop - 1
    return PendingTimers("op", DESCRIPTOR, rows, groups, limit, (), bounds)


def fired(found: TimerService, until: int) -> list[tuple[int, object]]:
    return [(time, key) for time, key, _ in found.pop_due(until)]


def test_timers_fire_in_the_order_of_time_and_of_keys_within_one() -> None:
    found = pending(MemoryRows())
    for key, time in [("b", 5), ("a", 5), ("c", -3), ("a", 9), ("d", 4)]:
        found.add(key, time)

    assert fired(found, 5) == [(-3, "c"), (4, "d"), (5, "a"), (5, "b")]
    assert fired(found, 100) == [(9, "a")]


def test_a_time_of_a_key_is_there_once() -> None:
    found = pending(MemoryRows())
    found.add("a", 5)
    found.flush()
    found.add("a", 5)

    assert fired(found, 5) == [(5, "a")]


def test_event_time_stands_at_each_timer_while_it_fires() -> None:
    found = pending(MemoryRows())
    found.add("a", 3)
    found.add("b", 5)

    assert [(time, found.get_time("a")) for time, _, _ in found.pop_due(10)] == [(3, 3), (5, 5)]
    assert found.get_time("a") == 10


def test_timers_that_are_added_while_others_fire_come_in_their_turn() -> None:
    found = pending(MemoryRows())
    found.add("a", 1)
    found.add("b", 2)
    seen = []
    for time, key, _ in found.pop_due(6):
        seen.append((time, key))
        if key == "a":
            found.add("a", time + 2)

    assert seen == [(1, "a"), (2, "b"), (3, "a"), (5, "a")]


def test_a_time_that_is_over_is_refused() -> None:
    found = pending(MemoryRows())
    assert fired(found, 5) == []

    with pytest.raises(Bug, match="has passed"):
        found.add("a", 5)


def test_the_rows_of_a_group_are_in_the_order_of_time() -> None:
    layout = RowKeyCodec(DESCRIPTOR)
    keys = [layout.encode(("a", time)) for time in (-(2**40), -1, 0, 1, 2**40)]

    assert keys == sorted(keys)
    assert [layout.decode(key) for key in keys] == [("a", time) for time in (-(2**40), -1, 0, 1, 2**40)]


def test_these_are_the_bytes_of_a_timer() -> None:
    """Durable: whatever changes here can no longer read what is stored."""
    group = group_of(b"\xa1a")

    assert RowKeyCodec(DESCRIPTOR).encode(("a", 258)) == bytes([0, group]) + b"\x80\0\0\0\0\0\1\2" + b"\xa1a"
    assert TimerValueCodec().encode(True) == b""


@pytest.mark.parametrize("time", [-(2**63), 2**63 - 1])
def test_times_at_both_ends_come_back(time: int) -> None:
    assert TimeCodec().decode(TimeCodec().encode(time)) == time


def test_what_no_timer_is_stored_as_is_refused() -> None:
    assert TimerValueCodec().decode(b"") is True
    with pytest.raises(ValueError, match="2 bytes are stored"):
        TimerValueCodec().decode(b"ab")
    with pytest.raises(ValueError, match="the value of a timer must be True"):
        TimerValueCodec().encode(False)
    with pytest.raises(ValueError, match="8 bytes, not 7"):
        TimeCodec().decode(bytes(7))


@pytest.mark.parametrize("other", [{"kind": "map"}, {"ttl": Ttl(5)}, {"namespace": KeyCodec()}])
def test_what_is_described_as_something_else_is_no_timers(other: dict[str, Any]) -> None:
    with pytest.raises(Bug, match="describes no timers"):
        PendingTimers("op", replace(DESCRIPTOR, **other), MemoryRows(), ALL, 1, (), (0, 127))


def test_a_time_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match="64 bits"):
        pending(MemoryRows()).add("a", 2**63)


def test_the_greatest_key_at_the_last_time_fires() -> None:
    """Its row key is the greatest there can be."""
    rows = MemoryRows()
    found = pending(rows)
    found.add(-1, 2**63 - 1)
    found.flush()

    assert fired(pending(rows), 2**63 - 1) == [(2**63 - 1, -1)]


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 12), st.integers(1, 40)),
        st.tuples(st.just("remove"), st.integers(0, 12), st.integers(1, 40)),
        st.tuples(st.just("advance"), st.integers(0, 15), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("restore"), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(OPS, st.sampled_from([1, 3, 1000]), st.sampled_from([1, 2, 256]))
def test_any_number_in_memory_and_on_disk_fires_what_a_sorted_set_would(
    ops: Sequence[tuple[str, int, int]], limit: int, page: int
) -> None:
    with set_limits(timers_per_page=page):
        rows = MemoryRows()
        found, model, now = pending(rows, limit), set[tuple[int, int]](), 0
        assert fired(found, 0) == []
        for op, number, ahead in ops:
            match op:
                case "add":
                    found.add(number, now + ahead)
                    model.add((now + ahead, number))
                case "remove":
                    found.remove(number, now + ahead)
                    model.discard((now + ahead, number))
                case "advance":
                    now += number
                    due = sorted(timer for timer in model if timer[0] <= now)
                    assert fired(found, now) == due
                    model.difference_update(due)
                case "flush":
                    found.flush()
                    assert found.pending == len(model)
                case "restore":
                    found.flush()
                    found = pending(rows, limit)
                    assert found.pending == len(model)
                    assert fired(found, now) == []
        assert fired(found, 1000) == sorted(model)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_how_many_are_pending_is_told_after_a_restore_too_with_any_number_of_subtasks(
    world: World, parallelism: int
) -> None:
    backend = world.open()
    assert backend.pending_timers() is None
    found = backend.timers(DESCRIPTOR)
    for key in range(100):
        found.add(key, 1 + key % 10)
    assert len(fired(found, 3)) == 30
    handles = [snapshot(world, backend)]
    assert backend.pending_timers() == 70
    assert handles[0].states[0]["pending"] == 70

    after = [world.open(handles, key_group_range(subtask, parallelism)) for subtask in range(parallelism)]
    opened_ = [each.timers(DESCRIPTOR) for each in after]
    for key in range(100):  # each is there once, and half of them were not
        share = next(
            n for n in range(parallelism) if group_of(KeyCodec().encode(key)) in key_group_range(n, parallelism)
        )
        opened_[share].add(key, 9 + key % 2)
    for each in after:
        snapshot(world, each, 2)

    there = {(key, 1 + key % 10) for key in range(100) if key % 10 > 2} | {(key, 9 + key % 2) for key in range(100)}
    assert sum(each.pending_timers() or 0 for each in after) == len(there)


def test_how_many_are_pending_is_told_when_very_many_are_set_once_more() -> None:
    rows = MemoryRows()
    first = pending(rows)
    for time in range(1, 2001):
        first.add("a", time)
    first.flush()
    found = pending(rows, 10_000)
    for time in range(1, 2001):
        found.add("a", time)
    found.flush()

    assert (first.pending, found.pending) == (2000, 2000)


def test_far_timers_take_no_memory() -> None:
    with set_limits(timers_per_page=2):
        found = pending(MemoryRows(), limit=10)
        for key in range(5000):
            found.add(key, 1 + key)
        found.flush()

        assert len(found._known) <= 2 * len(ALL)
        assert fired(found, 5000) == [(1 + key, key) for key in range(5000)]


def test_many_are_written_while_they_are_set_and_deleted_while_they_fire() -> None:
    rows = MemoryRows()
    found = pending(rows, limit=10)
    for time in range(1, 101):
        found.add("a", time)
        assert time - 10 <= len(rows.data) <= time
    found.flush()

    for time, _, _ in found.pop_due(100):
        assert 100 - time <= len(rows.data) <= 100 - time + 10


# ---------------------------------------------------------------- in a backend


def opened(world: World, handles: Sequence[StateHandle], parallelism: int) -> list[TimerService]:
    shares = [key_group_range(subtask, parallelism) for subtask in range(parallelism)]
    return [world.open(handles, share).timers(DESCRIPTOR) for share in shares]


def owner(key: object, parallelism: int) -> int:
    group = group_of(KeyCodec().encode(key))
    return next(n for n in range(parallelism) if group in key_group_range(n, parallelism))


KEYS = [f"k{n}" for n in range(50)]


def filled(world: World, times: Sequence[int], at: Sequence[int]) -> list[StateHandle]:
    """Handles of subtasks with a timer for each key and time; ``at``: the event time of each subtask."""
    parallelism, handles = len(at), []
    for subtask in range(parallelism):
        backend = world.open((), key_group_range(subtask, parallelism))
        found = backend.timers(DESCRIPTOR)
        for key in (key for key in KEYS if owner(key, parallelism) == subtask):
            for time in times:
                found.add(key, time)
        assert list(found.pop_due(at[subtask])) == []
        handles.append(snapshot(world, backend))
    return handles


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_timers_survive_a_restore_with_any_number_of_subtasks(world: World, parallelism: int) -> None:
    handles = filled(world, [30, 20], [10, 10, 10])
    found = opened(world, handles, parallelism)

    assert sorted(each for part in found for each in fired(part, 25)) == sorted((20, key) for key in KEYS)
    assert sorted(each for part in found for each in fired(part, 35)) == sorted((30, key) for key in KEYS)


def test_what_has_fired_and_what_was_deleted_stays_gone(world: World) -> None:
    backend = world.open()
    found = backend.timers(DESCRIPTOR)
    for time in (10, 20, 30):
        found.add("a", time)
    first = snapshot(world, backend)
    assert fired(found, 10) == [(10, "a")]
    found.remove("a", 20)
    second = snapshot(world, backend, 2)

    assert fired(opened(world, [first], 1)[0], 100) == [(10, "a"), (20, "a"), (30, "a")]
    assert fired(opened(world, [second], 1)[0], 100) == [(30, "a")]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_a_snapshot_has_left_of_a_time_comes_first_and_nothing_of_later_times(
    world: World, parallelism: int
) -> None:
    """Of two subtasks that stand at different times, one of them amid the timers of its time."""
    handles, done = filled(world, [7, 30], [3, 3]), []
    amid = world.open(handles[:1], key_group_range(0, 2))
    found = amid.timers(DESCRIPTOR)
    assert fired(found, MIN_EVENT_TIME) == []
    due = iter(found.pop_due(40))
    while not done or done[-1][0] == 7:
        done.append(next(due)[:2])
    handles[0] = snapshot(world, amid)
    assert ["unfired" in handle.states[0] for handle in handles] == [True, False]

    again = opened(world, handles, parallelism)

    mine = [key for key in KEYS if owner(key, 2) == 0]
    others = [key for key in KEYS if owner(key, 2) == 1]
    left = [each for part in again for each in fired(part, MIN_EVENT_TIME)]
    assert sorted(done + left) == sorted([(7, key) for key in mine] + [(30, key) for key in mine])
    assert sum(part.pending for part in again) == 2 * len(others)  # type: ignore[attr-defined]
    assert [part.get_time(key) for part in again for key in mine if owner(key, parallelism) == again.index(part)] == (
        [30] * len(mine)
    )
    assert sorted(each for part in again for each in fired(part, 7)) == [(7, key) for key in sorted(others)]
    assert sorted(each for part in again for each in fired(part, 30)) == [(30, key) for key in sorted(others)]


@pytest.mark.limits(timers_per_page=7, cached_timers=50)
def test_what_a_snapshot_has_left_comes_page_by_page_but_for_what_is_deleted_first(world: World) -> None:
    """Or meanwhile, by those that fire: also when the deletion was written after the page had been read."""
    backend = world.open()
    found = backend.timers(DESCRIPTOR)
    keys = [f"k{n}" for n in range(130 * 30)]
    for key in keys:
        found.add(key, 5)
    first = next(iter(found.pop_due(9)))[1]
    handle = snapshot(world, backend)

    (again,) = opened(world, [handle], 1)
    again.remove("k77", 5)
    wanted = [key for key in sorted(keys, key=KeyCodec().encode) if key not in (first, "k77")]
    shown = list[object]()
    for _, key, _ in again.pop_due(MIN_EVENT_TIME):
        shown.append(key)
        if len(shown) % 3 == 1 and len(shown) < len(wanted):
            again.remove(wanted.pop(len(shown)), 5)  # the one that is next

    assert shown == wanted
    assert fired(again, 100) == []


def test_event_time_is_part_of_the_checkpoint(world: World) -> None:
    (found,) = opened(world, filled(world, [], [17]), 1)

    assert found.get_time("a") == 17


def test_before_any_watermark_it_is_the_beginning(world: World) -> None:
    assert world.open().timers(DESCRIPTOR).get_time("a") == MIN_EVENT_TIME


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_event_time_goes_back_for_no_key_when_subtasks_have_come_to_different_times(
    world: World, parallelism: int
) -> None:
    at = [17, 3]
    found = opened(world, filled(world, [], at), parallelism)

    assert [found[owner(key, parallelism)].get_time(key) for key in KEYS] == [at[owner(key, 2)] for key in KEYS]


def test_the_times_of_ranges_survive_another_checkpoint_and_end_when_all_have_come_there(world: World) -> None:
    backend = world.open(filled(world, [], [17, 3]))
    found = backend.timers(DESCRIPTOR)
    assert fired(found, 9) == []
    handle = snapshot(world, backend)
    (again,) = opened(world, [handle], 1)

    assert {found.get_time(key) for key in KEYS} == {again.get_time(key) for key in KEYS} == {17, 9}
    assert handle.states[0]["watermarks"] == [[0, 63, 17], [64, 127, 9]]
    last = next(f"k{n}" for n in range(100_000) if group_of(KeyCodec().encode(f"k{n}")) == 63)
    assert (again.get_time(last), again.get_max_time()) == (17, 17)

    assert fired(again, 20) == []
    assert {again.get_time(key) for key in KEYS} == {20}


def test_ranges_that_have_come_to_one_time_are_one_and_the_others_keep_theirs() -> None:
    floors = [(96, 127, 9), (0, 31, 5), (64, 95, 7), (32, 63, 5)]
    found = PendingTimers("op", DESCRIPTOR, MemoryRows(), ALL, 1000, floors, (0, 127))

    assert [found.get_group_time(group) for group in (0, 31, 32, 63, 64, 95, 96, 127)] == [5, 5, 5, 5, 7, 7, 9, 9]
    assert found.get_max_time() == 9
    assert found.watermarks() == [[0, 63, 5], [64, 95, 7], [96, 127, 9]]

    found.begin_time(7)
    assert found.watermarks() == [[0, 95, 7], [96, 127, 9]]
    found.begin_time(3)
    assert found.watermarks() == [[0, 95, 7], [96, 127, 9]]
    assert fired(found, 9) == []
    assert found.watermarks() == [[0, 127, 9]]
    assert found.get_max_time() == 9


def test_a_subtask_tells_the_times_of_its_own_groups_alone() -> None:
    found = PendingTimers("op", DESCRIPTOR, MemoryRows(), range(32, 80), 1000, [(0, 63, 5), (64, 127, 8)], (32, 79))

    assert found.watermarks() == [[32, 63, 5], [64, 79, 8]]


@pytest.mark.parametrize(
    ("times", "all_fired"), [([], True), ([MIN_EVENT_TIME] * 3, True), ([MIN_EVENT_TIME, 5, MIN_EVENT_TIME], False)]
)
def test_what_has_come_may_have_left_some_that_have_not_fired(times: list[int], all_fired: bool) -> None:
    floors = [(40 * at, 40 * at + 39, time) for at, time in enumerate(times)]
    found = PendingTimers("op", DESCRIPTOR, MemoryRows(), ALL, 1000, floors, (0, 127))

    assert found.all_fired is all_fired
    assert fired(found, MIN_EVENT_TIME) == []
    assert found.all_fired
    found.begin_time(6)
    assert not found.all_fired


def test_times_are_kept_by_a_job_that_does_not_open_its_timers(world: World) -> None:
    handle = snapshot(world, world.open(filled(world, [], [17])))

    assert opened(world, [handle], 1)[0].get_time("a") == 17


def test_what_is_stored_tells_how_to_read_it(world: World) -> None:
    handle = filled(world, [20], [5])[0]
    stored = descriptor_of(handle.states[0])

    assert (stored.kind, stored.key.name, stored.value.name, stored.entry and stored.entry.name) == (
        "timer",
        "key",
        "present",
        "time",
    )


def test_a_timer_that_is_a_row_alone_can_be_deleted() -> None:
    rows = MemoryRows()
    first = pending(rows)
    first.add("a", 5)
    first.add("b", 6)
    first.flush()

    found = pending(rows)
    found.remove("a", 5)
    assert fired(found, 10) == [(6, "b")]
    found.flush()
    assert rows.data == {}


def test_a_timer_of_a_group_that_is_not_there_is_refused_when_it_is_set_and_when_it_is_deleted() -> None:
    mine = group_of(KeyCodec().encode("a"))
    found = pending(MemoryRows(), groups=range(mine + 1, mine + 2))

    with pytest.raises(Bug, match="does not own its key group"):
        found.add("a", 5)
    with pytest.raises(Bug, match="does not own its key group"):
        found.remove("a", 5)
