"""Every kind of storage, so that each claim is made of all. Helpers beside this file are importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kafka_eos.checkpoints.arrow import PyArrowStore
from kafka_eos.checkpoints.remote import RemoteStorage
from kafka_eos.checkpoints.storage import JobStorage, LocalStorage, MemoryStorage


@pytest.fixture(params=["local", "memory", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> JobStorage:
    if request.param == "remote":
        fs = pytest.importorskip("pyarrow.fs")
        return RemoteStorage(PyArrowStore(fs.LocalFileSystem(), str(tmp_path / "remote")))
    return LocalStorage(tmp_path / "job") if request.param == "local" else MemoryStorage()
