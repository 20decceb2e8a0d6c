"""A query whose drivers run in this process, and the brokers that it writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.structured_streaming import partition_writer as task
from tests.micro_batches import Driver
from tests.scripted_broker import ScriptedBroker
from tests.transactional_broker import TransactionalBroker


@pytest.fixture
def kafka() -> TransactionalBroker:
    return TransactionalBroker({"out": 2, "other": 1})


@pytest.fixture
def broker(kafka: TransactionalBroker) -> Iterator[ScriptedBroker]:
    """It serves ``kafka``. The producers that this process keeps for tasks go before it does."""
    with kafka.served() as serving:
        yield serving
        for outlet in task._outlets.values():
            outlet.close()
        task._outlets.clear()


@pytest.fixture
def driver(broker: ScriptedBroker, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """``driver()``: one more driver of the query, not started. All are over at the end, while the broker is there."""
    made: list[Driver] = []

    def make(**options: Any) -> Driver:
        made.append(Driver(tmp_path, broker.address, **options))
        return made[-1]

    yield make
    for each in made:
        if each.started:
            each.end()
        elif not each.closed:
            each.settling.committer.close()
