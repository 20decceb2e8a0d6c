"""How a bug is planted: parts of ``kafka_eos`` are replaced in the process that calls the bug's function.

Rule: a replaced part notes that it ran (``PLANTED_LOG``), so that a bug nobody passed by is not counted as caught.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

Bug = Callable[[], None]
BUGS: dict[str, Bug] = {}


def bug(plant: Bug) -> Bug:
    BUGS[plant.__name__] = plant
    return plant


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace a function of a class or module; the new one is called with the real one and then its arguments."""
    real = getattr(owner, name)

    def replace(bad: Callable[..., Any]) -> None:
        @functools.wraps(real)
        def planted(*args: Any, **kwargs: Any) -> Any:
            _reached(name)
            return bad(real, *args, **kwargs)

        setattr(owner, name, planted)

    return replace


@functools.cache
def _reached(name: str) -> None:
    with open(os.environ["PLANTED_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{name}\n")


def wait(condition: Callable[[], bool], seconds: float) -> None:
    """Make a race certain: wait until the other side has done its part, or has nothing to do."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
