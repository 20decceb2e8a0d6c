"""Jobs with topics of their own, on the shared broker or on one that may be broken; some write other systems, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Job
from tests.chaos.running import make_job
from tests.contract import s3_server


@pytest.fixture
def new_job(bootstrap: str, tmp_path: Path) -> Callable[..., Job]:
    """``new_job(500, app="totals.py", bootstrap=…, TEST_PAUSE=0.001)``: a job with so many payments to read."""

    def make(records: int = 500, app: str = "totals.py", bootstrap: str = bootstrap, **environment: Any) -> Job:
        return make_job(bootstrap, tmp_path, records, app, **environment)

    return make


@pytest.fixture
def lake(new_job: Callable[..., Job], database: Callable[[], str], tmp_path: Path) -> Callable[..., Job]:
    """``new_job`` that writes a topic, a table of PostgreSQL, Parquet files, Delta and Iceberg tables."""

    def make(records: int = 300, where: str = "", **environment: Any) -> Job:
        (tmp_path / "tables").mkdir()
        given = {
            "TEST_DATABASE": database(),
            "TEST_OUT_DIR": where or str(tmp_path / "lake"),
            "TEST_TABLES": str(tmp_path / "tables"),
            **environment,
        }
        return new_job(records, app="lake.py", **given)

    return make


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    """The address of an empty prefix of a real server."""
    with s3_server.reachable(tmp_path / "s3") as port:
        yield s3_server.address(port, "lake")


@pytest.fixture
def in_bucket(new_job: Callable[..., Job], tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``new_job`` that writes Delta and Iceberg tables below ``lake`` in the bucket of a real server."""
    with s3_server.reachable(tmp_path / "s3") as port:
        yield lambda **environment: new_job(
            300,
            app="lake_in_bucket.py",
            TEST_BUCKET=f"s3://{s3_server.BUCKET}/lake",
            TEST_ENDPOINT=f"http://127.0.0.1:{port}",
            TEST_CATALOG=tmp_path / "catalog.db",
            **environment,
        )
