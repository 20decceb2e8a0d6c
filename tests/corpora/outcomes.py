"""The outcome of one trial: what became of a file, and whether it may. Faults of the corpora are listed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the file or case ``name``; outcomes are counted by ``group`` and ``what``."""

    group: str
    what: str
    name: str
    wrong: bool = False


AT_ODDS: Final = {
    "location_coordinates.csv": "another telephone number than in its JSON",
    "newlines_crlf.csv": "a line feed, where its JSON has a carriage return before it",
    "repeated_no_annotation.parquet": "its footer states 0 rows, and its row groups have 6",
}
"""Files of corpora that contradict themselves, or what the corpus says of them."""
