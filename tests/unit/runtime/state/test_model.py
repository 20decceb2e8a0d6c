"""Whatever is done to a state, in whatever order, it behaves like a dict that is saved and restored.

Several epochs may be captured before one of them is decided, given up, or cleaned up: see ``state_epochs``.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from state_codecs import TOTAL
from state_epochs import Epochs, rounds, scripts, starts_back
from state_world import Kind, World

from kafka_eos.abc.state import BackendState
from kafka_eos.runtime.state.rocksdb_options import RocksDBTuning, StateOptions
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage
from tests.examples import examples
from tests.limits import drawn_limits, set_limits

keys = st.integers(0, 30).map(str)
values = st.integers() | st.lists(st.integers(), max_size=2)


class StateModel(RuleBasedStateMachine):
    kind: Kind

    @initialize(
        limit=st.sampled_from([1, 4, 1000]), local=st.booleans(), limits=drawn_limits, rounds=rounds, data=st.data()
    )
    def start(self, limit: int, local: bool, limits: Mapping[str, int], rounds: Any, data: st.DataObject) -> None:
        self.limits = ExitStack()
        self.limits.enter_context(set_limits(**limits))
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        self.world = World(self.kind, LocalStorage(root / "job") if local else MemoryStorage(), root)
        self.limit = limit
        self.serial = itertools.count()
        self.epochs = Epochs[dict[str, Any]](self.world.storage, dict, {})
        self._open(0)
        for script, back in rounds:
            self.epochs_come_and_go(script, data)
            self.crash_and_restore(back)

    def _open(self, back: int) -> None:
        handles, self.model = self.epochs.go_on_from(back)
        # Files are merged, so that epochs share some and not others.
        options = StateOptions(tuning=RocksDBTuning(level0_files=2))
        self.backend = self.world.open(handles, cache_entries=self.limit, options=options)
        self.state: BackendState[Any] = self.backend.value(TOTAL)

    @rule(key=keys, value=values)
    def put(self, key: str, value: Any) -> None:
        self.state.put(key, value)
        self.model[key] = value

    @rule(key=keys)
    def get(self, key: str) -> None:
        assert self.state.get(key) == self.model.get(key)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.state.delete(key)
        self.model.pop(key, None)

    @rule(touched=st.lists(keys, max_size=8), value=values, data=st.data())
    def view(self, touched: list[str], value: Any, data: st.DataObject) -> None:
        view = self.state.view(iter(touched))

        assert {k: view[k] for k in touched if k in view} == {k: self.model[k] for k in touched if k in self.model}

        for key in touched:
            match data.draw(st.sampled_from(["leave", "set", "delete"])):
                case "set":
                    view[key] = self.model[key] = value
                case "delete":
                    view.pop(key, None)
                    self.model.pop(key, None)

    @rule(script=scripts, data=st.data())
    def epochs_come_and_go(self, script: Any, data: st.DataObject) -> None:
        def capture() -> None:
            for key in data.draw(st.lists(keys, max_size=2)):
                self.put(key, next(self.serial))
            self.epochs.capture([self.backend], self.model)

        self.epochs.follow(script, capture)

    @rule(back=starts_back)
    def crash_and_restore(self, back: int) -> None:
        self._open(back)
        self.compare_everything()

    @rule()
    def compare_everything(self) -> None:
        assert dict(self.state.items()) == self.model

    @invariant()
    def the_cache_is_bounded(self) -> None:
        state: Any = self.state
        assert len(state._cache) <= 2 * max(self.limit, 8) + 1

    def teardown(self) -> None:
        self.world.close()
        self.directory.cleanup()
        self.limits.close()


class MemoryModel(StateModel):
    kind = "memory"


class RocksModel(StateModel):
    kind = "rocksdb"


TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = examples(30, stateful_step_count=40)
TestRocksModel = RocksModel.TestCase
TestRocksModel.settings = examples(10, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
