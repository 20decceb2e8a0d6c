"""The limits that a test runs with: tiny ones where code has loops over them, the usual ones elsewhere.

Rule: what holds for one size holds for all. Tests of ``contract/`` and ``schedules/`` have tiny limits, and each
example of a property draws its own, unless the run has ``--limits tiny`` or ``--limits usual``. Tests of ``unit/``
have the usual limits in ``make test``, because tiny ones take long, and tiny ones in ``make campaign``. A test that
needs certain limits says so: ``@pytest.mark.limits(rows_per_fetch=5000)``, ``limits("usual")``, or
``limits("tiny")``, also elsewhere. ``set_limits`` is for what is known within a test only. Processes that a test
starts have its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.control import current_build_context

from kafka_eos.core.limits import ENVIRONMENT, LIMITS, Limits

_TESTS = Path(__file__).parent
ROOMS: Final = tuple(_TESTS / room for room in ("contract", "schedules"))
USUAL: Final[Mapping[str, int]] = asdict(Limits())
TINY: Final[Mapping[str, int]] = Limits.tiny()


@contextmanager
def set_limits(**values: int) -> Iterator[None]:
    """Set these limits in this process, and in those that it starts, until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(LIMITS, name, value)
        others = asdict(LIMITS).items() - USUAL.items()
        patch.setenv(ENVIRONMENT, ";".join(f"{name}={value}" for name, value in sorted(others)))
        yield


def some_limits(chance: Random) -> dict[str, int]:
    """Limits of which most are small, each by itself: two of them may differ, and so may two that were equal."""
    return {
        name: chance.choice([tiny, tiny + 1, 3 * tiny, USUAL[name]]) if chance.random() < 0.8 else USUAL[name]
        for name, tiny in TINY.items()
    }


drawn_limits: st.SearchStrategy[Mapping[str, int]] = st.one_of(
    st.just(USUAL), st.just(TINY), st.integers(0, 999).map(lambda seed: some_limits(Random(seed)))
)
"""For the examples of a property. The usual ones come first: what fails with any limits is shown to fail with them."""


@contextmanager
def limits_of(test: pytest.Item) -> Iterator[None]:
    """Set the limits of a test, as its room, its marks and the run say."""
    run, given = test.config.getoption("--limits"), dict[str, int]()
    wanted = "tiny" if any(room in test.path.parents for room in ROOMS) else "usual"
    needed = None
    for mark in reversed([*test.iter_markers("limits")]):  # the one of the function is the last
        given |= mark.kwargs
        needed = mark.args[0] if mark.args else needed
    kind = needed or run or wanted
    with set_limits(**{**(TINY if kind == "tiny" else {}), **given}), pytest.MonkeyPatch.context() as patch:
        handle = getattr(getattr(test, "obj", None), "hypothesis", None)
        if handle is not None and wanted == "tiny" and not (needed or run):
            patch.setattr(handle, "inner_test", _with_drawn_limits(handle.inner_test, given))
        yield


def _with_drawn_limits(example: Callable[..., None], given: Mapping[str, int]) -> Callable[..., None]:
    """What hypothesis calls with each example, with limits that are drawn after all that the example has."""

    @wraps(example)
    def run(*arguments: Any, **named: Any) -> None:
        choices = current_build_context().data
        explicit = choices.max_choices == 0  # an ``@example``: nothing can be drawn
        limits = {**(TINY if explicit else choices.draw(drawn_limits)), **given}
        note(f"limits: {dict(limits.items() - USUAL.items())}")
        with set_limits(**limits):
            example(*arguments, **named)

    return run
