"""Python's search for cycles of objects, in processes that start, and in those that work through batches of rows.

Rule: cycles in the user's code are still found, only later.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 200_000
"""More new objects than some batches have alive at once."""


@contextmanager
def importing() -> Iterator[None]:
    """What is imported lasts: to look for cycles in it meanwhile cost a tenth of a start."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def all_lasts() -> None:
    """Nobody looks for cycles in what is there now, not even at the end: call it after imports, and before the user's
    file is loaded, whose objects may have something to do when they go.

    To look through what was imported took a worker a tenth of its start, and a command a fifth of all its time.
    """
    gc.freeze()


def spare_the_collector() -> None:
    """Rows and state are freed by their reference counts; looking for cycles among them cost a third of the time.

    Python looks whenever 700 more objects are alive than before, and a batch has thousands. Call it when what lasts,
    the user's code above all, is loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
