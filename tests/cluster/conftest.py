"""A cluster of three brokers of its own: these tests kill and freeze them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Job
from tests.chaos.running import make_job
from tests.cluster.brokers import Brokers


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Three brokers; every test leaves all of them running."""
    own = Brokers(tmp_path_factory.mktemp("cluster") / "kafka")
    try:
        own.start()
        yield own
    finally:
        own.kill()


@pytest.fixture
def new_job(cluster: Brokers, tmp_path: Path) -> Callable[..., Job]:
    """``new_job(600, TEST_PAUSE=0.001)``: a job with so many payments to read, its topics on all three brokers."""

    def make(records: int, **environment: Any) -> Job:
        return make_job(cluster.bootstrap, tmp_path, records, "totals.py", **environment)

    return make
