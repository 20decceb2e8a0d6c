"""The contract of states with several places a key: both backends, on both storages."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from state_codecs import KEY, JsonText
from state_world import World, snapshot

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import BytesCodec
from kafka_eos.core.errors import Bug
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of, key_group_range

MAP: StateDescriptor[Any] = StateDescriptor("map", KEY, JsonText("number"), "map", entry=JsonText("entry"))
LIST: StateDescriptor[Any] = StateDescriptor("list", KEY, JsonText("number"), "list", entry=ElementNumberCodec())
WINDOWS: StateDescriptor[Any] = StateDescriptor("windows", KEY, JsonText("number"), namespace=JsonText("window"))
MAPS: StateDescriptor[Any] = StateDescriptor(
    "maps", KEY, JsonText("number"), "map", namespace=JsonText("window"), entry=JsonText("entry")
)


def add(state: Any, key: Any, *values: Any) -> None:
    for value in values:
        state.put((key, state.next_entry()), value)


def listed(state: Any, key: Any) -> list[Any]:
    return [value for _, value in state.scan_prefix(key)]


def test_entries_of_a_key_are_found_before_and_after_a_flush(world: World) -> None:
    backend = world.open()
    state = backend.value(MAP)
    for entry in "cab":
        state.put(("k", entry), entry * 2)
    state.put(("other", "a"), 0)
    expected = [(("k", entry), entry * 2) for entry in "abc"]

    assert list(state.scan_prefix("k")) == expected

    snapshot(world, backend)

    assert list(state.scan_prefix("k")) == expected

    state.put(("k", "b"), 1)
    state.put(("k", "aa"), 2)
    state.delete(("k", "c"))

    assert list(state.scan_prefix("k")) == [(("k", "a"), "aa"), (("k", "aa"), 2), (("k", "b"), 1)]
    assert [state.get(("k", entry)) for entry in ("a", "c", "aa")] == ["aa", None, 2]


def test_a_view_of_entries_is_seen_by_an_iteration(world: World) -> None:
    state = world.open().value(MAP)
    view = state.view([("k", "a"), ("k", "b")])
    view[("k", "a")] = 1

    assert list(state.scan_prefix("k")) == [(("k", "a"), 1)]


def test_namespaces_of_a_key(world: World) -> None:
    backend = world.open()
    windows, maps = backend.value(WINDOWS), backend.value(MAPS)
    for window in (3, 1, 2):
        windows.put(("k", window), window)
        for entry in "ba":
            maps.put(("k", window, entry), f"{window}{entry}")
    snapshot(world, backend)
    windows.delete(("k", 2))
    maps.put(("k", 1, "c"), "1c")

    assert list(windows.scan_prefix("k")) == [(("k", 1), 1), (("k", 3), 3)]
    assert [value for _, value in maps.scan_prefix("k")] == ["1a", "1b", "1c", "2a", "2b", "3a", "3b"]
    assert [value for _, value in maps.scan_prefix("k", 1)] == ["1a", "1b", "1c"]
    assert maps.get(("k", 3, "a")) == "3a"


def test_places_are_those_that_have_a_value(world: World) -> None:
    backend = world.open()
    maps = backend.value(MAPS)
    for place in (("k", 2, "a"), ("k", 1, "b"), ("k", 1, "a"), ("other", 1, "a")):
        maps.put(place, place)
    snapshot(world, backend)
    maps.delete(("k", 2, "a"))
    maps.put(("k", 3, "a"), 0)
    maps.view([("k", 4, "a")])

    assert list(maps.scan_keys("k")) == [("k", 1, "a"), ("k", 1, "b"), ("k", 3, "a")]
    assert list(maps.scan_keys("k", 1)) == [("k", 1, "a"), ("k", 1, "b")]

    plain = backend.value(StateDescriptor("plain", KEY, JsonText("number")))
    with pytest.raises(Bug, match="it has one entry per key"):
        plain.scan_keys("k")


def test_many_entries_come_in_pages(world: World) -> None:
    backend = world.open(cache_entries=100)
    state = backend.value(StateDescriptor("map", KEY, JsonText("number"), "map", entry=ElementNumberCodec()))
    for entry in range(5000):
        state.put(("k", entry), entry)
    snapshot(world, backend)
    for entry in range(0, 5000, 50):
        state.delete(("k", entry))

    assert [value for _, value in state.scan_prefix("k")] == [entry for entry in range(5000) if entry % 50]


@pytest.mark.limits(map_entries_in_first_page=2, map_entries_per_page=3)
def test_a_range_of_entries_is_found_before_and_after_a_flush(world: World) -> None:
    backend = world.open()
    state = backend.value(StateDescriptor("map", KEY, JsonText("number"), "map", entry=ElementNumberCodec()))
    for entry in (40, 10, 30, 0, 20, 50):
        state.put(("k", entry), entry)
    state.put(("other", 25), 0)

    assert list(state.scan_between("k", 10, 40)) == [(("k", entry), entry) for entry in (10, 20, 30)]

    snapshot(world, backend)
    state.delete(("k", 20))
    state.put(("k", 25), 25)
    state.put(("k", 30), 31)
    state.put(("k", 40), 41)

    assert [value for _, value in state.scan_between("k", 10, 40)] == [10, 25, 31]
    assert [value for _, value in state.scan_between("k", 40, 1000)] == [41, 50]
    assert list(state.scan_between("k", 11, 20)) == list(state.scan_between("k", 10, 10)) == []
    assert list(state.scan_between("nobody", 0, 1000)) == []


def test_the_first_entry_of_a_range_takes_one_small_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = world.open()
    state: Any = backend.value(StateDescriptor("map", KEY, JsonText("number"), "map", entry=ElementNumberCodec()))
    for entry in range(500):
        state.put(("k", entry), entry)
    backend = world.open([snapshot(world, backend)])
    state = backend.value(StateDescriptor("map", KEY, JsonText("number"), "map", entry=ElementNumberCodec()))
    asked: list[int] = []
    page = state._rows.page
    monkeypatch.setattr(state._rows, "page", lambda *at: (asked.append(at[-1]), page(*at))[1])

    assert next(iter(state.scan_between("k", 100, 400))) == (("k", 100), 100)
    assert asked == [LIMITS.map_entries_in_first_page]


def test_one_entry_is_read_and_written_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = world.open()
    state: Any = backend.value(MAP)
    for entry in range(100):
        state.put(("k", entry), entry)
    backend = world.open([snapshot(world, backend)])
    state = backend.value(MAP)
    read: list[int] = []
    written: list[int] = []
    get, write = state._rows.get, state._rows.write
    monkeypatch.setattr(state._rows, "get", lambda keys: (read.append(len(keys)), get(keys))[1])
    monkeypatch.setattr(state._rows, "write", lambda k, v, d: (written.append(len(k)), write(k, v, d))[1])
    monkeypatch.setattr(state._rows, "page", None)
    state.put(("k", 7), state.get(("k", 7)) + 1)
    snapshot(world, backend)

    assert (read, written) == ([1], [1])


@pytest.mark.parametrize("parallelism", [2, 3])
def test_lists_grow_over_restarts_and_rescaling(world: World, parallelism: int) -> None:
    """Whoever owns a key later goes on behind its elements, and does not write over them."""
    backend = world.open()
    state = backend.value(LIST)
    for key in range(20):
        add(state, key, 1, 2)
    handle = snapshot(world, backend)
    parts = [world.open([handle], key_group_range(s, parallelism)) for s in range(parallelism)]
    for subtask, part in enumerate(parts):
        state = part.value(LIST)
        for key in range(20):
            if group_of(KEY.encode(key)) in key_group_range(subtask, parallelism):
                add(state, key, *range(3, 5 + 50 * subtask))
    merged = world.open([snapshot(world, part) for part in parts])
    state = merged.value(LIST)
    for key in range(20):
        add(state, key, 99)
        longest = listed(state, key)

        assert longest == [1, 2, *range(3, len(longest)), 99]


def test_lists_go_on_where_no_registration_was_stored(world: World) -> None:
    """Rows that somebody else made."""
    backend = world.open()
    add(backend.value(LIST), "k", 1, 2)
    handle = snapshot(world, backend)
    bare = replace(handle, states=tuple({k: v for k, v in s.items() if k != "marks"} for s in handle.states))
    state = world.open([bare]).value(LIST)
    add(state, "k", 3)

    assert listed(state, "k") == [1, 2, 3]


def test_marks_of_a_list_that_is_not_opened_are_carried_along(world: World) -> None:
    backend = world.open()
    add(backend.value(LIST), "k", 1, 2)
    middle = world.open([snapshot(world, backend)])

    assert [dict(s)["marks"] for s in snapshot(world, middle).states] == [{"next": 2}]


def test_a_state_with_one_place_a_key_has_nothing_within(world: World) -> None:
    state = world.open().value(StateDescriptor("value", KEY, KEY))
    with pytest.raises(Bug):
        state.scan_prefix("k")
    with pytest.raises(Bug):
        state.scan_between("k", 0, 1)
    with pytest.raises(Bug):
        state.next_entry()


def test_an_entry_that_cannot_be_encoded_is_named(world: World) -> None:
    backend = world.open()
    backend.value(MAP).put(("k", frozenset()), 1)
    with pytest.raises(Exception, match=r"state 'map' of operator 'total'.*frozenset"):
        snapshot(world, backend)


def test_the_next_keys_empty_entry_is_not_within(world: World) -> None:
    """Its row key is exactly where the range of the key ends, if both are of one group."""
    raw: Any = BytesCodec()
    neighbours = ((n.to_bytes(2, "big"), (n + 1).to_bytes(2, "big")) for n in range(0x6000, 0x6100))
    key, following = next((a, b) for a, b in neighbours if group_of(a) == group_of(b))
    backend = world.open()
    state = backend.value(StateDescriptor("raw", raw, KEY, "map", entry=raw))
    for place in ((key, b""), (key, b"\xff\xff"), (following, b"")):
        state.put(place, 1)
    snapshot(world, backend)

    assert [place for place, _ in state.scan_prefix(key)] == [(key, b""), (key, b"\xff\xff")]


def test_going_through_a_key_of_another_subtask_is_a_bug(world: World) -> None:
    backend = world.open(groups=range(64))
    state = backend.value(MAP)
    foreign = next(key for key in range(1000) if group_of(KEY.encode(key)) >= 64)
    with pytest.raises(Bug):
        list(state.scan_prefix(foreign))
