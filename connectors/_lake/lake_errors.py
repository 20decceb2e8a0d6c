"""The messages of the libraries of lake tables, in errors that everybody may read.

Rule: a message about rows is hidden, as everywhere: libraries quote the value that does not fit, and statistics of a
file contain values too.
"""

from __future__ import annotations

import re
from typing import Final

from kafka_eos.core.error_messages import shows_all_messages

_OF_ROWS: Final = re.compile(
    r"invariant|constraint|violat|stat(?:istic)?s\b|(?:min|max|partition)_?values|\bvalue\b|cast|pars(?:er|ing)|convert"
    r"|overflow|utf-?8",
    re.IGNORECASE,
)
"""Words of messages that may quote a value of a row."""


def describe_lake_error(error: BaseException, text: str) -> str:
    """Return the text of a library's error on one line; its class if the text may quote a row."""
    line = " ".join(text.split())
    if not line or (_OF_ROWS.search(line) and not shows_all_messages()):
        hint = "; its message is hidden because it may quote rows, show_error_messages=true shows it" if line else ""
        return f"{type(error).__name__}{hint}"
    return line
