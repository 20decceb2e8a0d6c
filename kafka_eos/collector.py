"""Python's search for cycles of objects, in processes that work through batches of rows.

Rule: cycles in the user's code are still found, only later.
"""

from __future__ import annotations

import gc

_YOUNG_OBJECTS = 200_000
"""More new objects than some batches have alive at once."""


def spare_the_collector() -> None:
    """Rows and state are freed by their reference counts; looking for cycles among them cost a third of the time.

    Python looks whenever 700 more objects are alive than before, and a batch has thousands. Call it when what lasts,
    the user's code above all, is loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
