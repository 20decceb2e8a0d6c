"""The contract of a state backend: both backends, on both storages."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from state_codecs import KEY, OTHER, TOTAL, JsonText, Versioned
from state_world import Kind, World

from kafka_eos._util import failpoints
from kafka_eos.abc.state import CacheUse, StateBackend, StateDescriptor, StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.errors import Bug, ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.rocksdb_options import RocksDBTuning, StateOptions
from kafka_eos.storage import local_files as files
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage
from kafka_eos.storage.upload_batch import UploadBatch
from tests.limits import set_limits
from tests.waiting import eventually


def snapshot(world: World, backend: StateBackend, epoch: int = 1) -> StateHandle:
    return backend.snapshot(Epoch(epoch))(world.storage)


def test_reads_see_writes_at_once(world: World) -> None:
    state = world.open().value(TOTAL)
    state.put("a", 1)
    state.put("b", 2)
    state.delete("b")

    assert [state.get(key) for key in ("a", "b", "c")] == [1, None, None]
    assert dict(state.items()) == {"a": 1}


def test_a_view_holds_what_exists_and_takes_writes_and_deletes(world: World) -> None:
    state = world.open().value(TOTAL)
    state.put("a", 1)
    state.put("b", 2)
    view = state.view(["a", "b", "new", "never written", "a"])

    assert {key: view[key] for key in ("a", "b", "new", "never written") if key in view} == {"a": 1, "b": 2}

    view["a"] += 10
    view["new"] = 3
    del view["b"]

    assert dict(state.items()) == {"a": 11, "new": 3}


def test_a_snapshot_restores_what_was_there_at_the_barrier(world: World) -> None:
    """Not what is there when it is uploaded: the worker goes on meanwhile."""
    backend = world.open()
    state, other = backend.value(TOTAL), backend.value(OTHER)
    state.put("a", 1)
    state.put("gone later", 2)
    other.put("a", "other")
    upload = backend.snapshot(Epoch(1))
    state.put("a", 100)
    state.delete("gone later")
    state.view(["b"])["b"] = 3
    list(state.items())
    restored = world.open([upload(world.storage)])

    assert dict(restored.value(TOTAL).items()) == {"a": 1, "gone later": 2}
    assert dict(restored.value(OTHER).items()) == {"a": "other"}


def test_a_value_changed_in_place_does_not_reach_into_the_snapshot(world: World) -> None:
    backend = world.open()
    state = backend.value(TOTAL)
    state.put("a", [1])
    upload = backend.snapshot(Epoch(1))
    state.view(["a"])["a"].append(2)

    assert dict(world.open([upload(world.storage)]).value(TOTAL).items()) == {"a": [1]}
    assert dict(state.items()) == {"a": [1, 2]}


def test_deletes_survive_snapshots(world: World) -> None:
    backend = world.open()
    state = backend.value(TOTAL)
    for key in range(10):
        state.put(key, key)
    snapshot(world, backend, 1)
    for key in range(5):
        state.delete(key)

    assert state.get(0) is None
    assert dict(world.open([snapshot(world, backend, 2)]).value(TOTAL).items()) == {k: k for k in range(5, 10)}


def test_state_goes_on_over_many_attempts(world: World) -> None:
    handles: list[StateHandle] = []
    for attempt in range(6):
        backend = world.open(handles)
        state = backend.value(TOTAL)
        for key, value in state.view(map(str, range(50))).items():
            state.put(key, value)
        view = state.view(map(str, range(50)))
        for key in map(str, range(50)):
            view[key] = view.get(key, 0) + 1
        handles = [snapshot(world, backend, attempt)]

    assert dict(world.open(handles).value(TOTAL).items()) == {str(key): 6 for key in range(50)}


def test_a_state_that_the_job_no_longer_asks_for_is_carried_along(world: World) -> None:
    backend = world.open()
    backend.value(OTHER).put("a", 1)
    middle = world.open([snapshot(world, backend)])
    middle.value(TOTAL).put("b", 2)

    assert dict(world.open([snapshot(world, middle)]).value(OTHER).items()) == {"a": 1}


def test_a_small_cache_changes_nothing(world: World) -> None:
    backend = world.open(cache_entries=3)
    state = backend.value(TOTAL)
    for lap in range(1, 4):
        for start in range(0, 40, 8):
            keys = [str(key) for key in range(start, start + 8)]
            view = state.view(keys)
            for key in keys:
                view[key] = view.get(key, 0) + 1
            assert [state.get(key) for key in keys] == [lap] * 8
        snapshot(world, backend, lap)

    assert dict(state.items()) == {str(key): 3 for key in range(40)}


def test_changes_outlive_what_is_only_looked_up(world: World) -> None:
    """What was not changed leaves the cache first."""
    backend = world.open(cache_entries=3)
    state: Any = backend.value(TOTAL)
    state.view("abcdefgh").update(dict.fromkeys("abcdefgh", 1))
    snapshot(world, backend)
    state.put("a", 10)
    state.delete("b")

    assert [state.get(key) for key in "cdefghab"] == [1] * 6 + [10, None]
    assert state.cached <= 5
    rest = dict.fromkeys("cdefgh", 1)
    assert dict(world.open([snapshot(world, backend, 2)]).value(TOTAL).items()) == {"a": 10, **rest}


def test_the_cache_is_bounded(world: World) -> None:
    state: Any = world.open(cache_entries=10).value(TOTAL)
    for key in range(1000):
        state.put(key, key)
        state.get(999 - key)
    assert len(state._cache) <= 21

    for key in range(1000):
        state.view([key])[key] = key
    assert len(state._cache) <= 21
    for key in range(1000):
        state.delete(key)
    assert len(state._dirty) <= 21


def test_a_state_of_one_value_a_key_is_not_asked_for_entries(world: World) -> None:
    state = world.open().value(TOTAL)

    for ask in (lambda: state.scan_prefix("a"), lambda: state.scan_keys("a"), state.next_entry):
        with pytest.raises(Bug, match="it has one entry per key|it is not a list"):
            ask()


def test_what_is_looked_up_beside_the_cache_is_counted(world: World) -> None:
    backend = world.open(cache_entries=2)
    state = backend.value(TOTAL)
    state.view(["a", "b"]).update(a=1, b=2)
    state.view(["a", "b"])
    assert backend.cache() == CacheUse(misses=2, entries=2)

    snapshot(world, backend)
    state.view(["c", "d", "e"]).update(c=1, d=1, e=1)
    snapshot(world, backend)
    assert state.get("a") == 1
    assert backend.cache().misses == 2 + 3 + 1


@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_state_is_rescaled_by_key_groups(world: World, parallelism: int) -> None:
    """One subtask to several, and the several to one."""
    backend = world.open()
    state = backend.value(TOTAL)
    for key in range(500):
        state.put(key, key)
    handle = snapshot(world, backend)
    parts = [world.open([handle], key_group_range(s, parallelism)) for s in range(parallelism)]
    found = [dict(part.value(TOTAL).items()) for part in parts]
    merged = world.open([snapshot(world, part) for part in parts])

    assert sum(map(len, found)) == 500
    assert all(group_of(KEY.encode(k)) in key_group_range(s, parallelism) for s, f in enumerate(found) for k in f)
    assert dict(merged.value(TOTAL).items()) == {key: key for key in range(500)}


def test_a_handle_of_the_other_backend_is_converted(world: World) -> None:
    backend = world.open()
    backend.value(TOTAL).put("a", 1)
    converted = world.open([snapshot(world, backend)], kind="rocksdb" if world.kind == "memory" else "memory")

    assert dict(converted.value(TOTAL).items()) == {"a": 1}
    assert snapshot(world, converted).backend != world.kind


def test_a_key_of_another_subtask_is_a_bug(world: World) -> None:
    backend = world.open(groups=range(64))
    state = backend.value(TOTAL)
    foreign = next(key for key in range(1000) if group_of(KEY.encode(key)) >= 64)
    with pytest.raises(Bug):
        state.get(foreign)


def test_handles_must_cover_the_key_groups_once(world: World) -> None:
    backend = world.open(groups=range(64))
    handle = snapshot(world, backend)
    for handles in ([handle], [handle, handle]):
        with pytest.raises(Bug):
            world.open(handles)


def test_a_fresh_attempt_does_not_see_what_an_older_one_left_in_its_directory(world: World) -> None:
    backend = world.open()
    backend.value(TOTAL).put("a", 1)
    snapshot(world, backend)
    backend.close()
    world._opened.clear()
    world._serial = iter([0])  # type: ignore[assignment]

    assert dict(world.open().value(TOTAL).items()) == {}


# ---------------------------------------------------------------- codecs


def test_another_codec_is_refused_and_both_are_shown(world: World) -> None:
    backend = world.open()
    backend.value(TOTAL).put("a", 1)
    restored = world.open([snapshot(world, backend)])
    with pytest.raises(ConfigError, match="stored number, declared text"):
        restored.value(StateDescriptor("sum", KEY, JsonText("text")))


def test_another_key_codec_is_refused_even_if_values_could_be_resolved(world: World) -> None:
    backend = world.open()
    backend.value(StateDescriptor("sum", KEY, Versioned(1))).put("a", 1)
    restored = world.open([snapshot(world, backend)])
    with pytest.raises(ConfigError, match="stored key, declared other key"):
        restored.value(StateDescriptor("sum", JsonText("other key"), Versioned(2)))


def test_a_codec_that_reads_the_old_schema_upgrades_the_rows(world: World) -> None:
    backend = world.open()
    old = backend.value(StateDescriptor("sum", KEY, Versioned(1)))
    for key in range(20_000):
        old.put(key, key)
    newer: StateDescriptor[Any] = StateDescriptor("sum", KEY, Versioned(2))
    upgraded = world.open([snapshot(world, backend)])
    upgraded.value(newer).put("new", ["x"])
    again = world.open([snapshot(world, upgraded)])
    expected: dict[Any, Any] = {key: [key] for key in range(20_000)}

    assert dict(again.value(newer).items()) == expected | {"new": ["x"]}


def test_a_value_that_cannot_be_encoded_is_named(world: World) -> None:
    backend = world.open()
    state = backend.value(TOTAL)
    state.put("good", 1)
    state.put("bad", {1, 2})
    with pytest.raises(ConfigError, match="state 'sum' of operator 'total'.*'bad'.*json-text"):
        backend.snapshot(Epoch(1))


def test_asking_twice_for_a_state_is_a_bug(world: World) -> None:
    backend = world.open()
    backend.value(TOTAL)
    with pytest.raises(Bug):
        backend.value(TOTAL)


@pytest.mark.parametrize("name", ["../x", "", "a/b", "a.b"])
def test_a_state_name_is_a_safe_name(world: World, name: str) -> None:
    with pytest.raises(ConfigError):
        world.open().value(StateDescriptor(name, KEY, KEY))


# ---------------------------------------------------------------- files


def test_what_is_lost_or_damaged_is_named_on_restore(world: World) -> None:
    backend = world.open()
    for key in range(100):
        (state := backend._open.get("sum") or backend.value(TOTAL)).put(key, key)  # type: ignore[attr-defined]
    handle = snapshot(world, backend)
    for file in handle.files:
        name = f"shared/{file.object.sha256}"
        data = _read(world, name)
        for position in range(0, len(data), max(1, len(data) // 7)):
            _write(world, name, data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
            with pytest.raises(CorruptCheckpoint, match=name):
                world.open([handle])
        _write(world, name, data[:-1])
        with pytest.raises(CorruptCheckpoint, match=name):
            world.open([handle])
        world.storage.delete(name)
        with pytest.raises(CorruptCheckpoint, match=name):
            world.open([handle])
        _write(world, name, data)

    assert len(dict(world.open([handle]).value(TOTAL).items())) == 100
    assert state.get(1) == 1


def test_a_snapshot_leaves_nothing_behind_in_the_attempts_directory(world: World) -> None:
    backend = world.open()
    backend.value(TOTAL).put("a", 1)
    snapshot(world, backend)
    backend.snapshot(Epoch(2))  # given up: nobody uploads it

    assert not list((world.root / "attempt-0").glob("checkpoint-*"))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_working_files_are_linked_into_the_storage_beside_them(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are private; a file that others may read would be copied."""
    storage = LocalStorage(tmp_path / "job")
    backend = open_backend(kind, "total", tmp_path / "work", range(128), [], storage)
    backend.value(TOTAL).put("a", 1)
    copies: list[int] = []
    monkeypatch.setattr(files, "copy", lambda source, _: copies.append(source))
    with set_limits(small_file_bytes=1):
        handle = backend.snapshot(Epoch(1))(storage)
    backend.close()

    assert handle.files and copies == []


def test_snapshots_pass_the_named_points(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = world.open()
    passed: list[str] = []
    monkeypatch.setattr(failpoints, "hit", passed.append)
    backend.value(TOTAL).put("a", 1)
    upload = backend.snapshot(Epoch(1))

    assert passed == ["snapshot.flush", "snapshot.linked"]

    upload(world.storage)

    assert passed[2:] == ["snapshot.upload", "snapshot.uploaded"]


class Counting(LocalStorage):
    """A local storage that notes what it is asked to store."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.uploads: list[str] = []

    def upload(self, path: Path, name: str) -> FileRef:
        self.uploads.append(name)
        return super().upload(path, name)

    def publish(self, name: str, data: bytes) -> None:
        self.uploads.append(name)
        super().publish(name, data)


@pytest.mark.limits(small_file_bytes=1)
def test_rocksdb_uploads_only_new_tables(tmp_path: Path) -> None:
    storage = Counting(tmp_path / "job")
    world = World("rocksdb", storage, tmp_path)
    add = _adder(world.open())
    first = add(1)(storage)
    storage.uploads.clear()
    second = add(2)(storage)
    tables = {f.name for f in second.files if f.name.endswith(".sst")}
    old = {f.name for f in first.files}

    assert old & tables
    assert {n for n in storage.uploads if n.endswith(".sst")} == tables - old

    add = _adder(world.open([second]))
    storage.uploads.clear()
    third = add(3)(storage)

    assert {n for n in storage.uploads if n.endswith(".sst")} == {
        f.name for f in third.files if f.name.endswith(".sst")
    } - tables
    world.close()


def test_rocksdb_forgets_tables_that_were_merged(tmp_path: Path) -> None:
    """A job of months has millions."""
    world = World("rocksdb", MemoryStorage(), tmp_path)
    backend = world.open(options=StateOptions(tuning=RocksDBTuning(level0_files=2)))
    add, seen, epochs = _adder(backend), set[str](), itertools.count()

    def some_were_merged() -> bool:
        stored = {file.name for file in add(next(epochs))(world.storage).files}
        tables = {name for name in stored if name.endswith(".sst")}
        seen.update(tables)
        assert backend._store._uploaded.keys() == stored  # type: ignore[attr-defined]
        return seen > tables

    eventually(some_were_merged, "tables are merged")
    world.close()


def test_rocksdb_stores_nothing_of_state_that_has_not_changed(tmp_path: Path) -> None:
    """Otherwise each operator would cost a request in each epoch."""
    storage = Counting(tmp_path / "job")
    world = World("rocksdb", storage, tmp_path)
    backend = world.open()
    backend.value(TOTAL).put("a", 1)
    first = backend.snapshot(Epoch(1))(storage)
    storage.uploads.clear()
    second = backend.snapshot(Epoch(2))(storage)
    world.close()

    assert storage.uploads == []
    assert second.files == first.files
    assert dict(world.open([second]).value(TOTAL).items()) == {"a": 1}


def test_small_files_of_all_operators_are_stored_with_one_request_and_only_once(tmp_path: Path) -> None:
    """Those of an epoch that could not be stored are part of the next one."""
    storage = Counting(tmp_path / "job")
    world = World("rocksdb", storage, tmp_path)
    backends = [world.open() for _ in range(3)]
    states = [backend.value(TOTAL) for backend in backends]
    for epoch in range(1, 4):
        for state in states[: epoch % 3 + 1]:
            state.put(epoch, epoch)
        uploads = [backend.snapshot(Epoch(epoch)) for backend in backends]
        storage.uploads.clear()
        batch = UploadBatch(Away(tmp_path / "job") if epoch == 2 else storage)
        added = [upload.add_to(batch) for upload in uploads]
        with pytest.raises(OSError, match="away") if epoch == 2 else nullcontext():
            batch.store()
            assert len(storage.uploads) == 1
            handles = [get_handle() for get_handle in added]
    world.close()

    assert len({file.object for handle in handles for file in handle.files}) == 2
    restored = [dict(world.open([handle]).value(TOTAL).items()) for handle in handles]
    assert restored == [{1: 1, 2: 2, 3: 3}, {1: 1, 2: 2}, {2: 2}]


class Away(LocalStorage):
    """A local storage on which nothing can be stored."""

    def publish(self, name: str, data: bytes) -> None:
        raise OSError(errno.EIO, "the store is away")


def test_what_rocksdb_stores_in_each_epoch_does_not_grow_with_their_number(tmp_path: Path) -> None:
    """Its manifest is a log of all flushes and compactions since it was begun."""
    world = World("rocksdb", MemoryStorage(), tmp_path)
    add = _adder(world.open())
    handles = [add(epoch)(world.storage) for epoch in range(400)]
    sizes = [file.size for handle in handles for file in handle.files if file.name.startswith("MANIFEST-")]
    world.close()

    assert len(sizes) == len(handles)
    assert max(sizes) < 40_000
    assert sizes[-1] < max(sizes), "a new one was begun"


@pytest.mark.limits(small_file_bytes=1)
def test_the_subtasks_of_a_job_go_on_with_their_own_tables(tmp_path: Path) -> None:
    """Each is handed the handles of all."""
    storage = Counting(tmp_path / "job")
    world = World("rocksdb", storage, tmp_path)
    ranges = [key_group_range(subtask, 3) for subtask in range(3)]
    handles: list[StateHandle] = []
    for groups in ranges:
        backend = world.open(groups=groups)
        state = backend.value(TOTAL)
        for key in (key for key in range(300) if group_of(KEY.encode(key)) in groups):
            state.put(key, key)
        handles.append(backend.snapshot(Epoch(1))(storage))
    storage.uploads.clear()
    backends = [world.open(handles, groups) for groups in ranges]
    again = [backend.snapshot(Epoch(2))(storage) for backend in backends]
    found = [dict(backend.value(TOTAL).items()) for backend in backends]

    assert not [name for name in storage.uploads if name.endswith(".sst")]
    assert [handle.key_groups for handle in again] == [handle.key_groups for handle in handles]
    assert sum(map(len, found)) == 300
    world.close()


def _adder(backend: StateBackend) -> Callable[[int], Any]:
    state = backend.value(TOTAL)

    def add(epoch: int) -> Any:
        for key in range(epoch * 100, epoch * 100 + 100):
            state.put(key, key)
        return backend.snapshot(Epoch(epoch))

    return add


def _read(world: World, name: str) -> bytes:
    return world.storage.read(name)


def _write(world: World, name: str, data: bytes) -> None:
    """A new inode: what running databases have linked stays as it is."""
    world.storage.delete(name)
    world.storage.publish(name, data)


def test_a_state_that_is_forgotten_is_gone_from_the_next_checkpoint_and_may_come_again(world: World) -> None:
    backend = world.open()
    for name in ("kept", "gone"):
        state = backend.value(StateDescriptor(name, KEY, JsonText("number")))
        state.put("k", 1)
    before = snapshot(world, backend, 1)
    second = world.open([before])
    second.drop("gone")
    second.drop("never was")
    kept = second.value(StateDescriptor("kept", KEY, JsonText("number")))
    after = snapshot(world, second, 2)
    third = world.open([after])

    assert ([state["name"] for state in after.states], kept.get("k")) == (["kept"], 1)
    assert third.value(StateDescriptor("gone", KEY, JsonText("number"))).get("k") is None
    with pytest.raises(Bug, match="has opened"):
        second.drop("kept")


class Unchecked(MsgpackCodec[Any]):
    """Whoever writes with it is not asked whether a value is what its type says."""

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)


def test_a_value_that_the_declared_type_cannot_read_is_an_error_with_a_way_out(world: World) -> None:
    def kept(codec: MsgpackCodec[Any]) -> StateDescriptor[Any]:
        return StateDescriptor("kept", KEY, codec)

    backend = world.open()
    backend.value(kept(Unchecked(list[int]))).put("a", ["text"])
    handle = snapshot(world, backend)

    unreadable = r"cannot be read by codec 'msgpack'.*Expected `int`.*Declare a type that reads old values"
    with pytest.raises(ConfigError, match=unreadable):
        world.open([handle]).value(kept(MsgpackCodec(list[int]))).get("a")
    assert world.open([handle]).value(kept(MsgpackCodec(list[int | str]))).get("a") == ["text"]
