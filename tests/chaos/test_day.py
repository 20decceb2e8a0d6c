"""A day in production passes: see ``day``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import day


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_a_day_in_production(tmp_path: Path) -> None:
    """Each fault has the alerts that it must have and no other, and the audit of all that was written passes."""
    if lacks := day.missing():
        pytest.skip(f"a day in production needs {lacks}")
    cells = day.live(tmp_path, day.SPEED)

    assert "PASS" in cells[-2]
