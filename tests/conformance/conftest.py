"""The runs that all tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.runs import Runs


@pytest.fixture(scope="session")
def runs(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Every pipeline on every engine, each run once."""
    made = Runs(bootstrap, tmp_path_factory.mktemp("conformance"))
    yield made
    made.close()
