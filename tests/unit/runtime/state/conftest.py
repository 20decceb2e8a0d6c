"""Every backend on every storage. Helpers beside this file are importable by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from state_world import Kind, World

from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage


@pytest.fixture(params=["memory", "rocksdb"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["local", "memory storage"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> JobStorage:
    return LocalStorage(tmp_path / "job") if request.param == "local" else MemoryStorage()


@pytest.fixture
def world(kind: Kind, storage: JobStorage, tmp_path: Path) -> Iterator[World]:
    world = World(kind, storage, tmp_path)
    yield world
    world.close()
