"""The state of panes: whatever comes in between, each value is given out once, and nothing of it is left."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from state_codecs import KEY
from state_world import Kind, World, snapshot

from kafka_eos.abc.state import StateBackend, StateDescriptor, StateHandle
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.timers import TimeCodec
from kafka_eos.storage.job_storage import MemoryStorage
from tests.examples import examples
from tests.limits import set_limits

PANES: StateDescriptor[int] = StateDescriptor("windows", KEY, MsgpackCodec(int), "pane", entry=TimeCodec())
KEYS = [f"k{n}" for n in range(6)]


class Part:
    """The state of one subtask, and what it has given out."""

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend
        self.panes: Any = backend.panes(PANES)

    def add(self, pane: int, keys: list[str]) -> None:
        view = self.panes.views({pane: keys})[pane]
        for key in keys:
            view[key] = view.get(key, 0) + 1

    def take(self, pane: int) -> dict[Any, int]:
        found = list(self.panes.take_pane(pane))
        return {key: value for taken in found for key, value in zip(taken.keys, taken.values, strict=True)}


FEW, SOME = st.integers(-1, 1), st.lists(st.sampled_from(KEYS[:4]), min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "late"]), FEW, SOME),
        st.tuples(st.sampled_from(["delete", "look"]), FEW, st.sampled_from(KEYS[:4])),
        st.tuples(st.sampled_from(["take", "half", "cut", "snapshot", "restore"]), st.just(0), st.none()),
    ),
    min_size=10,
    max_size=40,
)


@given(
    kind=st.sampled_from([*["memory"] * 11, "rocksdb"]),
    steps=STEPS,
    limit=st.sampled_from([2, 1000]),
    at_once=st.booleans(),
)
@examples(50)
def test_each_value_is_given_out_once_whatever_comes_in_between(
    kind: Kind, steps: Any, limit: int, at_once: bool
) -> None:
    """``half``: there is a snapshot before all of a pane is given out; ``cut``: which is restored."""
    model: dict[tuple[str, int], int] = {}
    with TemporaryDirectory() as directory, set_limits(pane_keys_per_batch=500 if at_once else 1):
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
                case "look":
                    assert part.panes.get((what, pane)) == model.get((what, pane))
                case "take" | "half":
                    first = part.panes.get_first_pane()
                    held = [pane for _, pane in model]
                    assert not held if first is None else all(first <= pane for pane in held)
                    if first is not None:
                        wanted = {key: value for (key, pane), value in model.items() if pane == first}
                        taking = part.panes.take_pane(first)
                        begun = _begun(taking) if step == "half" else []
                        if step == "half":
                            snapshot(world, part.backend)
                        assert sorted(_pairs([*begun, *taking])) == sorted(wanted.items())
                        assert part.panes.get_first_pane() != first
                        model = {place: value for place, value in model.items() if place[1] != first}
                        passed = max(passed, first)
                case "cut" if (first := part.panes.get_first_pane()) is not None:
                    for key, value in _pairs(_begun(part.panes.take_pane(first))):
                        assert model.pop((key, first)) == value
                    part = Part(world.open([snapshot(world, part.backend)], cache_entries=limit))
                case "snapshot":
                    snapshot(world, part.backend)
                case "restore":
                    part = Part(world.open([snapshot(world, part.backend)], cache_entries=limit))
        assert dict(part.panes.items()) == model
        last = Part(world.open([snapshot(world, part.backend)]))
        assert _all(last) == model
        assert _all(Part(world.open([snapshot(world, last.backend)]))) == {}
        world.close()


@pytest.mark.parametrize("ahead", [True, False], ids=["in memory", "restored"])
def test_values_are_given_out_in_the_order_of_their_groups(tmp_path: Path, ahead: bool) -> None:
    """Whatever order they are asked for in: so a pane that is taken again gives the same."""
    world = World("memory", MemoryStorage(), tmp_path)
    part = Part(world.open())
    part.add(0, KEYS)
    if not ahead:
        part = Part(world.open([snapshot(world, part.backend)]))

    groups = [group for taken in part.panes.take_pane(0, range(127, -1, -1)) for group in taken.groups]

    assert groups == sorted(groups) and len(set(groups)) > 1
    world.close()


def _begun(taking: Any) -> list[Any]:
    """What comes first of what is given out."""
    return list(islice((taken for taken in taking if taken.keys), 1))


def _pairs(taking: Any) -> Any:
    for taken in taking:
        yield from zip(taken.keys, taken.values, strict=True)


def _all(part: Part) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    while (pane := part.panes.get_first_pane()) is not None:
        assert all(before < pane for _, before in found), "panes are out of order"
        found.update({(key, pane): value for key, value in part.take(pane).items()})
    return found


@pytest.mark.limits(pane_keys_per_batch=500, pane_keys_per_share=5000)
def test_it_comes_in_the_order_of_groups_and_keys_and_goes_with_its_groups(world: World) -> None:
    """A snapshot between two steps holds what has not been given out, whatever number of subtasks restores it."""
    keys = [f"key {n}" for n in range(3000)]
    part = Part(world.open())
    part.add(7, keys)
    part.add(9, keys[:1])
    snapshot(world, part.backend)
    taking = part.panes.take_pane(7)
    first = [taken for taken in (next(taking) for _ in range(4)) if taken.keys]
    handle = snapshot(world, part.backend)
    rest: list[tuple[int, bytes, str]] = []
    for subtask in range(3):
        other = Part(world.open([handle], key_group_range(subtask, 3)))
        assert {pane for pane, _ in other.panes.get_restored_panes()} <= {7, 9}
        rest += [
            row
            for taken in other.panes.take_pane(7)
            for row in zip(taken.groups, taken.encoded, taken.keys, strict=True)
        ]
        assert other.panes.get_first_pane() in (None, 9)
        other_handle = snapshot(world, other.backend)
        assert Part(world.open([other_handle], key_group_range(subtask, 3))).take(7) == {}
    begun = [row for taken in first for row in zip(taken.groups, taken.encoded, taken.keys, strict=True)]

    assert begun and rest and not part.take(8)
    assert begun + rest == sorted(begun + rest)
    assert sorted(key for *_, key in begun + rest) == sorted(keys)


def test_the_first_pane_is_that_of_what_was_restored_and_what_has_come_since(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    restored = Part(world.open([snapshot(world, part.backend)]))
    for pane in (9, 5):
        restored.add(pane, KEYS[:1])

    assert restored.panes.get_first_pane() == 5
    assert [pane for _, pane in _all(restored)] == [5, *[7] * len(KEYS), 9]


@pytest.mark.parametrize("turn", [1, -1])
def test_restored_panes_of_many_groups_come_in_order(world: World, turn: int) -> None:
    part = Part(world.open())
    for pane, key in enumerate(KEYS):
        part.add(-9, [key])
        part.add(turn * pane, [key])

    restored = Part(world.open([snapshot(world, part.backend)]))

    assert _all(restored) == {(key, at): 1 for pane, key in enumerate(KEYS) for at in (-9, turn * pane)}


@pytest.mark.limits(pane_keys_per_batch=6)
def test_of_some_groups_only_what_is_theirs_is_given_out(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    restored = Part(world.open([snapshot(world, part.backend)]))
    (taken,) = _begun(part.panes.take_pane(7))
    groups = sorted(set(taken.groups))
    last = [key for key, group in zip(taken.keys, taken.groups, strict=True) if group == groups[-1]]
    restored.add(7, last)

    some = [key for taken in restored.panes.take_pane(7, groups[:2]) for key in taken.keys]

    assert restored.panes.get_restored_panes() and {group for _, group in restored.panes.get_restored_panes()} == set(
        groups[2:]
    )
    assert 0 < len(some) < len(KEYS)
    rest = restored.take(7)
    assert sorted([*some, *rest]) == KEYS
    assert {key for key, count in rest.items() if count == 2} == {*last}


def test_a_late_row_does_not_bring_back_what_has_been_taken_and_is_not_deleted_yet(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    restored = Part(world.open([snapshot(world, part.backend)]))
    assert restored.take(7).keys() == {*KEYS}

    late = restored.panes.views({7: KEYS[:2]})[7]

    assert not late and restored.panes.get((KEYS[3], 7)) is None and restored.take(7) == {}
    assert Part(world.open([snapshot(world, restored.backend)])).panes.get_first_pane() is None


def test_rows_are_asked_for_what_they_alone_can_know_and_once(world: World) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    assert part.panes.get(("new", 7)) is None
    assert part.panes.loads == 0, "no row is older than this session"
    restored = Part(world.open([snapshot(world, part.backend)]))

    asked = []
    for key in ("k0", "k1", "k0", "new", "new"):
        restored.panes.get((key, 7))
        asked.append(restored.panes.loads)
    for pane, keys in ((7, ["k0", "k2"]), (7, ["k2", "new"]), (8, ["k0"])):
        restored.add(pane, keys)
        asked.append(restored.panes.loads)

    assert asked == [1, 2, 2, 3, 3, 4, 4, 4]


def test_what_is_written_stays_in_memory_as_far_as_that_goes(world: World) -> None:
    part = Part(world.open(cache_entries=len(KEYS)))
    part.add(7, KEYS)
    for _ in range(2):
        snapshot(world, part.backend)
    assert part.panes.cached == len(KEYS)

    part.add(8, KEYS[:3])
    assert part.panes.cached == len(KEYS) + 3
    part.add(9, KEYS[:3])
    assert part.panes.cached == 6, "what has not changed since the snapshot before is dropped"
    part.panes.get(("new", 8))
    assert part.panes.loads == 0
    for key in KEYS[:2]:
        part.panes.get((key, 7))
    snapshot(world, part.backend)

    assert part.panes.cached == 6
    assert _all(part) == {(key, pane): 1 for pane, keys in ((7, KEYS), (8, KEYS[:3]), (9, KEYS[:3])) for key in keys}


@pytest.mark.parametrize("restore", [False, True])
def test_memory_holds_about_so_many_objects_and_those_of_a_batch(world: World, restore: bool) -> None:
    keys = [f"key {n}" for n in range(200)]
    part = Part(world.open(cache_entries=20))
    most = 0
    for at in range(0, len(keys), 10):
        part.add(at // 100, keys[at : at + 10])
        most = max(most, part.panes.cached)
    assert most <= 30
    if restore:
        part = Part(world.open([snapshot(world, part.backend)], cache_entries=20))

    for at, key in enumerate(keys):
        assert part.panes.get((key, at // 100)) == 1
        assert part.panes.cached <= 30

    assert _all(part) == {(key, at // 100): 1 for at, key in enumerate(keys)}


class Unchecked(MsgpackCodec[Any]):
    """Whoever writes with it is not asked whether a value is what its type says."""

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    "read",
    [
        lambda part: part.panes.get(("k0", 7)),
        lambda part: part.panes.views({7: ["k0"]}),
        lambda part: list(part.panes.take_pane(7)),
    ],
)
def test_a_row_that_the_codec_cannot_read_says_what_to_do(world: World, read: Any) -> None:
    backend = world.open()
    written: Any = backend.panes(replace(PANES, value=Unchecked(int))).views({7: ["k0"]})
    written[7]["k0"] = "text"
    part = Part(world.open([snapshot(world, backend)]))

    with pytest.raises(ConfigError, match="cannot be read by codec .* Declare a type that reads old values"):
        read(part)


@pytest.mark.parametrize("subtask", [0, 1])
def test_what_has_not_changed_stays_in_each_of_several_subtasks(world: World, subtask: int) -> None:
    part, groups = Part(world.open()), key_group_range(subtask, 2)
    part.add(7, KEYS)
    handle = snapshot(world, part.backend)
    mine = list(Part(world.open([handle], groups)).take(7))
    half = Part(world.open([handle], groups))
    for _ in range(2):
        half.add(7, mine)
    for _ in range(2):
        snapshot(world, half.backend)

    assert mine and half.take(7) == dict.fromkeys(mine, 3)


@pytest.mark.limits(pane_keys_per_batch=1)
@pytest.mark.parametrize("limit", [2, 1000])
def test_a_pane_comes_once_whatever_memory_lets_go_and_whichever_late_rows_ask_while_it_is_given_out(
    world: World, limit: int
) -> None:
    part = Part(world.open(cache_entries=limit))
    part.add(7, KEYS)
    snapshot(world, part.backend)
    taking = part.panes.take_pane(7)
    (begun,) = _begun(taking)

    late = part.panes.views({7: begun.keys})[7]
    assert not {*begun.keys} & late.keys()
    handle = snapshot(world, part.backend)

    assert sorted(_pairs([begun, *taking])) == [(key, 1) for key in KEYS]
    assert {key for key, _ in _all(Part(world.open([handle])))} == {*KEYS}.difference(begun.keys)


def test_a_pane_of_one_key_is_deleted_as_one_range(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as one of each key group: records may have times in very many windows."""
    part = Part(world.open())
    for pane in range(20):
        part.add(pane, KEYS[:1])
    snapshot(world, part.backend)
    deleted: list[tuple[bytes, bytes]] = []
    rows: Any = part.panes._rows
    delete = rows.delete_ranges
    monkeypatch.setattr(rows, "delete_ranges", lambda ranges: (deleted.extend(ranges), delete(deleted)))

    assert [part.take(pane) for pane in range(20)] == [{KEYS[0]: 1}] * 20
    assert _all(Part(world.open([snapshot(world, part.backend)]))) == {}
    assert len(deleted) == 20


@pytest.mark.parametrize("restored", [False, True])
def test_what_was_deleted_goes_with_its_pane(world: World, restored: bool) -> None:
    part = Part(world.open())
    part.add(7, KEYS)
    handle = snapshot(world, part.backend)
    if restored:
        part = Part(world.open([handle]))
    for key in KEYS[1:]:
        part.panes.delete((key, 7))

    assert part.take(7) == {KEYS[0]: 1}
    assert _all(Part(world.open([snapshot(world, part.backend)]))) == {}


@pytest.mark.parametrize("subtask", [0, 1])
def test_a_key_of_another_subtask_is_a_bug(world: World, subtask: int) -> None:
    half = Part(world.open(groups=key_group_range(subtask, 2)))
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
