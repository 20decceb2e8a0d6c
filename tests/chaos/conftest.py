"""Jobs with topics of their own, on the shared broker or on one that may be broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.chaos.harness import APPS, Job, create_topic, feed


@pytest.fixture
def new_job(bootstrap: str, tmp_path: Path) -> Callable[..., Job]:
    """``new_job(records=500, app="totals.py", bootstrap=…, TEST_PAUSE="0.001")``: a job whose input is written."""

    def make(records: int = 500, app: str = "totals.py", bootstrap: str = bootstrap, **environment: Any) -> Job:
        name = f"fault-{uuid4().hex[:10]}"
        directory = tmp_path / name
        directory.mkdir()
        settings = {key: str(value) for key, value in environment.items()}
        job = Job(name, bootstrap, f"{name}-in", f"{name}-out", directory, APPS / app, settings)
        create_topic(bootstrap, job.input, 3)
        create_topic(bootstrap, job.output, 3)
        feed(bootstrap, job.input, range(records))
        return job

    return make
