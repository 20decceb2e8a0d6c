"""Whatever is done to maps, lists and windows, with time passing, over crashes, rescaling, changes of backend and of
hash, they behave like dicts that are saved and restored."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from state_codecs import JsonText
from state_world import Kind, World, snapshot

from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.interfaces import StateBackend, StateDescriptor, StateHandle, Ttl
from kafka_eos.schemas import KeyCodec
from kafka_eos.state.entries import NumberCodec
from kafka_eos.state.keygroups import OLDEST, PRESENT, Grouping, key_group_range, subtask_of
from kafka_eos.state.options import StateOptions
from tests.examples import examples

TTL = 5_000
KEY, VALUE = KeyCodec(), JsonText("value")
DESCRIPTORS: dict[str, StateDescriptor[Any]] = {
    d.name: d
    for d in (
        StateDescriptor("map", KEY, VALUE, "map", entry=KEY),
        StateDescriptor("list", KEY, VALUE, "list", entry=NumberCodec()),
        StateDescriptor("windows", KEY, VALUE, namespace=KEY),
        StateDescriptor("maps", KEY, VALUE, "map", namespace=KEY, entry=KEY, ttl=Ttl(TTL / 1000)),
        StateDescriptor("events", KEY, VALUE, "list", entry=NumberCodec(), ttl=Ttl(TTL / 1000, "event")),
        StateDescriptor("value", KEY, VALUE, ttl=Ttl(TTL / 1000, refresh="read-write")),
    )
}
keys = st.sampled_from(["a", "ab", "b", ("a", "b"), 1, 2, b"a", "k" * 300])
inner = st.sampled_from(["", "a", "bc", "c", 0, 7])
values = st.integers(0, 99)
hashes = st.sampled_from([OLDEST, PRESENT])
maps = st.sampled_from(["map", "windows"])
Place = tuple[str, Any]


class Model:
    """What every state must hold: value and time of the last write, by name and place."""

    def __init__(self) -> None:
        self.data: dict[Place, tuple[int, Any]] = {}

    def copy(self) -> Model:
        other = Model()
        other.data = dict(self.data)
        return other

    def alive(self, name: str, now: int) -> dict[Any, Any]:
        expires = DESCRIPTORS[name].ttl is not None
        return {
            place: value
            for (state, place), (written, value) in self.data.items()
            if state == name and not (expires and now - written >= TTL)
        }


class KindsModel(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([1, 4, 1000]), clean=st.sampled_from([1, 3, 100]))
    def start(self, limit: int, clean: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.world = World("memory", MemoryStorage(), Path(self.directory.name))
        self.limit, self.options = limit, StateOptions(ttl_cleanup_rows=clean)
        self.now = 1_000_000
        self.epochs = itertools.count(1)
        self.saved: tuple[list[StateHandle], Model] = ([], Model())
        self._open(1, "memory", OLDEST)

    def _open(self, parallelism: int, kind: Kind, key_hash: str) -> None:
        handles, model = self.saved
        self.parallelism, self.model, self.grouping = parallelism, model.copy(), Grouping(key_hash)
        self.world.close()
        self.world._opened.clear()
        self.backends: list[StateBackend] = []
        self.states: list[dict[str, Any]] = []
        for subtask in range(parallelism):
            groups = key_group_range(subtask, parallelism)
            backend = self.world.open(
                handles,
                groups,
                kind=kind,
                cache_entries=self.limit,
                grouping=self.grouping,
                clock=lambda: self.now,
                options=self.options,
            )
            self.backends.append(backend)
            self.states.append({name: backend.value(each) for name, each in DESCRIPTORS.items()})
        self.passes(0)

    def state(self, name: str, key: Any) -> Any:
        return self.states[subtask_of(self.grouping.group(KEY.encode(key)), self.parallelism)][name]

    def _put(self, name: str, place: Any, value: Any) -> None:
        key = place if name == "value" else place[0]
        self.state(name, key).put(place, value)
        self.model.data[name, place] = (self.now, value)

    # ------------------------------------------------------------ what happens

    @rule(milliseconds=st.sampled_from([0, 1, 1000, 2500, TTL]))
    def passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        for states in self.states:
            for state in states.values():
                state.advance(self.now)

    @rule(name=maps, key=keys, entry=inner, value=values)
    def put(self, name: str, key: Any, entry: Any, value: int) -> None:
        self._put(name, (key, entry), value)

    @rule(key=keys, namespace=inner, entry=inner, value=values)
    def put_within_a_namespace(self, key: Any, namespace: Any, entry: Any, value: int) -> None:
        self._put("maps", (key, namespace, entry), value)

    @rule(key=keys, value=values)
    def put_value(self, key: Any, value: int) -> None:
        self._put("value", key, value)

    @rule(key=keys)
    def get_value(self, key: Any) -> None:
        found = self.state("value", key).get(key)

        assert found == self.model.alive("value", self.now).get(key)

        if found is not None:
            self.model.data["value", key] = (self.now, found)

    @rule(name=st.sampled_from(["list", "events"]), key=keys, value=values)
    def add(self, name: str, key: Any, value: int) -> None:
        number = self.state(name, key).next_entry()

        assert all(number > place[1] for state, place in self.model.data if state == name and place[0] == key)

        self._put(name, (key, number), value)

    @rule(name=maps, key=keys, entry=inner)
    def delete(self, name: str, key: Any, entry: Any) -> None:
        self.state(name, key).delete((key, entry))
        self.model.data.pop((name, (key, entry)), None)

    @rule(name=maps, key=keys, entry=inner)
    def get(self, name: str, key: Any, entry: Any) -> None:
        assert self.state(name, key).get((key, entry)) == self.model.alive(name, self.now).get((key, entry))

    @rule(name=st.sampled_from(["map", "list", "windows", "maps", "events"]), key=keys)
    def go_through(self, name: str, key: Any) -> None:
        """In the order of encoded bytes; that of a list is the order in which its elements were added."""
        places = list(self.state(name, key).places(key))
        found = list(self.state(name, key).within(key))
        expected = {place: value for place, value in self.model.alive(name, self.now).items() if place[0] == key}

        assert dict(found) == expected
        assert places == [p for p, _ in found]
        assert [p for p, _ in found] == (sorted(expected) if name in ("list", "events") else [p for p, _ in found])
        if name in ("map", "windows"):
            assert [p for p, _ in found] == sorted(expected, key=lambda place: KEY.encode(place[1]))

    @rule(key=keys, namespace=inner)
    def go_through_a_namespace(self, key: Any, namespace: Any) -> None:
        found = dict(self.state("maps", key).within(key, namespace))

        assert found == {p: v for p, v in self.model.alive("maps", self.now).items() if p[:2] == (key, namespace)}

    @rule()
    def checkpoint(self) -> None:
        epoch = next(self.epochs)
        self.saved = ([snapshot(self.world, backend, epoch) for backend in self.backends], self.model.copy())

    @rule(parallelism=st.sampled_from([1, 3, 2]), kind=st.sampled_from(["memory", "rocksdb"]), key_hash=hashes)
    def crash_and_restore(self, parallelism: int, kind: Kind, key_hash: str) -> None:
        self._open(parallelism, kind, key_hash)

    @rule(kind=st.sampled_from(["memory", "rocksdb"]))
    def rescale_1_3_2(self, kind: Kind) -> None:
        for parallelism in (1, 3, 2):
            self.checkpoint()
            self._open(parallelism, kind, self.grouping.key_hash)
        self.compare_everything()

    @rule()
    def compare_everything(self) -> None:
        for name in DESCRIPTORS:
            found = [item for states in self.states for item in states[name].items()]

            assert len(found) == len(dict(found))
            assert dict(found) == self.model.alive(name, self.now)

    def teardown(self) -> None:
        self.world.close()
        self.directory.cleanup()


TestKinds = KindsModel.TestCase
TestKinds.settings = examples(4, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
