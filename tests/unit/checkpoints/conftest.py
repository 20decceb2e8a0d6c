"""Both storages, so that each claim is made of both. Helpers beside this file are importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kafka_eos.checkpoints.storage import JobStorage, LocalStorage, MemoryStorage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> JobStorage:
    return LocalStorage(tmp_path / "job") if request.param == "local" else MemoryStorage()
