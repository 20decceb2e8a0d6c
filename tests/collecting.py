"""Tests are collected without a look for garbage, and what was collected is never looked through again.

Thousands of tests, and all modules that they import, stay to the end of the run. Python's collector of garbage would go
through them again and again: it took half of the time of each worker's collection. Rule: for the tests themselves it
is on, as it is for users.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_is_garbage() -> Iterator[None]:
    """While it lasts no garbage is looked for; what is alive at its end counts as alive for good."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
