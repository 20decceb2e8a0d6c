"""Editing a savepoint: every kind of state, and state whose keys have to stay with their subtask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

from kafka_eos.abc.state import StateBackend, StateDescriptor, StateHandle, Ttl
from kafka_eos.codecs import KeyCodec, MsgpackCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.operators.state_handles import KeyedList, KeyedMap, PendingWrites
from kafka_eos.runtime.state.canonical_savepoint import write_canonical_state
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.timers import create_timer_descriptor
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint, draft_savepoint

KEY = KeyCodec()
INT, TEXT = MsgpackCodec[Any](int), MsgpackCodec[Any](str)
SUM: StateDescriptor[Any] = StateDescriptor("sum", KEY, INT)
WORDS: StateDescriptor[Any] = StateDescriptor("words", KEY, TEXT, "list", entry=ElementNumberCodec())


class Job:
    """Storage of a job, backends on it, and savepoints of what they hold."""

    def __init__(self, root: Path) -> None:
        self.root, self.storage = root, LocalStorage(root / "job")
        self._opened: list[StateBackend] = []

    def open(self, snapshot: Snapshot | None = None, groups: range = range(128), local: bool = False) -> StateBackend:
        directory = self.root / f"work-{len(self._opened)}"
        handles = snapshot.handles_of("op") if snapshot else ()
        storage = snapshot.storage if snapshot else self.storage
        self._opened.append(open_backend("memory", "op", directory, groups, handles, storage, local=local))
        return self._opened[-1]

    def savepoint(self, backends: Sequence[StateBackend]) -> Snapshot:
        handles: list[StateHandle] = [backend.snapshot(Epoch(1))(self.storage) for backend in backends]
        path = self.root / f"savepoint-{len(self._opened)}"
        with draft_savepoint(path) as stage:
            stage.publish(
                Savepoint(job="job", id="one", epoch=1, term=1, created_at=0, plan="", max_key_groups=128, sources={},
                          operators=write_canonical_state(handles, self.storage, stage))
            )  # fmt: skip
        return Snapshot.open(path)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def words(backend: StateBackend, descriptor: StateDescriptor[Any] = WORDS) -> tuple[PendingWrites, KeyedList]:
    """A list state as a process function has it, for key "a"."""
    writes = PendingWrites(backend.value(descriptor), descriptor.name, descriptor.value)
    writes.begin("a")
    return writes, KeyedList(writes, False)


# ---------------------------------------------------------------- lists


@pytest.mark.parametrize("ttl", [None, Ttl(1e9)])
def test_the_job_adds_behind_what_was_put_into_a_list(job: Job, ttl: Ttl | None) -> None:
    descriptor = StateDescriptor("words", KEY, TEXT, "list", entry=ElementNumberCodec(), ttl=ttl)
    backend = job.open()
    writes, found = words(backend, descriptor)
    found.add("one")
    found.add("two")
    writes.apply()
    with SavepointBuilder.from_snapshot(job.savepoint([backend])) as builder:
        builder.put("op", "words", ("a", 2), "three")
        builder.put("op", "words", ("a", 7), "eight")
        builder.write(job.root / "edited")

    writes, found = words(job.open(Snapshot.open(job.root / "edited")), descriptor)
    found.add("of the job")

    assert list(found.get()) == ["one", "two", "three", "eight", "of the job"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("a0", r"a tuple \(key, number\)"),
        (("a",), r"a tuple \(key, number\)"),
        (("a", "x"), "must be an int of at least 0 .got 'x'"),
        (("a", -1), "must be an int of at least 0 .got -1"),
        ((1.5, 0), "a key must be"),
    ],
)
def test_a_place_that_the_state_cannot_have_is_refused_at_once(job: Job, place: Any, message: str) -> None:
    backend = job.open()
    backend.value(WORDS)
    with (
        SavepointBuilder.from_snapshot(job.savepoint([backend])) as builder,
        pytest.raises(ConfigError, match=message),
    ):
        builder.put("op", "words", place, "x")


# ---------------------------------------------------------------- a first state of any kind


def begun(job: Job, items: Any, **how: Any) -> StateBackend:
    with SavepointBuilder.new("job") as builder:
        assert builder.bootstrap("op", "state", items, **how) == 3
        builder.write(job.root / "first")
    return job.open(Snapshot.open(job.root / "first"))


@pytest.mark.parametrize("form", ["pairs", "table"])
def test_a_list_gets_its_elements_in_their_order(job: Job, form: str) -> None:
    items: Any = [("a", "one"), ("b", "other"), ("a", "two")]
    if form == "table":
        items = pandas.DataFrame(items, columns=["k", "word"])
    backend = begun(job, items, value=str, kind="list", key="k" if form == "table" else None)
    _, found = words(backend, StateDescriptor("state", KEY, TEXT, "list", entry=ElementNumberCodec()))
    found.add("three")

    assert list(found.get()) == ["one", "two", "three"]


@pytest.mark.parametrize("form", ["pairs", "table"])
def test_a_map_gets_its_entries(job: Job, form: str) -> None:
    items: Any = [(("a", "/home"), 3), (("a", "/shop"), 1), (("b", "/home"), 9)]
    if form == "table":
        items = pandas.DataFrame([(*place, n) for place, n in items], columns=["k", "page", "n"])
    backend = begun(job, items, value=int, kind="map", key=["k", "page"] if form == "table" else None)
    writes = PendingWrites(backend.value(StateDescriptor("state", KEY, INT, "map", entry=KEY)), "state", INT)
    writes.begin("a")

    assert dict(KeyedMap(writes, False).items()) == {"/home": 3, "/shop": 1}


@pytest.mark.parametrize("kind", ["reducing", "aggregating"])
def test_a_reducing_or_aggregating_state_gets_its_accumulators(job: Job, kind: Any) -> None:
    backend = begun(job, [("a", 1), ("b", 2), ("c", 3)], value=int, kind=kind)

    assert dict(backend.value(StateDescriptor("state", KEY, INT, kind)).items()) == {"a": 1, "b": 2, "c": 3}


def test_a_state_with_namespaces_gets_them(job: Job) -> None:
    elements = [(("a", 10), "one"), (("a", 20), "other"), (("a", 10), "two")]
    backend = begun(job, elements, value=str, kind="list", namespaced=True)
    state = backend.value(StateDescriptor("state", KEY, TEXT, "list", KEY, ElementNumberCodec()))

    assert [value for _, value in state.scan_prefix("a", 10)] == ["one", "two"]


def _place(parts: tuple[Any, ...]) -> Any:
    return parts if len(parts) > 1 else parts[0]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
@pytest.mark.parametrize("namespaced", [False, True])
@pytest.mark.parametrize("key", ["a", ("a", 10), (("a",), b"b", 2)])
def test_a_key_may_be_a_tuple_whatever_the_kind_of_state(job: Job, key: Any, namespaced: bool, kind: Any) -> None:
    front, other = ((key, 10), (key, 20)) if namespaced else ((key,), ("b",))
    place, elsewhere = (_place((*each, "x") if kind == "map" else each) for each in (front, other))
    last: Any = {"value": (key, 30) if namespaced else ("b", 3), "list": place, "map": (*front, ("x", "y"))}[kind]
    backend = begun(job, [(place, 1), (elsewhere, 2), (last, 3)], value=int, kind=kind, namespaced=namespaced)

    entry = {"value": None, "list": ElementNumberCodec(), "map": KEY}[kind]
    state = backend.value(StateDescriptor("state", KEY, INT, kind, KEY if namespaced else None, entry))
    if kind == "list":
        assert [value for _, value in state.scan_prefix(*front)] == [1, 3]
        assert [value for _, value in state.scan_prefix(*other)] == [2]
    else:
        assert dict(state.items()) == {place: 1, elsewhere: 2, last: 3}


@pytest.mark.parametrize("how", [{"kind": "map"}, {"namespaced": True}, {"kind": "list", "namespaced": True}])
def test_a_key_alone_is_no_place_of_a_state_with_several(how: dict[str, Any]) -> None:
    with SavepointBuilder.new("job") as builder, pytest.raises(ConfigError, match=r"a tuple \(key, "):
        builder.bootstrap("op", "state", [("ab", 1)], value=int, **how)


# ---------------------------------------------------------------- local state

TWO = [key_group_range(subtask, 2) for subtask in range(2)]


def local(job: Job, first: dict[str, int], second: dict[str, int]) -> Snapshot:
    """What two workers have behind key_by(local=True)."""
    backends = [job.open(groups=groups, local=True) for groups in TWO]
    for backend, content in zip(backends, (first, second), strict=True):
        state = backend.value(SUM)
        for key, value in content.items():
            state.put(key, value)
    return job.savepoint(backends)


def restored(job: Job, name: str) -> list[dict[str, int]]:
    """What each of the two has again."""
    snapshot = Snapshot.open(job.root / name)
    return [dict(job.open(snapshot, groups, local=True).value(SUM).items()) for groups in TWO]


def test_local_state_is_edited_where_it_is(job: Job) -> None:
    with SavepointBuilder.from_snapshot(local(job, {"a": 1, "b": 2}, {"c": 3, "d": 4})) as builder:
        builder.put("op", "sum", "a", 10)
        builder.put("op", "sum", "c", 30)
        builder.delete("op", "sum", "d")
        builder.write(job.root / "edited")

    assert restored(job, "edited") == [{"a": 10, "b": 2}, {"c": 30}]


def test_a_new_entry_goes_to_the_worker_that_has_its_key(job: Job) -> None:
    backends = [job.open(groups=groups, local=True) for groups in TWO]
    for backend, key in zip(backends, "ab", strict=True):
        backend.value(WORDS).put((key, 0), "one")
    with SavepointBuilder.from_snapshot(job.savepoint(backends)) as builder:
        builder.put("op", "words", ("b", 1), "two")
        builder.write(job.root / "edited")
    snapshot = Snapshot.open(job.root / "edited")
    states = [job.open(snapshot, groups, local=True).value(WORDS) for groups in TWO]

    assert [dict(state.items()) for state in states] == [{("a", 0): "one"}, {("b", 0): "one", ("b", 1): "two"}]
    assert [state.next_entry() for state in states] == [1, 2]


def test_a_key_in_two_workers_becomes_one(job: Job) -> None:
    with SavepointBuilder.from_snapshot(local(job, {"a": 1}, {"a": 2, "b": 3})) as builder:
        builder.put("op", "sum", "a", 3)
        builder.write(job.root / "edited")
    whole = job.open(Snapshot.open(job.root / "edited"))

    assert dict(whole.value(SUM).items()) == {"a": 3, "b": 3}
    assert restored(job, "edited") == [{"a": 3}, {"b": 3}]


def test_a_new_key_of_local_state_is_refused_unless_one_worker_has_all(job: Job) -> None:
    with SavepointBuilder.from_snapshot(local(job, {"a": 1}, {"b": 2})) as builder:
        with pytest.raises(ConfigError, match="stored by 2 workers, none of which has the key of 'new'"):
            builder.put("op", "sum", "new", 1)
        builder.write(job.root / "same")
    assert restored(job, "same") == [{"a": 1}, {"b": 2}]

    alone = job.open(local=True)
    alone.value(SUM).put("a", 1)
    with SavepointBuilder.from_snapshot(job.savepoint([alone])) as builder:
        builder.put("op", "sum", "new", 1)
        builder.write(job.root / "alone")
    state = job.open(Snapshot.open(job.root / "alone"), local=True).value(SUM)
    assert dict(state.items()) == {"a": 1, "new": 1}


# ---------------------------------------------------------------- timers

TIMERS = create_timer_descriptor("event-timers", KEY)
NAMES = [f"k{n}" for n in range(300)]


def with_timers(job: Job, at: Sequence[int] = (5, 9)) -> Snapshot:
    """A timer of each key at 20, in two subtasks that have come to different times."""
    backends = [job.open(groups=key_group_range(n, len(at))) for n in range(len(at))]
    for subtask, backend in enumerate(backends):
        pending = backend.timers(TIMERS)
        for key in (key for key in NAMES if group(key) in key_group_range(subtask, len(at))):
            pending.add(key, 20)
        assert list(pending.pop_due(at[subtask])) == []
    return job.savepoint(backends)


def group(key: str) -> int:
    return group_of(KEY.encode(key))


def test_pending_timers_are_read_as_keys_and_times(job: Job) -> None:
    snapshot = with_timers(job)

    assert dict(snapshot.read("op", "event-timers")) == {(key, 20): True for key in NAMES}
    assert snapshot.find_entries("op", "event-timers", "k7") == [(("k7", 20), True)]
    assert snapshot.get("op", "event-timers", "k7") == {20: True}
    assert snapshot.states("op")["event-timers"].kind == "timer"


def test_timers_can_be_edited_and_event_time_stays_where_it_was(job: Job, tmp_path: Path) -> None:
    builder = SavepointBuilder.from_snapshot(with_timers(job))
    builder.put("op", "event-timers", ("k7", 12), True)
    builder.delete("op", "event-timers", ("k8", 20))
    builder.write(tmp_path / "edited")
    edited = Snapshot.open(tmp_path / "edited")
    pending = job.open(edited).timers(TIMERS)

    assert {pending.get_time(key) for key in NAMES} == {5, 9}
    assert [pending.get_time(key) for key in NAMES] == [9 if group(key) >= 64 else 5 for key in NAMES]
    fired = [(time, key) for time, key, _ in pending.pop_due(20)]
    assert (fired[0], len(fired), (20, "k8") in fired) == ((12, "k7"), len(NAMES), False)


def test_what_is_no_timer_is_refused(job: Job) -> None:
    builder = SavepointBuilder.from_snapshot(with_timers(job))

    with pytest.raises(ConfigError, match=r"tuple \(key, time\)"):
        builder.put("op", "event-timers", "k7", True)
    with pytest.raises(ConfigError, match="the value of a timer must be True"):
        builder.put("op", "event-timers", ("k7", 12), False)
    builder.close()
