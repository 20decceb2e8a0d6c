"""Queries with topics and a checkpoint of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.structured_streaming.kit import Totals


@pytest.fixture
def totals(bootstrap: str, topic: Callable[..., str], tmp_path: Path) -> Totals:
    """A query whose input is written; its output has two partitions."""
    made = Totals(bootstrap, topic(2), topic(2), tmp_path / "checkpoint", tmp_path / "fired")
    made.feed()
    return made


@pytest.fixture
def viewfs(spark: Any) -> Callable[[Path], str]:
    """A path as Spark sees it in a file system that is not this host's: ``viewfs(path)``."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.other.link./disk", "file:///")
    return lambda path: f"viewfs://other/disk{path}"
