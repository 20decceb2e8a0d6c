"""The state of panes: whatever comes in between, each value is given out once, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_codecs import KEY
from state_world import Kind, World, snapshot

from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.errors import Bug
from kafka_eos.interfaces import StateBackend, StateDescriptor, StateHandle
from kafka_eos.schemas import MsgpackCodec
from kafka_eos.state.evolution import describe
from kafka_eos.state.fitting import fitting
from kafka_eos.state.keygroups import key_group_range
from kafka_eos.state.timers import TimeCodec

PANES: StateDescriptor[int] = StateDescriptor("windows", KEY, MsgpackCodec(int), "pane", entry=TimeCodec())
MAP: StateDescriptor[int] = StateDescriptor("windows", KEY, MsgpackCodec(int), "map", entry=TimeCodec())
KEYS = [f"k{n}" for n in range(6)]


class Part:
    """The state of one subtask, and what it has given out."""

    def __init__(self, backend: StateBackend) -> None:
        self.backend, self.panes = backend, backend.panes(PANES)

    def add(self, pane: int, keys: list[str]) -> None:
        view = self.panes.views({pane: keys})[pane]
        for key in keys:
            view[key] = view.get(key, 0) + 1

    def take(self, pane: int) -> dict[Any, int]:
        found = list(self.panes.take(pane))
        return {key: value for taken in found for key, value in zip(taken.keys, taken.values, strict=True)}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(-3, 3), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)),
        st.tuples(st.just("delete"), st.integers(-3, 3), st.sampled_from(KEYS)),
        st.tuples(st.just("late"), st.integers(-3, 3), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)),
        st.tuples(st.just("take"), st.just(0), st.none()),
        st.tuples(st.just("half"), st.just(0), st.none()),
        st.tuples(st.sampled_from(["snapshot", "restore", "older"]), st.just(0), st.none()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@given(steps=STEPS, limit=st.sampled_from([2, 1000]))
@settings(max_examples=20, deadline=None)
def test_each_value_is_given_out_once_whatever_comes_in_between(kind: Kind, steps: Any, limit: int) -> None:
    """``older``: what is stored is a map of times, as an earlier version had it, and is restored."""
    model: dict[tuple[str, int], int] = {}
    with TemporaryDirectory() as directory:
        world = World(kind, MemoryStorage(), Path(directory))
        part, passed = Part(world.open(cache_entries=limit)), -4
        for step, pane, what in steps:
            match step:
                case "add" if pane > passed:
                    part.add(pane, what)
                    model.update({(key, pane): model.get((key, pane), 0) + what.count(key) for key in set(what)})
                case "delete" if pane > passed:
                    part.panes.delete((what, pane))
                    model.pop((what, pane), None)
                case "late" if pane <= passed:  # rows of a pane that has been taken: looked up, and not written
                    assert not {*what} & part.panes.views({pane: what})[pane].keys()
                case "take" | "half":
                    first = part.panes.first()
                    held = [pane for _, pane in model]
                    assert not held if first is None else all(first <= pane for pane in held)
                    if first is not None:
                        wanted = {key: value for (key, pane), value in model.items() if pane == first}
                        taking = part.panes.take(first)
                        if step == "half":  # a snapshot before all of it is given out
                            begun = [each for each in [next(taking, None)] if each is not None]
                            snapshot(world, part.backend)
                        else:
                            begun = []
                        assert dict(_pairs([*begun, *taking])) == wanted
                        model = {place: value for place, value in model.items() if place[1] != first}
                        passed = max(passed, first)
                case "snapshot":
                    snapshot(world, part.backend)
                case "restore":
                    part = Part(world.open([snapshot(world, part.backend)], cache_entries=limit))
                case "older" if model:
                    backend = world.open()
                    state = backend.value(MAP)
                    for place, value in model.items():
                        state.put(place, value)
                    part = Part(world.open([snapshot(world, backend)], cache_entries=limit))
            for (key, at), value in model.items():
                assert part.panes.get((key, at)) == value
        last = Part(world.open([snapshot(world, part.backend)]))
        assert _all(last) == model
        assert _all(Part(world.open([snapshot(world, last.backend)]))) == {}
        world.close()


def _pairs(taking: Any) -> Any:
    for taken in taking:
        yield from zip(taken.keys, taken.values, strict=True)


def _all(part: Part) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    while (pane := part.panes.first()) is not None:
        found.update({(key, pane): value for key, value in part.take(pane).items()})
    return found


def test_it_comes_in_the_order_of_groups_and_keys_and_goes_with_its_groups(world: World) -> None:
    """A snapshot between two steps holds what has not been given out, whatever number of subtasks restores it."""
    keys = [f"key {n}" for n in range(3000)]
    part = Part(world.open())
    part.add(7, keys)
    part.add(9, keys[:1])
    snapshot(world, part.backend)
    taking = part.panes.take(7)
    first = [taken for taken in (next(taking) for _ in range(4)) if taken.keys]
    handle = snapshot(world, part.backend)
    rest: list[tuple[int, bytes, str]] = []
    for subtask in range(3):
        other = Part(world.open([handle], key_group_range(subtask, 3)))
        assert {pane for pane, _ in other.panes.restored()} <= {7, 9}
        rest += [
            row for taken in other.panes.take(7) for row in zip(taken.groups, taken.encoded, taken.keys, strict=True)
        ]
        other_handle = snapshot(world, other.backend)
        assert Part(world.open([other_handle], key_group_range(subtask, 3))).take(7) == {}
    begun = [row for taken in first for row in zip(taken.groups, taken.encoded, taken.keys, strict=True)]

    assert begun and rest and not part.take(8)
    assert begun + rest == sorted(begun + rest)
    assert sorted(key for *_, key in begun + rest) == sorted(keys)


def test_of_some_groups_only_what_is_theirs_is_given_out(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    restored = Part(world.open([snapshot(world, part.backend)]))
    groups = sorted({group for taken in part.panes.take(7) for group in taken.groups})

    some = [key for taken in restored.panes.take(7, groups[:2]) for key in taken.keys]

    assert restored.panes.restored() and {group for _, group in restored.panes.restored()} == set(groups[2:])
    assert 0 < len(some) < len(KEYS)
    assert sorted([*some, *restored.take(7)]) == KEYS


def test_a_late_row_does_not_bring_back_what_has_been_taken_and_is_not_deleted_yet(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    restored = Part(world.open([snapshot(world, part.backend)]))
    assert restored.take(7).keys() == {*KEYS}

    late = restored.panes.views({7: KEYS[:2]})[7]

    assert not late and restored.panes.get((KEYS[3], 7)) is None and restored.take(7) == {}
    assert Part(world.open([snapshot(world, restored.backend)])).panes.first() is None


def test_what_is_read_anyway_is_not_called_wrong_before_a_job_starts() -> None:
    assert not fitting("an earlier version", PANES, describe(MAP)).wrong
    assert fitting("a later version", MAP, describe(PANES)).wrong == ["kind cannot change"]


def test_a_key_of_another_subtask_is_a_bug(world: World) -> None:
    half = Part(world.open(groups=key_group_range(0, 2)))
    half.add(1, KEYS)

    with pytest.raises(Bug, match="does not own its key group"):
        snapshot(world, half.backend)


def test_ranges_of_rows_are_deleted_and_no_others(world: World) -> None:
    backend: Any = world.open()
    backend.panes(PANES)
    rows = backend._store.rows("windows")
    rows.write([bytes([0, n]) for n in range(9)], [b"x"] * 9, ())
    rows.delete_ranges([(b"\0\1", b"\0\3"), (b"\0\5", b"\0\6"), (b"\1", b"\2")])
    rows.write([b"\0\2"], [b"again"], ())
    handle: StateHandle = snapshot(world, backend)
    restored: Any = world.open([handle])

    left = [key[1] for key, _ in restored._store.rows("windows").page(b"\0", b"\1", 100)]
    assert left == [0, 2, 3, 4, 6, 7, 8]
