"""A job's storage, and coordinators on it as a supervisor makes them in every attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator.coordinator import Coordinator
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.patience import Patience


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "orders")


@pytest.fixture
def coordinator(storage: LocalStorage) -> Callable[..., Coordinator]:
    def made(pipeline: Pipeline, **options: Any) -> Coordinator:
        patience = Patience(threading.Event(), print)
        return Coordinator(pipeline.plan(), storage, History(storage, print), patience, {}, 3, **options)

    return made
