"""Pipelines for the Spark engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.kit import Job, make_job


@pytest.fixture
def new_job(bootstrap: str, topic: Callable[..., str], tmp_path: Path) -> Callable[..., Job]:
    """``new_job(source, input=3, output=2)``: a job with topics of so many partitions; ``{input}`` is one's name."""

    def make(source: str, **partitions: int) -> Job:
        return make_job(source, bootstrap, tmp_path, {name: topic(count) for name, count in partitions.items()})

    return make
