"""A job's storage, and coordinators on it as a supervisor makes them in every attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.storage.job_storage import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "orders")


@pytest.fixture
def coordinator(storage: LocalStorage) -> Callable[..., Coordinator]:
    def made(pipeline: Pipeline, storage: LocalStorage = storage, **options: Any) -> Coordinator:
        patience = Retrier(threading.Event(), print)
        return Coordinator(pipeline.plan(), storage, History(storage, print), patience, {}, 3, **options)

    return made
