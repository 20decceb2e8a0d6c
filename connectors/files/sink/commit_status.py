"""What the names in a directory mean for one promise. Pure.

    staged file   final file    besides              standing
    there         as promised                        COMMITTED
    there         other                              LOST: it can never get its name
    as promised   absent                             PREPARED
    other         absent                             LOST: it is damaged
    absent        any           trace of an abort    LOST
    absent        as promised                        COMMITTED
    absent        any           trace of a commit    COMMITTED: readers took or changed it
    absent        any           no trace             UNKNOWN

A commit makes its trace durable before it renames the staged file to the final name, and an abort renames the staged
file too. So a staged file that is there was not published; one that is not was published or undone, and exactly one
of both. Rule: a file that is not there proves nothing by itself, for readers take what is published.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kafka_eos.abc.committer import Standing


class Content(enum.Enum):
    """What is under a name. Only length and checksum together make it RIGHT."""

    ABSENT = "absent"
    RIGHT = "as promised"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Listing:
    """What a look at the directory found, in the order of the fields: whoever commits meanwhile is noticed."""

    staged: Content
    final: Content
    aborted: bool
    committed: bool
    """Whether the traces are there."""


def judged(facts: Listing) -> Standing:
    """The standing of a promise, by the table above."""
    if facts.staged is Content.ABSENT:
        return _gone(facts)
    match facts.final:
        case Content.RIGHT:
            return Standing.COMMITTED
        case Content.OTHER:
            return Standing.LOST
    return Standing.PREPARED if facts.staged is Content.RIGHT else Standing.LOST


def _gone(facts: Listing) -> Standing:
    if facts.aborted:
        return Standing.LOST
    if facts.committed or facts.final is Content.RIGHT:
        return Standing.COMMITTED
    return Standing.UNKNOWN
