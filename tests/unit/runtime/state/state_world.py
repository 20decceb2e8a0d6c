"""Backends on storages, opened and restored the way a worker does it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kafka_eos.abc.state import StateBackend, StateHandle
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import JobStorage

Kind = Literal["memory", "rocksdb"]


class World:
    """One job's storage and as many attempts as a test wants; closes what it opened."""

    def __init__(self, kind: Kind, storage: JobStorage, root: Path) -> None:
        self.kind, self.storage, self.root = kind, storage, root
        self._serial = itertools.count()
        self._opened: list[StateBackend] = []

    def open(self, handles: Sequence[StateHandle] = (), groups: range = range(128), **options: Any) -> StateBackend:
        kind = options.pop("kind", self.kind)
        directory = self.root / f"attempt-{next(self._serial)}"
        backend = open_backend(kind, "total", directory, groups, handles, self.storage, **options)
        self._opened.append(backend)
        return backend

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


def snapshot(world: World, backend: StateBackend, epoch: int = 1) -> StateHandle:
    return backend.snapshot(Epoch(epoch))(world.storage)
