"""Jobs with topics of their own, on the shared broker or on one that may be broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Job
from tests.chaos.running import make_job


@pytest.fixture
def new_job(bootstrap: str, tmp_path: Path) -> Callable[..., Job]:
    """``new_job(500, app="totals.py", bootstrap=…, TEST_PAUSE=0.001)``: a job with so many payments to read."""

    def make(records: int = 500, app: str = "totals.py", bootstrap: str = bootstrap, **environment: Any) -> Job:
        return make_job(bootstrap, tmp_path, records, app, **environment)

    return make
