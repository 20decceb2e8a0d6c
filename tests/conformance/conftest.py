"""The runs that all tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.runs import Runs


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Every pipeline on every engine, each run once."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {(str(given.get("case")), str(given.get("engine"))) for given in params}
    made = Runs(bootstrap, tmp_path_factory.mktemp("conformance"), asked)
    yield made
    made.close()
