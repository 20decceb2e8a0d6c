"""Every kind of storage, so that each claim is made of all. Helpers beside this file are importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage
from kafka_eos.storage.pyarrow_store import PyArrowStore
from kafka_eos.storage.remote_storage import RemoteStorage


@pytest.fixture(params=["local", "memory", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> JobStorage:
    if request.param == "remote":
        fs = pytest.importorskip("pyarrow.fs")
        return RemoteStorage(PyArrowStore(fs.LocalFileSystem(), str(tmp_path / "remote")))
    return LocalStorage(tmp_path / "job") if request.param == "local" else MemoryStorage()
