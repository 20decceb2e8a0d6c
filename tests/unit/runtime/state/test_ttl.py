"""State that expires: never returned late, cleaned up a bounded number of rows at a time, by a clock that tests set."""

from __future__ import annotations

from typing import Any

import pytest
from state_codecs import KEY, JsonText
from state_world import World, snapshot

from kafka_eos.abc.state import StateBackend, StateDescriptor, Ttl
from kafka_eos.core.errors import PlanError
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.expiring_state import TimestampedCodec, add_timestamp, is_expired, unstamped
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.state.ttl_clock import UNKNOWN

NUMBER: Any = JsonText("number")


class Clock:
    """Milliseconds, as a test sets them."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def value(ttl: Ttl | None, **more: Any) -> StateDescriptor[Any]:
    return StateDescriptor("state", KEY, NUMBER, ttl=ttl, **more)


def rows(backend: StateBackend) -> int:
    """How many rows there are, expired or not."""
    store: Any = backend
    return len(list(store._store.rows("state").scan()))


@pytest.fixture
def clock() -> Clock:
    return Clock()


# ---------------------------------------------------------------- how it is stored


def test_a_value_is_stored_behind_eight_bytes_of_time() -> None:
    """Changing this makes every stored state with a time to live unreadable."""
    codec = TimestampedCodec(NUMBER)

    assert codec.encode((1_700_000_000_000, 7)) == bytes.fromhex("0000018bcfe56800") + b"7"
    assert codec.encode((UNKNOWN, 7)) == b"\xff" * 8 + b"7"
    for stamp in (1_700_000_000_000, UNKNOWN):
        assert codec.decode(codec.encode((stamp, 7))) == (stamp, 7)
        assert unstamped(add_timestamp(stamp, b"")) == (stamp, b"")


def test_what_is_too_short_for_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 bytes, got 7"):
        unstamped(b"\0" * 7)


def test_a_timed_value_is_described_as_its_own_codec() -> None:
    assert (TimestampedCodec(NUMBER).name, TimestampedCodec(NUMBER).schema) == ("json-text", "number")


@pytest.mark.parametrize("seconds", [0.5, 10])
def test_a_value_is_gone_at_the_millisecond_and_never_without_a_time(seconds: float) -> None:
    milliseconds = int(seconds * 1000)

    assert is_expired(5, 5 + milliseconds, seconds)
    assert not is_expired(5, 4 + milliseconds, seconds)
    assert is_expired(0, milliseconds, seconds), "a time like any other"
    assert not is_expired(UNKNOWN, 10**15, seconds)


# ---------------------------------------------------------------- reads and writes


def test_a_value_is_there_until_its_time_is_up(world: World, clock: Clock) -> None:
    state = world.open(clock=clock).value(value(Ttl(10)))
    state.put("k", 1)
    clock.now += 9_999

    assert (state.get("k"), dict(state.items())) == (1, {"k": 1})

    clock.now += 1

    assert (state.get("k"), dict(state.items())) == (None, {})


def test_a_write_renews_and_a_read_does_only_if_it_counts(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    plain = backend.value(StateDescriptor("plain", KEY, NUMBER, ttl=Ttl(10)))
    refreshed = backend.value(StateDescriptor("refreshed", KEY, NUMBER, ttl=Ttl(10, refresh="read-write")))
    for state in (plain, refreshed):
        state.put("written again", 1)
        state.put("read", 1)
    clock.now += 6_000
    for state in (plain, refreshed):
        state.put("written again", 2)
        assert state.get("read") == 1
    clock.now += 6_000

    assert [(s.get("written again"), s.get("read")) for s in (plain, refreshed)] == [(2, None), (2, 1)]


@pytest.mark.parametrize("kind_of_read", ["get", "within"])
def test_what_is_found_to_have_expired_goes_at_once(world: World, clock: Clock, kind_of_read: str) -> None:
    """Without the clean-up, which has its own pace."""
    backend = world.open(clock=clock)
    state: Any = backend.value(StateDescriptor("state", KEY, NUMBER, "map", entry=KEY, ttl=Ttl(10)))
    state.put(("k", "a"), 1)
    state.flush()
    clock.now += 10_000

    assert (state.get(("k", "a")) if kind_of_read == "get" else list(state.scan_prefix("k"))) in (None, [])
    state.flush()
    assert rows(backend) == 0


@pytest.mark.parametrize("kind_of_read", ["get", "within"])
def test_a_read_that_counts_writes_only_if_time_has_passed(world: World, clock: Clock, kind_of_read: str) -> None:
    ttl = Ttl(10, refresh="read-write")
    state: Any = world.open(clock=clock).value(StateDescriptor("state", KEY, NUMBER, "map", entry=KEY, ttl=ttl))
    state.put(("k", "a"), 1)
    state.flush()
    for writes in (False, True):
        found = state.get(("k", "a")) if kind_of_read == "get" else dict(state.scan_prefix("k"))["k", "a"]
        assert (found, state._inner.changed(("k", "a"))) == (1, writes)
        clock.now += 1


def test_what_is_deleted_is_gone_and_does_not_come_back(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10)))
    for key in "ab":
        state.put(key, 1)
    handle = snapshot(world, backend)
    state.delete("a")

    assert (state.get("a"), dict(state.items())) == (None, {"b": 1})

    again = world.open([handle], clock=clock)
    restored = again.value(value(Ttl(10)))
    restored.delete("a")
    assert dict(world.open([snapshot(world, again, 2)], clock=clock).value(value(Ttl(10))).items()) == {"b": 1}


def test_time_that_has_passed_while_the_job_was_down_counts(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    backend.value(value(Ttl(10))).put("k", 1)
    handle = snapshot(world, backend)
    clock.now += 9_000

    assert world.open([handle], clock=clock).value(value(Ttl(10))).get("k") == 1

    clock.now += 1_000

    assert world.open([handle], clock=clock).value(value(Ttl(10))).get("k") is None


def test_a_clock_that_is_set_back_brings_nothing_back(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10)))
    state.put("k", 1)
    clock.now += 10_000
    view = state.view(["k"])

    assert "k" not in view

    clock.now -= 5_000

    assert state.get("k") is None

    state.put("k", 2)
    handle = snapshot(world, backend)
    clock.now -= 500_000
    restored = world.open([handle], clock=clock).value(value(Ttl(10)))

    assert restored.get("k") == 2


def test_event_time_is_the_highest_timestamp_seen(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10, clock="event")))
    state.advance(5_000)
    state.put("k", 1)
    clock.now += 1_000_000
    state.advance(14_999)
    state.advance(3)

    assert state.get("k") == 1

    restored = world.open([snapshot(world, backend)], clock=clock).value(value(Ttl(10, clock="event")))

    assert restored.get("k") == 1

    restored.put("late", 2)
    restored.advance(15_000)

    assert (restored.get("k"), restored.get("late")) == (None, 2)


def test_what_is_written_before_event_time_is_known_expires_once_it_is(world: World) -> None:
    backend = world.open()
    state = backend.value(value(Ttl(10, clock="event")))
    state.put("k", 1)
    snapshot(world, backend, 1)
    state.advance(1_000_000)

    assert state.get("k") == 1

    snapshot(world, backend, 2)
    state.advance(1_009_999)

    assert state.get("k") == 1

    state.advance(1_010_000)

    assert state.get("k") is None


def test_entries_and_elements_expire_one_by_one(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    maps = backend.value(StateDescriptor("map", KEY, NUMBER, "map", entry=KEY, ttl=Ttl(10)))
    descriptor: StateDescriptor[Any] = StateDescriptor(
        "list", KEY, NUMBER, "list", entry=ElementNumberCodec(), ttl=Ttl(10)
    )
    lists = backend.value(descriptor)
    for entry in "abc":
        maps.put(("k", entry), entry)
        lists.put(("k", lists.next_entry()), entry)
        clock.now += 4_000

    assert [[v for _, v in state.scan_prefix("k")] for state in (maps, lists)] == [["b", "c"], ["b", "c"]]

    restored = world.open([snapshot(world, backend)], clock=clock)
    clock.now += 2_000

    assert [v for _, v in restored.value(descriptor).scan_prefix("k")] == ["c"]


def test_reads_that_count_renew_what_an_iteration_returns(world: World, clock: Clock) -> None:
    ttl = Ttl(10, refresh="read-write")
    state = world.open(clock=clock).value(StateDescriptor("map", KEY, NUMBER, "map", entry=KEY, ttl=ttl))
    state.put(("k", "a"), 1)
    clock.now += 6_000
    list(state.scan_prefix("k"))
    clock.now += 6_000

    assert list(state.scan_prefix("k")) == [(("k", "a"), 1)]


def test_places_have_not_expired_and_listing_them_renews_nothing(world: World, clock: Clock) -> None:
    ttl = Ttl(10, refresh="read-write")
    state = world.open(clock=clock).value(StateDescriptor("map", KEY, NUMBER, "map", entry=KEY, ttl=ttl))
    state.put(("k", "a"), 1)
    clock.now += 6_000
    state.put(("k", "b"), 2)

    assert list(state.scan_keys("k")) == [("k", "a"), ("k", "b")]

    clock.now += 4_000

    assert list(state.scan_keys("k")) == [("k", "b")]
    assert state.get(("k", "a")) is None


def test_a_view_hides_what_has_expired_and_stamps_what_is_written(world: World, clock: Clock) -> None:
    state = world.open(clock=clock).value(value(Ttl(10)))
    state.put("old", 1)
    clock.now += 10_000
    state.put("new", 2)
    view = state.view(["old", "new", "third"])
    view["third"] = 3

    assert {key: view[key] for key in view} == {"new": 2, "third": 3}
    assert list(state.get_last_written(["third", "new"])) == [3, 2]
    assert (len(view), view.get("old")) == (2, None)

    del view["new"]
    clock.now += 9_000

    assert dict(state.items()) == {"third": 3}


def test_the_clean_up_drops_a_bounded_number_of_rows_a_checkpoint(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock, options=StateOptions(ttl_cleanup_rows=30))
    state = backend.value(value(Ttl(10)))
    for key in range(100):
        state.put(key, key)
    snapshot(world, backend, 1)
    clock.now += 10_000
    state.put(7, "again")
    left = []
    for epoch in range(2, 7):
        snapshot(world, backend, epoch)
        left.append(rows(backend))

    assert left == [71, 41, 11, 1, 1]
    assert dict(state.items()) == {7: "again"}


def test_the_clean_up_goes_on_in_the_next_session_where_it_was(world: World, clock: Clock) -> None:
    """Also if sessions are short. The rows that come first are written in every one of them and stay."""
    options = StateOptions(ttl_cleanup_rows=30)
    backend = world.open(clock=clock, options=options)
    state = backend.value(value(Ttl(10)))
    for key in range(100):
        state.put(key, key)
    handle = snapshot(world, backend, 1)
    store: Any = backend
    in_order = [
        store._open["state"]._inner.decode_row_key(row) for row, _ in store._store.rows("state").page(b"", b"\xff", 100)
    ]
    clock.now += 10_000
    left = []
    for epoch in range(2, 6):
        backend = world.open([handle], clock=clock, options=options)
        state = backend.value(value(Ttl(10)))
        for key in in_order[:30]:
            state.put(key, "again")
        handle = snapshot(world, backend, epoch)
        left.append(rows(backend))

    assert left == [100, 70, 40, 30]
    assert sorted(state.items()) == sorted((key, "again") for key in in_order[:30])


def test_the_clean_up_begins_again_after_the_last_row(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock, options=StateOptions(ttl_cleanup_rows=10))
    state = backend.value(value(Ttl(10)))
    for epoch in range(1, 31):
        for key in range(5):
            state.put(f"{epoch}-{key}", epoch)
        snapshot(world, backend, epoch)
        clock.now += 5_000

        assert rows(backend) <= 40  # 15 alive, and what is added in one round of the clean-up


def test_the_clean_up_writes_over_nothing(world: World, clock: Clock) -> None:
    """A place that was written since the last checkpoint is decided there, not by its old row."""
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10)))
    for key in "abc":
        state.put(key, 1)
    snapshot(world, backend, 1)
    clock.now += 10_000
    state.put("a", 2)
    state.view(["b"])["b"] = 3
    handle = snapshot(world, backend, 2)

    assert dict(world.open([handle], clock=clock).value(value(Ttl(10))).items()) == {"a": 2, "b": 3}
    assert rows(backend) == 2


EVERY_KIND: dict[str, StateDescriptor[Any]] = {
    "value": value(Ttl(10)),
    "map": StateDescriptor("state", KEY, NUMBER, "map", entry=KEY, ttl=Ttl(10)),
    "list": StateDescriptor("state", KEY, NUMBER, "list", entry=ElementNumberCodec(), ttl=Ttl(10)),
    "reducing": StateDescriptor("state", KEY, NUMBER, "reducing", namespace=KEY, ttl=Ttl(10)),
}


def places(state: Any, kind: str) -> list[Any]:
    """Twelve places of a state of that kind."""
    if kind == "value":
        return [f"k{n}" for n in range(12)]
    return [("k", state.next_entry() if kind == "list" else f"e{n}") for n in range(12)]


@pytest.mark.parametrize("kind_of_state", EVERY_KIND)
def test_the_clean_up_spares_what_was_just_written_though_the_cache_is_full(
    world: World, clock: Clock, kind_of_state: str
) -> None:
    """What it writes itself may flush: then nothing tells any more that a place was written since the last one."""
    backend = world.open(clock=clock, cache_entries=4)
    state = backend.value(EVERY_KIND[kind_of_state])
    found = places(state, kind_of_state)
    for place in found:
        state.put(place, 1)
    snapshot(world, backend, 1)
    clock.now += 10_000
    fresh = dict.fromkeys(found[2::3], 2)
    for place in fresh:
        state.put(place, 2)
    handle = snapshot(world, backend, 2)

    assert dict(state.items()) == fresh
    assert dict(world.open([handle], clock=clock).value(EVERY_KIND[kind_of_state]).items()) == fresh
    assert rows(backend) == 4


def test_the_clean_up_leaves_everything_as_it_is_while_no_time_is_known(world: World) -> None:
    """Or every checkpoint would store all rows again."""
    state: Any = world.open().value(value(Ttl(10, clock="event")))
    state.put("k", 1)
    state.flush()
    state.clean(10)
    assert not state._inner.changed("k")

    state.advance(5)
    state.clean(10)
    assert state._inner.changed("k"), "now it is given a time"
    state.flush()
    state.clean(10)
    assert not state._inner.changed("k"), "and it has one"


def test_the_clean_up_gives_no_old_value_a_time_in_place_of_a_new_one(world: World) -> None:
    backend = world.open(cache_entries=4)
    state = backend.value(value(Ttl(10, clock="event")))
    for n in range(12):
        state.put(f"k{n}", 1)
    snapshot(world, backend, 1)
    state.advance(1_000_000)
    for n in range(4):
        state.put(f"k{n}", 2)
    snapshot(world, backend, 2)

    assert dict(state.items()) == {f"k{n}": 2 if n < 4 else 1 for n in range(12)}


# ---------------------------------------------------------------- switching it on and off


@pytest.mark.parametrize("stage", ["processing", "event"])
def test_a_time_to_live_can_be_switched_on(world: World, clock: Clock, stage: Any) -> None:
    backend = world.open(clock=clock)
    backend.value(value(None)).put("k", 1)
    clock.now += 50_000
    ttl = Ttl(10, clock=stage)
    middle = world.open([snapshot(world, backend)], clock=clock)
    state = middle.value(value(ttl))
    state.advance(7_000_000)

    assert state.get("k") == 1

    state = world.open([snapshot(world, middle)], clock=clock).value(value(ttl))
    clock.now += 9_999
    state.advance(7_009_999)

    assert state.get("k") == 1

    clock.now += 1
    state.advance(7_010_000)

    assert state.get("k") is None


def test_switching_it_off_keeps_what_is_alive_and_nothing_else(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10)))
    state.put("old", 1)
    clock.now += 6_000
    state.put("new", 2)
    handle = snapshot(world, backend)
    clock.now += 5_000
    off = world.open([handle], clock=clock)

    assert dict(off.value(value(None)).items()) == {"new": 2}
    assert "ttl" not in snapshot(world, off).states[0]


def test_switching_event_time_off_drops_what_had_expired_by_then(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10, clock="event")))
    state.advance(1_000)
    state.put("old", 1)
    state.advance(9_000)
    state.put("new", 2)
    state.advance(11_000)
    handle = snapshot(world, backend)

    assert dict(world.open([handle], clock=clock).value(value(None)).items()) == {"new": 2}


def test_another_clock_starts_the_time_anew(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    backend.value(value(Ttl(10))).put("k", 1)
    handle = snapshot(world, backend)
    state = world.open([handle], clock=clock).value(value(Ttl(10, clock="event")))
    state.advance(5)

    assert state.get("k") == 1


def test_a_timestamp_far_in_the_future_says_nothing_to_the_machines_clock(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    state = backend.value(value(Ttl(10, clock="event")))
    state.advance(clock.now * 1_000)
    state.put("k", 1)
    state = world.open([snapshot(world, backend)], clock=clock).value(value(Ttl(10)))
    clock.now += 5_000
    state.put("later", 2)
    clock.now += 4_999

    assert dict(state.items()) == {"k": 1, "later": 2}

    clock.now += 1

    assert (state.get("k"), state.get("later")) == (None, 2)

    clock.now += 5_000

    assert state.get("later") is None


def test_the_machines_clock_says_nothing_to_records_of_long_ago(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    backend.value(value(Ttl(10))).put("k", 1)
    switched = world.open([snapshot(world, backend)], clock=clock)
    state = switched.value(value(Ttl(10, clock="event")))
    state.advance(5_000)
    state.put("later", 2)
    handle = snapshot(world, switched, 2)

    assert handle.states[0]["marks"] == {"time": 5_000}

    restored = world.open([handle], clock=clock).value(value(Ttl(10, clock="event")))
    restored.advance(14_999)

    assert dict(restored.items()) == {"k": 1, "later": 2}

    restored.advance(15_000)

    assert dict(restored.items()) == {}


def test_other_seconds_count_for_what_is_stored(world: World, clock: Clock) -> None:
    backend = world.open(clock=clock)
    backend.value(value(Ttl(10))).put("k", 1)
    handle = snapshot(world, backend)
    clock.now += 15_000

    assert world.open([handle], clock=clock).value(value(Ttl(20))).get("k") == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_to_live_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(PlanError, match="greater than 0"):
        Ttl(seconds)
