"""How many examples a property is tried with: few in `make test`, and other ones in each run; many in `make campaign`.

Rule: what `EXAMPLES` says is a factor for all properties, so that a test says how its property compares with others.
"""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import settings

_TIMES = int(os.environ.get("EXAMPLES", "1"))
"""Set by `make campaign` and `make mutants`."""


def examples(number: int, **others: Any) -> settings:
    """So many examples that hypothesis makes, times the factor of this run; and other settings of hypothesis."""
    return settings(max_examples=number * _TIMES, deadline=None, **others)


def seeds(number: int) -> range:
    """So many seeds of a test that makes its examples itself, times the same factor."""
    return range(number * _TIMES)


def other_seeds(number: int) -> list[int]:
    """So many seeds, other ones in each run, times the same factor: for a test whose failure names its seed."""
    return [random.randrange(1 << 32) for _ in seeds(number)]
