"""State that an older hash grouped goes on by it in place, and is regrouped whenever its rows are gone through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from state_codecs import TOTAL
from state_world import World, snapshot

from kafka_eos import Pipeline
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.storage import JobStorage, LocalStorage
from kafka_eos.errors import Bug, ConfigError
from kafka_eos.exchange.routing import router
from kafka_eos.interfaces import StateBackend, StateDescriptor, StateHandle, Ttl
from kafka_eos.limits import LIMITS
from kafka_eos.plan import KeyBy
from kafka_eos.records import Batch
from kafka_eos.schemas import KeyCodec, MsgpackCodec
from kafka_eos.state import savepoints
from kafka_eos.state.entries import NumberCodec
from kafka_eos.state.keygroups import OLDEST, PRESENT, Grouping, key_group_range
from kafka_eos.state.merging import grouping_of
from kafka_eos.state.reader import SavepointBuilder, Snapshot
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.sources import ListOrigin
from tests.marks import campaign

KEY, INT = KeyCodec(), MsgpackCodec[Any](int)
OLD, NEW = Grouping(OLDEST), Grouping(PRESENT)
KEYS = [f"a{n}" for n in range(20)] + [7, ("eu", 3), b"x" * 300]
SHAPES: dict[str, tuple[StateDescriptor[Any], dict[Any, Any]]] = {
    "value": (StateDescriptor("s", KEY, INT), {key: n for n, key in enumerate(KEYS)}),
    "windows": (StateDescriptor("s", KEY, INT, namespace=KEY), {(key, n % 3): n for n, key in enumerate(KEYS)}),
    "map": (StateDescriptor("s", KEY, INT, "map", entry=KEY), {(key, e): e for key in KEYS for e in (1, 2)}),
    "list": (StateDescriptor("s", KEY, INT, "list", entry=NumberCodec()), {(k, n): n for n, k in enumerate(KEYS)}),
    "maps": (StateDescriptor("s", KEY, INT, "map", namespace=KEY, entry=KEY), {(key, "w", "e"): 1 for key in KEYS}),
    "expiring": (StateDescriptor("s", KEY, INT, ttl=Ttl(1e6)), {key: n for n, key in enumerate(KEYS)}),
}


def key_of(descriptor: StateDescriptor[Any], place: Any) -> Any:
    return place[0] if descriptor.namespace or descriptor.entry else place


def stored(
    world: World, parallelism: int, grouping: Grouping, shape: str = "value", **options: Any
) -> list[StateHandle]:
    """Handles of so many subtasks that have the content of a shape between them."""
    descriptor, content = SHAPES[shape]
    handles = []
    for subtask in range(parallelism):
        groups = key_group_range(subtask, parallelism)
        backend = world.open(groups=groups, grouping=grouping, **options)
        state = backend.value(descriptor)
        for place, value in content.items():
            if grouping.group(KEY.encode(key_of(descriptor, place))) in groups:
                state.put(place, value)
        handles.append(snapshot(world, backend))
    return handles


def opened(world: World, handles: Sequence[StateHandle], parallelism: int, **options: Any) -> list[StateBackend]:
    ranges = [key_group_range(subtask, parallelism) for subtask in range(parallelism)]
    return [world.open(handles, groups, **options) for groups in ranges]


# ---------------------------------------------------------------- which hash a session has


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[World]:
    world = World("rocksdb", LocalStorage(tmp_path / "job"), tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_an_older_hash_goes_on_in_place(rocks: World, parallelism: int) -> None:
    handles = stored(rocks, parallelism, OLD)
    grouping = grouping_of("rocksdb", handles, parallelism)
    again = [snapshot(rocks, b, 2) for b in opened(rocks, handles, parallelism, grouping=grouping)]

    assert grouping == OLD
    assert {handle.key_hash for handle in again} == {OLDEST}
    tables = {file for handle in handles for file in handle.files if file.name.endswith(".sst")}
    assert tables <= {file for handle in again for file in handle.files}, "rows were written again"


def test_an_older_hash_ends_with_another_number_of_subtasks(rocks: World) -> None:
    assert [grouping_of("rocksdb", stored(rocks, 2, OLD), parallelism) for parallelism in (1, 3, 4)] == [NEW] * 3
    assert grouping_of("rocksdb", stored(rocks, 1, OLD), 2) == NEW


def test_an_older_hash_ends_with_another_backend_and_in_memory(rocks: World) -> None:
    assert grouping_of("memory", stored(rocks, 2, OLD), 2) == NEW
    assert grouping_of("rocksdb", stored(rocks, 2, OLD, kind="memory"), 2) == NEW
    assert grouping_of("memory", stored(rocks, 2, OLD, kind="memory"), 2) == NEW


def test_operators_of_one_session_have_one_hash(rocks: World) -> None:
    """One of them was edited offline: then all are regrouped, or a router would need two hashes."""
    assert grouping_of("rocksdb", [*stored(rocks, 2, OLD), *stored(rocks, 2, NEW)], 2) == NEW


def test_a_job_without_state_has_the_present_hash() -> None:
    assert grouping_of("rocksdb", (), 3) == NEW


def test_the_present_hash_stays(rocks: World) -> None:
    assert [grouping_of("rocksdb", stored(rocks, 2, NEW), parallelism) for parallelism in (1, 2, 3)] == [NEW] * 3


def test_a_hash_of_a_later_version_is_refused(rocks: World) -> None:
    (handle,) = stored(rocks, 1, NEW)
    later = StateHandle(handle.operator, handle.backend, (0, 127), handle.files, handle.states, "xxh3")
    with pytest.raises(ConfigError, match="Upgrade"):
        grouping_of("rocksdb", [later], 1)


# ---------------------------------------------------------------- regrouping


@pytest.mark.parametrize("parallelism", [1, campaign(2), 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_kind_are_regrouped(world: World, shape: str, parallelism: int) -> None:
    descriptor, content = SHAPES[shape]
    handles = stored(world, 2, OLD, shape)

    found = [dict(b.value(descriptor).items()) for b in opened(world, handles, parallelism)]

    assert {place: value for part in found for place, value in part.items()} == content
    assert sum(map(len, found)) == len(content)
    for subtask, part in enumerate(found):
        owned = key_group_range(subtask, parallelism)
        assert all(NEW.group(KEY.encode(key_of(descriptor, place))) in owned for place in part)


@pytest.mark.parametrize("shape", SHAPES)
def test_regrouped_state_is_found_by_key_and_stored_by_the_present_hash(world: World, shape: str) -> None:
    descriptor, content = SHAPES[shape]
    backends = opened(world, stored(world, 2, OLD, shape), 3)
    for backend in backends:
        backend.value(descriptor)
    handles = [snapshot(world, backend, 2) for backend in backends]
    alone = world.open(handles).value(descriptor)

    assert {handle.key_hash for handle in handles} == {PRESENT}
    assert {place: alone.get(place) for place in content} == content


def test_a_list_goes_on_behind_its_last_element(world: World) -> None:
    descriptor, content = SHAPES["list"]
    (backend,) = opened(world, stored(world, 2, OLD, "list"), 1)

    assert backend.value(descriptor).next_entry() == len(content)


def test_state_that_nobody_asks_for_is_regrouped_too(world: World) -> None:
    """A carried state stays readable when the job asks for it again."""
    descriptor, content = SHAPES["map"]
    handles = [snapshot(world, backend, 2) for backend in opened(world, stored(world, 2, OLD, "map"), 3)]

    assert dict(world.open(handles).value(descriptor).items()) == content


def test_local_state_stays_in_its_subtask(world: World) -> None:
    """Which subtask has which keys follows from the input; only the groups in front of the rows change."""
    kept = [{"a": 1, 7: 2}, {"b": 3}]
    handles = []
    for subtask, content in enumerate(kept):
        backend = world.open(groups=key_group_range(subtask, 2), grouping=OLD, local=True)
        state = backend.value(TOTAL)
        for key, value in content.items():
            state.put(key, value)
        handles.append(snapshot(world, backend))

    states = [backend.value(TOTAL) for backend in opened(world, handles, 2, local=True)]

    assert [{key: state.get(key) for key in content} for state, content in zip(states, kept, strict=True)] == kept
    assert [dict(state.items()) for state in states] == kept


# ---------------------------------------------------------------- all who look for a key agree


def by_key() -> KeyBy:
    pipeline = Pipeline("job")
    stream = pipeline.source(ListSource([]), name="in").key_by(lambda value: value, name="by")
    stream.reduce(lambda a, b: b, name="last", state=int).sink(MemorySink(), name="out")
    node = pipeline.plan().node("by")
    assert isinstance(node, KeyBy)
    return node


def batch() -> Batch[Any]:
    rows = range(len(KEYS))
    return Batch(KEYS, rows, ListOrigin("in", "t", 0, 0, KEYS), keys=KEYS)


@pytest.mark.parametrize("parallelism", [2, 3, 5])
@pytest.mark.parametrize("key_hash", [OLDEST, PRESENT])
def test_a_key_is_routed_to_the_subtask_that_has_its_state(rocks: World, key_hash: str, parallelism: int) -> None:
    descriptor, content = SHAPES["value"]
    handles = stored(rocks, parallelism, Grouping(key_hash))
    grouping = grouping_of("rocksdb", handles, parallelism)
    states = [backend.value(descriptor) for backend in opened(rocks, handles, parallelism, grouping=grouping)]
    split = router(by_key(), 0, parallelism, grouping)

    for target, part in split(batch()):
        assert [states[target].get(key) for key in part.keys or ()] == [content[key] for key in part.keys or ()]


def test_a_router_of_another_hash_is_noticed(rocks: World) -> None:
    """A subtask never takes a key that is not its own for one without state."""
    states = [b.value(TOTAL) for b in opened(rocks, stored(rocks, 2, OLD), 2, grouping=OLD)]
    routed = [(target, key) for target, part in router(by_key(), 0, 2, NEW)(batch()) for key in part.keys or ()]
    with pytest.raises(Bug, match="does not own its key group"):
        [states[target].get(key) for target, key in routed]


# ---------------------------------------------------------------- offline


def old_savepoint(rocks: World, path: Path) -> Snapshot:
    """Of a checkpoint that two subtasks made by the older hash."""
    manifest = Manifest(
        job="orders", epoch=1, term=1, created_at=0, plan="", max_key_groups=128, parallelism=2, sources={},
        states=tuple(stored(rocks, 2, OLD)), committables=(), identity="0123456789ab",
    )  # fmt: skip
    savepoints.write(rocks.storage, manifest, path)
    return Snapshot.open(path)


@pytest.mark.parametrize("part_bytes", [1 << 20, 100])
def test_a_savepoint_of_an_older_epoch_is_read_and_begins_a_job_by_the_present_hash(
    rocks: World, tmp_path: Path, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "savepoint_part_bytes", part_bytes)
    descriptor, content = SHAPES["value"]
    found = old_savepoint(rocks, tmp_path / "savepoint")
    handles = found.handles_of("total")

    assert {handle.key_hash for handle in handles} == {OLDEST}
    assert dict(found.read("total")) == content
    assert {key: found.get("total", None, key) for key in KEYS} == content
    for parallelism in (1, 2):
        assert grouping_of("rocksdb", handles, parallelism) == NEW
        world = World("rocksdb", _of(found), tmp_path / f"begun-{parallelism}")
        parts = [dict(b.value(descriptor).items()) for b in opened(world, handles, parallelism)]
        world.close()
        assert {key: value for part in parts for key, value in part.items()} == content


def test_an_edited_operator_has_the_present_hash_and_the_others_keep_theirs(rocks: World, tmp_path: Path) -> None:
    _, content = SHAPES["value"]
    old = old_savepoint(rocks, tmp_path / "savepoint")
    with SavepointBuilder.from_snapshot(old) as builder:
        builder.put("total", "s", "a3", 333)
        builder.bootstrap("more", "s", [("k", 1)], value=int)
        builder.write(tmp_path / "edited")
    edited = Snapshot.open(tmp_path / "edited")

    assert dict(edited.read("total")) == {**content, "a3": 333}
    assert edited.get("total", None, "a3") == 333
    assert {state.key_hash for state in edited.states("total").values()} == {PRESENT}
    with SavepointBuilder.from_snapshot(old) as builder:
        builder.bootstrap("more", "s", [("k", 1)], value=int)
        builder.write(tmp_path / "bigger")
    assert Snapshot.open(tmp_path / "bigger").states("total")["s"].key_hash == OLDEST
    assert dict(Snapshot.open(tmp_path / "bigger").read("total")) == content


def _of(found: Snapshot) -> JobStorage:
    """The files of a savepoint, for backends that only read them."""
    storage: Any = found.storage
    return storage  # type: ignore[no-any-return]
