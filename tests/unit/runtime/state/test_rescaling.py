"""What the handles of several subtasks make together: each row once, at its owner, with the highest marks of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from state_codecs import KEY, OTHER, TOTAL, JsonText
from state_world import World, snapshot
from test_ttl import Clock, value

from kafka_eos import Pipeline
from kafka_eos.abc.state import StateBackend, StateDescriptor, StateHandle, Ttl
from kafka_eos.codecs import KeyCodec, MsgpackCodec
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.records import Batch
from kafka_eos.runtime.exchange.routing import make_router
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

NAMES = [f"k{n}" for n in range(40)]
LIST: StateDescriptor[Any] = StateDescriptor("list", KEY, JsonText("n"), "list", entry=ElementNumberCodec())
NAMED: StateDescriptor[Any] = StateDescriptor("named", KeyCodec(), MsgpackCodec[Any](int), namespace=KeyCodec())
EVENT = value(Ttl(10, clock="event"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The quickest: what is merged does not depend on the backend."""
    world = World("memory", MemoryStorage(), tmp_path)
    yield world
    world.close()


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[World]:
    world = World("rocksdb", MemoryStorage(), tmp_path)
    yield world
    world.close()


def shares(parallelism: int) -> list[range]:
    return [key_group_range(subtask, parallelism) for subtask in range(parallelism)]


def opened(world: World, handles: Sequence[StateHandle], parallelism: int, **options: Any) -> list[StateBackend]:
    """All subtasks; each is handed the handles of all."""
    return [world.open(handles, groups, **options) for groups in shares(parallelism)]


def owner(key: Any, parallelism: int) -> int:
    group = group_of(KEY.encode(key))
    return next(subtask for subtask, groups in enumerate(shares(parallelism)) if group in groups)


def filled(world: World, parallelism: int) -> list[StateHandle]:
    """Totals of all names, each at its owner, as so many subtasks have stored them."""
    backends = opened(world, (), parallelism)
    states = [backend.value(TOTAL) for backend in backends]
    for number, name in enumerate(NAMES):
        states[owner(name, parallelism)].put(name, number)
    return [snapshot(world, backend) for backend in backends]


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (3, 3)])
def test_every_row_is_at_its_owner_and_nowhere_else(world: World, before: int, after: int) -> None:
    found = [dict(b.value(TOTAL).items()) for b in opened(world, filled(world, before), after)]

    assert found == [
        {name: number for number, name in enumerate(NAMES) if owner(name, after) == subtask} for subtask in range(after)
    ]


def test_it_can_be_rescaled_again_and_again(world: World) -> None:
    handles = filled(world, 2)
    for parallelism in (3, 1, 2):
        handles = [snapshot(world, backend, 2) for backend in opened(world, handles, parallelism)]
        assert [handle.key_groups for handle in handles] == [(g.start, g.stop - 1) for g in shares(parallelism)]

    found = [dict(backend.value(TOTAL).items()) for backend in opened(world, handles, 1)]
    assert found == [{name: number for number, name in enumerate(NAMES)}]


def test_only_handles_that_hold_something_of_a_share_are_fetched(world: World) -> None:
    handles = filled(world, 4)
    for groups, wanted in [(range(64), handles[:2]), (range(31, 33), handles[:2]), (range(96, 128), handles[3:])]:
        told: list[RestoreProgress] = []
        world.open(handles, groups, on_progress=told.append)

        assert told[-1].of_files == told[-1].files == sum(len(handle.files) for handle in wanted)


def test_the_same_share_of_rocksdb_goes_on_in_place_and_every_other_is_converted(rocks: World) -> None:
    def rows(handles: Sequence[StateHandle], groups: range, **options: Any) -> int:
        told: list[RestoreProgress] = []
        rocks.open(handles, groups, on_progress=told.append, **options)
        return told[-1].rows

    two, first = filled(rocks, 2), shares(2)[0]
    inside = len([name for name in NAMES if owner(name, 2) == 0])

    assert rows(two, first) == 0
    assert rows(two, range(first.start, first.stop - 1)) == inside
    assert rows(two, range(128)) == len(NAMES)
    assert rows(two, first, kind="memory") == inside


def test_a_handle_of_memory_is_converted(rocks: World) -> None:
    memory = World("memory", rocks.storage, rocks.root / "memory")
    handles, told = filled(memory, 1), list[RestoreProgress]()
    rocks.open(handles, on_progress=told.append)
    memory.close()

    assert told[-1].rows == len(NAMES)


def test_nothing_of_a_restore_stays_beside_the_state(world: World) -> None:
    world.open(filled(world, 2))
    (directory,) = (world.root / f"attempt-{n}" for n in [2])

    assert not [path for path in directory.iterdir() if path.name.startswith("restore")]


def test_what_the_job_does_not_ask_for_is_rescaled_too(world: World) -> None:
    backends = opened(world, (), 2)
    others = [backend.value(OTHER) for backend in backends]
    for name in NAMES:
        others[owner(name, 2)].put(name, 1)
    carried = [snapshot(world, b, 2) for b in opened(world, [snapshot(world, b) for b in backends], 3)]

    assert dict(world.open(carried).value(OTHER).items()) == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_a_key_is_routed_to_the_subtask_that_has_its_state(world: World, parallelism: int) -> None:
    descriptor, alone = replace(TOTAL, key=KeyCodec()), world.open()
    state = alone.value(descriptor)
    for number, name in enumerate(NAMES):
        state.put(name, number)
    states = [backend.value(descriptor) for backend in opened(world, [snapshot(world, alone)], parallelism)]
    pipeline = Pipeline("job")
    keyed = pipeline.source(ListSource([]), name="in").key_by(str, name="by")
    keyed.reduce(lambda _, value: value, name="last", state=str).sink(MemorySink(), name="out")
    split = make_router(pipeline.plan().node("by"), 0, parallelism)
    batch = Batch(NAMES, range(len(NAMES)), ListOrigin("in", "t", 0, 0, NAMES), keys=NAMES)

    found = {key: states[target].get(key) for target, part in split(batch) for key in part.keys or ()}
    assert found == {name: number for number, name in enumerate(NAMES)}


# ---------------------------------------------------------------- handles that are no whole


def test_the_handles_cover_each_group_of_a_share_once(world: World) -> None:
    first, second = filled(world, 2)
    for handles, groups in [
        ([first], range(128)),
        ([second], range(64)),
        ([first, first, second], range(128)),
        ([first, second, second], range(64, 128)),
        ([replace(first, operator="another"), second], range(128)),
        ([first, replace(second, operator="another")], range(64)),
    ]:
        with pytest.raises(Bug, match="needs each of key groups"):
            world.open(handles, groups)
    assert dict(world.open([first], range(64)).value(TOTAL).items())


def test_subtasks_of_one_epoch_have_one_codec(world: World) -> None:
    first, second = opened(world, (), 2)
    first.value(TOTAL)
    second.value(replace(TOTAL, value=JsonText("another")))

    with pytest.raises(Bug, match="subtasks of one epoch wrote state 'sum' with different codecs"):
        world.open([snapshot(world, first), snapshot(world, second)])


def test_a_backend_that_is_not_known_is_refused(world: World) -> None:
    first, second = filled(world, 2)

    with pytest.raises(ConfigError, match="created by state backend 'tape', which is unknown here"):
        world.open([first, replace(second, backend="tape")])


# ---------------------------------------------------------------- marks


def listed(world: World, counts: Sequence[int]) -> list[StateHandle]:
    """So many elements that each subtask has added to a list, and removed again but the first."""
    handles = []
    for subtask, (backend, count) in enumerate(zip(opened(world, (), len(counts)), counts, strict=True)):
        state: Any = backend.value(LIST)
        name = next(name for name in NAMES if owner(name, len(counts)) == subtask)
        places = [(name, state.next_entry()) for _ in range(count)]
        for place in places:
            state.put(place, subtask)
        for place in places[1:]:
            state.delete(place)
        handles.append(snapshot(world, backend))
    return handles


@pytest.mark.parametrize("counts", [(5, 2), (2, 5)])
@pytest.mark.parametrize("asked", [False, True])
def test_lists_go_on_behind_the_highest_element_of_all(world: World, counts: tuple[int, int], asked: bool) -> None:
    """Also behind those that were removed: a number that is given twice would write over an element."""
    handles = listed(world, counts)
    if not asked:  # one epoch in which the job does not ask for it
        handles = [snapshot(world, world.open(handles), 2)]
    merged: Any = world.open(handles).value(LIST)

    assert merged.next_entry() == 5
    assert len(dict(merged.items())) == 2


def test_a_share_of_a_list_goes_on_behind_the_highest_element_of_those_that_it_comes_from(world: World) -> None:
    parts: list[Any] = [part.value(LIST) for part in opened(world, listed(world, (5, 2)), 3)]

    assert [part.next_entry() for part in parts] == [5, 5, 2]


def test_a_list_that_lost_its_registration_goes_on_behind_its_rows(world: World) -> None:
    """One that was made offline has none, and of its rows the highest counts."""
    backend = world.open()
    state: Any = backend.value(LIST)
    for name in ("a", "b", "a"):
        state.put((name, state.next_entry()), 1)
    handle = snapshot(world, backend)
    unmarked = replace(handle, states=tuple({k: v for k, v in s.items() if k != "marks"} for s in handle.states))

    assert world.open([unmarked]).value(LIST).next_entry() == 3  # type: ignore[attr-defined]
    empty: Any = world.open().value(LIST)
    assert empty.next_entry() == 0


@pytest.mark.parametrize("times", [(7_000, 3_000), (3_000, 7_000)])
def test_event_time_is_the_highest_of_all(world: World, times: tuple[int, int]) -> None:
    """What had expired in one subtask does not come back in another."""
    handles = []
    for backend, time in zip(opened(world, (), 2, clock=Clock()), times, strict=True):
        backend.value(EVENT).advance(time)
        handles.append(snapshot(world, backend))
    merged = world.open(handles, clock=Clock())
    merged.value(EVENT)

    assert snapshot(world, merged, 2).states[0]["marks"] == {"time": 7_000}


def test_the_clean_up_goes_on_in_the_same_share_and_begins_anew_in_another(world: World) -> None:
    clock, options = Clock(), StateOptions(ttl_cleanup_rows=3)
    handles = []
    for subtask, backend in enumerate(opened(world, (), 2, clock=clock, options=options)):
        state = backend.value(value(Ttl(10)))
        for name in (name for name in NAMES if owner(name, 2) == subtask):
            state.put(name, 1)
        snapshot(world, backend)
        handles.append(snapshot(world, backend, 2))

    def begins(handles: Sequence[StateHandle], groups: range, **more: Any) -> str:
        state: Any = world.open(handles, groups, clock=clock, **more).value(value(Ttl(10)))
        return str(state.cursor.hex())

    first, second = (str(handle.states[0]["cursor"]) for handle in handles)
    assert "0000" < first < "0040" < second
    assert begins(handles[:1], range(64)) == first
    assert begins(handles[1:], range(64, 128)) == second
    assert begins(handles, range(128)) == "0000"
    assert begins(handles[1:], range(120, 128)) == "0078", "it is not in there"


# ---------------------------------------------------------------- local state


def local(world: World, *contents: dict[str, int]) -> list[StateHandle]:
    """What subtasks hold of whatever keys reached them."""
    handles = []
    for backend, content in zip(opened(world, (), len(contents), local=True), contents, strict=True):
        state = backend.value(TOTAL)
        for name, total in content.items():
            state.put(name, total)
        handles.append(snapshot(world, backend))
    return handles


MINE, YOURS = dict.fromkeys(NAMES[::2], 1), dict.fromkeys(NAMES[1::2], 2)


def test_local_state_stays_where_it_is_while_the_number_of_subtasks_does(world: World) -> None:
    handles = local(world, MINE, YOURS)
    for epoch in (2, 3):
        backends = opened(world, handles, 2, local=True)
        assert [dict(backend.value(TOTAL).items()) for backend in backends] == [MINE, YOURS]
        handles = [snapshot(world, backend, epoch) for backend in backends]


def test_the_only_subtask_takes_all_of_it(world: World) -> None:
    assert dict(world.open(local(world, MINE, YOURS), local=True).value(TOTAL).items()) == MINE | YOURS


def test_local_state_that_is_no_longer_local_goes_to_the_owners(world: World) -> None:
    parts = opened(world, local(world, MINE, YOURS), 2)
    for subtask, part in enumerate(parts):
        expected = {name: total for name, total in (MINE | YOURS).items() if owner(name, 2) == subtask}
        assert dict(part.value(TOTAL).items()) == expected
    handles = [snapshot(world, part, 2) for part in parts]
    assert all("marks" not in handle.states[0] for handle in handles)
    assert [len(dict(part.value(TOTAL).items())) for part in opened(world, handles, 2)] == [
        sum(owner(name, 2) == subtask for name in NAMES) for subtask in range(2)
    ]


@pytest.mark.parametrize("options", [{"local": True}, {}])
def test_two_values_of_one_key_are_never_made_one(world: World, options: dict[str, bool]) -> None:
    handles = local(world, {"k": 1, **MINE}, {"k": 2, **YOURS})

    with pytest.raises(ConfigError, match="has one key in two workers"):
        world.open(handles, **options)


@pytest.mark.parametrize("parallelism", [3, 4])
def test_nobody_divides_local_state_among_others(world: World, parallelism: int) -> None:
    for groups in shares(parallelism):
        with pytest.raises(ConfigError, match="was stored by 2 workers.*Set parallelism=2 "):
            world.open(local(world, MINE, YOURS), groups, local=True)


def test_state_becomes_local_with_one_subtask_only(world: World) -> None:
    handles = filled(world, 2)
    for groups in shares(2):
        with pytest.raises(ConfigError, match="was stored without local=True.*Set parallelism=1 "):
            world.open(handles, groups, local=True)

    backend = world.open(handles, local=True)
    assert len(dict(backend.value(TOTAL).items())) == len(NAMES)
    assert snapshot(world, backend, 2).states[0]["marks"] == {"local": 1}


def test_what_one_worker_stored_is_said_so(world: World) -> None:
    with pytest.raises(ConfigError, match="was stored by 1 worker: which"):
        world.open(local(world, MINE), range(64), local=True)


def test_fresh_local_state_is_anybodys(world: World) -> None:
    for backend in opened(world, (), 3, local=True):
        state = backend.value(TOTAL)
        state.put("k", 1)
        assert state.get("k") == 1
