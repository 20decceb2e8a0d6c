"""Lines of a comparison of two schemas, of which one may be another program's.

Rule: a schema of another program determines neither the number of lines nor their length, and cannot exhaust the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

_MOST: Final = 100
_LONGEST: Final = 1000
"""Characters of a line: names of types and of fields are as long as their program wants."""


def collect_lines(found: Iterable[str]) -> list[str]:
    """Collect the first lines, without repetitions. Raises ValueError if the schemas are nested too deeply."""
    try:
        cut = (line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in found)
        return list(dict.fromkeys(islice(cut, _MOST)))
    except RecursionError:
        raise ValueError("the schema is nested too deeply to be compared") from None
