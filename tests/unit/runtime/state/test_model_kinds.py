"""Whatever is done to maps, lists, windows, panes and timers, with time passing, they behave like dicts.

Also over epochs that are captured before older ones are decided, given up, stored in part or cleaned up, over crashes,
rescaling, and changes of backend and of hash.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from state_codecs import JsonText
from state_epochs import Epochs, scripts, starts_back
from state_world import Kind, World

from kafka_eos.abc.state import Panes, StateBackend, StateDescriptor, TimerService, Ttl
from kafka_eos.codecs import KeyCodec
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of, key_group_range, subtask_of
from kafka_eos.runtime.state.rocksdb_options import RocksDBTuning, StateOptions
from kafka_eos.runtime.state.timers import TimeCodec, create_timer_descriptor
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage
from tests.examples import examples
from tests.limits import drawn_limits, set_limits

TTL = 5_000
KEY, VALUE = KeyCodec(), JsonText("value")
DESCRIPTORS: dict[str, StateDescriptor[Any]] = {
    d.name: d
    for d in (
        StateDescriptor("map", KEY, VALUE, "map", entry=KEY),
        StateDescriptor("list", KEY, VALUE, "list", entry=ElementNumberCodec()),
        StateDescriptor("windows", KEY, VALUE, namespace=KEY),
        StateDescriptor("maps", KEY, VALUE, "map", namespace=KEY, entry=KEY, ttl=Ttl(TTL / 1000)),
        StateDescriptor("events", KEY, VALUE, "list", entry=ElementNumberCodec(), ttl=Ttl(TTL / 1000, "event")),
        StateDescriptor("value", KEY, VALUE, ttl=Ttl(TTL / 1000, refresh="read-write")),
    )
}
PANES: StateDescriptor[Any] = StateDescriptor("panes", KEY, VALUE, "pane", entry=TimeCodec())
TIMERS = create_timer_descriptor("timers", KEY)
keys = st.sampled_from(["a", "ab", "b", ("a", "b"), 1, 2, b"a", "k" * 300])
inner = st.sampled_from(["", "a", "bc", "c", 0, 7])
values = st.integers(0, 99)
maps = st.sampled_from(["map", "windows"])
Place = tuple[str, Any]


@dataclass
class Model:
    """What every state must hold."""

    data: dict[Place, tuple[int, Any]] = field(default_factory=dict)
    """Value and time of the last write, by name and place."""
    panes: dict[tuple[Any, int], int] = field(default_factory=dict)
    """By key and pane."""
    timers: set[tuple[Any, int]] = field(default_factory=set)
    """Keys and times."""
    event_time: int = 0
    """The time that timers and panes have come to."""

    def copy(self) -> Model:
        return Model(dict(self.data), dict(self.panes), set(self.timers), self.event_time)

    def alive(self, name: str, now: int) -> dict[Any, Any]:
        expires = DESCRIPTORS[name].ttl is not None
        return {
            place: value
            for (state, place), (written, value) in self.data.items()
            if state == name and not (expires and now - written >= TTL)
        }


class KindsModel(RuleBasedStateMachine):
    @initialize(
        limit=st.sampled_from([1, 4, 1000]),
        clean=st.sampled_from([1, 3, 100]),
        local=st.booleans(),
        limits=drawn_limits,
    )
    def start(self, limit: int, clean: int, local: bool, limits: Mapping[str, int]) -> None:
        self.limits = ExitStack()
        self.limits.enter_context(set_limits(**limits))
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        self.world = World("memory", LocalStorage(root / "job") if local else MemoryStorage(), root)
        # Files are merged, so that epochs share some and not others.
        self.limit, self.options = limit, StateOptions(tuning=RocksDBTuning(level0_files=2), ttl_cleanup_rows=clean)
        self.now = 1_000_000
        self.serial = itertools.count()
        self.epochs = Epochs(self.world.storage, Model.copy, Model())
        self._open(0, 1, "memory")

    def _open(self, back: int, parallelism: int, kind: Kind, part_bytes: int | None = None) -> None:
        handles, self.model = self.epochs.go_on_from(back)
        if part_bytes is not None:
            with set_limits(savepoint_part_bytes=part_bytes):
                handles = self.epochs.saved(handles, self.world.root / f"savepoint-{next(self.serial)}")
        self.parallelism = parallelism
        self.world.close()
        self.world._opened.clear()
        self.backends: list[StateBackend] = []
        self.states: list[dict[str, Any]] = []
        self.panes: list[Panes[int]] = []
        self.timers: list[TimerService] = []
        for subtask in range(parallelism):
            groups = key_group_range(subtask, parallelism)
            backend = self.world.open(
                handles,
                groups,
                kind=kind,
                cache_entries=self.limit,
                clock=lambda: self.now,
                options=self.options,
            )
            self.backends.append(backend)
            self.states.append({name: backend.value(each) for name, each in DESCRIPTORS.items()})
            self.panes.append(backend.panes(PANES))
            self.timers.append(backend.timers(TIMERS))
        self.passes(0)

    def owner(self, key: Any) -> int:
        return subtask_of(group_of(KEY.encode(key)), self.parallelism)

    def state(self, name: str, key: Any) -> Any:
        return self.states[self.owner(key)][name]

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
        places = list(self.state(name, key).scan_keys(key))
        found = list(self.state(name, key).scan_prefix(key))
        expected = {place: value for place, value in self.model.alive(name, self.now).items() if place[0] == key}

        assert dict(found) == expected
        assert places == [p for p, _ in found]
        assert [p for p, _ in found] == (sorted(expected) if name in ("list", "events") else [p for p, _ in found])
        if name in ("map", "windows"):
            assert [p for p, _ in found] == sorted(expected, key=lambda place: KEY.encode(place[1]))

    @rule(key=keys, namespace=inner)
    def go_through_a_namespace(self, key: Any, namespace: Any) -> None:
        found = dict(self.state("maps", key).scan_prefix(key, namespace))

        assert found == {p: v for p, v in self.model.alive("maps", self.now).items() if p[:2] == (key, namespace)}

    # ------------------------------------------------------------ panes and timers

    @rule(key=keys, ahead=st.integers(1, 3), value=values)
    def put_into_a_pane(self, key: Any, ahead: int, value: int) -> None:
        pane = self.model.event_time + ahead
        self.panes[self.owner(key)].views({pane: [key]})[pane][key] = value
        self.model.panes[key, pane] = value

    @rule(key=keys, ahead=st.integers(1, 3))
    def set_a_timer(self, key: Any, ahead: int) -> None:
        self.timers[self.owner(key)].add(key, self.model.event_time + ahead)
        self.model.timers.add((key, self.model.event_time + ahead))

    @rule(key=keys, ahead=st.integers(1, 3))
    def remove_a_timer(self, key: Any, ahead: int) -> None:
        self.timers[self.owner(key)].remove(key, self.model.event_time + ahead)
        self.model.timers.discard((key, self.model.event_time + ahead))

    @rule(ahead=st.integers(1, 2))
    def event_time_goes_on(self, ahead: int) -> None:
        """Panes up to it are taken, and timers fire, in the order of time."""
        until = self.model.event_time + ahead
        fired = [(key, time) for found in self.timers for time, key, _ in found.pop_due(until)]
        taken = {place: value for part in self.panes for place, value in _taken(part, until)}

        assert sorted(fired, key=str) == sorted((t for t in self.model.timers if t[1] <= until), key=str)
        assert taken == {place: value for place, value in self.model.panes.items() if place[1] <= until}

        self.model.timers = {timer for timer in self.model.timers if timer[1] > until}
        self.model.panes = {place: value for place, value in self.model.panes.items() if place[1] > until}
        self.model.event_time = until

    # ------------------------------------------------------------ epochs

    @rule(script=scripts, data=st.data())
    def epochs_come_and_go(self, script: Any, data: st.DataObject) -> None:
        def capture() -> None:
            for key in data.draw(st.lists(keys, max_size=2)):
                self.put_value(key, len(self.model.data))
            self.epochs.capture(self.backends, self.model)
            assert sum(backend.pending_timers() or 0 for backend in self.backends) == len(self.model.timers)

        self.epochs.follow(script, capture)

    @rule(
        back=starts_back,
        parallelism=st.sampled_from([1, 3, 2]),
        kind=st.sampled_from(["memory", "rocksdb"]),
        part_bytes=st.sampled_from([None, None, 100, 1 << 20]),
    )
    def crash_and_restore(self, back: int, parallelism: int, kind: Kind, part_bytes: int | None) -> None:
        """``part_bytes``: the state goes through a savepoint, which has a part for so many."""
        self._open(back, parallelism, kind, part_bytes)
        self.compare_everything()

    @rule(kind=st.sampled_from(["memory", "rocksdb"]))
    def rescale_1_3_2(self, kind: Kind) -> None:
        for parallelism in (1, 3, 2):
            self.epochs.capture(self.backends, self.model)
            self.epochs.decide(len(self.epochs.captured) - 1)
            self._open(0, parallelism, kind)
        self.compare_everything()

    @rule()
    def compare_everything(self) -> None:
        for name in DESCRIPTORS:
            found = [item for states in self.states for item in states[name].items()]

            assert len(found) == len(dict(found))
            assert dict(found) == self.model.alive(name, self.now)

        assert dict(item for part in self.panes for item in part.items()) == self.model.panes

    def teardown(self) -> None:
        self.world.close()
        self.directory.cleanup()
        self.limits.close()


def _taken(part: Panes[int], until: int) -> Iterator[tuple[Any, int]]:
    while (pane := part.get_first_pane()) is not None and pane <= until:
        for taken in part.take_pane(pane):
            yield from (((key, pane), value) for key, value in zip(taken.keys, taken.values, strict=True))


TestKinds = KindsModel.TestCase
TestKinds.settings = examples(3, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
