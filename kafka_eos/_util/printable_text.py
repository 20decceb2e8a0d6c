"""Text for terminals, logs and pages. Names, messages and records may come from every user who writes to a topic.

Rule: every sink of text passes it through here. A control character could change a terminal or hide a line, and a line
that begins within a message could look like one of the job.
"""

from __future__ import annotations

import re

_LINE_START = re.compile(r"\n(?=\S)")


def printable(text: str, keep: str = "") -> str:
    """Escape all unprintable characters, as in ``\\x1b``, except those of ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )


def as_message(text: str) -> str:
    """Return text as one message: unprintable characters are escaped, and lines behind the first one are indented."""
    return _LINE_START.sub("\n  ", printable(text, "\n\t"))


def printable_json(text: str) -> str:
    """Escape unprintable characters in JSON, where they are in strings only."""
    return (
        text
        if text.isprintable()
        else "".join(
            each if each.isprintable() or each == "\n" else "".join(f"\\u{unit:04x}" for unit in _units(each))
            for each in text
        )
    )


def _units(character: str) -> memoryview:
    """Return the UTF-16 code units of a character."""
    return memoryview(character.encode("utf-16-le", "surrogatepass")).cast("H")
