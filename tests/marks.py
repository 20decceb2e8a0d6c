"""Marks that parameters of tests share."""

from __future__ import annotations

from typing import Any

import pytest


def campaign(*values: Any, named: str | None = None) -> Any:
    """Parameters that `make test` leaves to `make campaign`: like those that it runs, and there are many of them."""
    return pytest.param(*values, marks=pytest.mark.campaign, id=named)
