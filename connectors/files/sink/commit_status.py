"""The status of a committable, derived from the names in a directory. Pure.

    staged file    final file     marker       status
    present        as prepared                 COMMITTED
    present        other                       LOST: it can never get its name
    as prepared    absent                      PREPARED
    other          absent                      LOST: it is damaged
    absent         any            of an abort  LOST
    absent         as prepared                 COMMITTED
    absent         any            of a commit  COMMITTED: readers removed or changed it
    absent         any            none         UNKNOWN

A commit makes its marker durable before it renames the staged file to the final name; an abort also renames the staged
file. So a present staged file was not published; an absent one was either published or aborted, never both. Rule: an
absent file proves nothing by itself, because readers may remove published files.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from kafka_eos.abc.committer import CommitStatus


class ContentState(enum.Enum):
    """The state of a file: absent, matching the committable, or different.

    Both length and checksum must match.
    """

    ABSENT = "absent"
    RIGHT = "as prepared"
    OTHER = "other"


class DirectoryEvidence(Struct, frozen=True):
    """The findings of one check of the directory for one committable."""

    staged: ContentState
    final: ContentState
    aborted: bool
    committed: bool
    """Whether the markers exist."""


def derive_status(facts: DirectoryEvidence) -> CommitStatus:
    """Return a committable's status, by the table in the module's docstring."""
    if facts.staged is ContentState.ABSENT:
        return _gone(facts)
    match facts.final:
        case ContentState.RIGHT:
            return CommitStatus.COMMITTED
        case ContentState.OTHER:
            return CommitStatus.LOST
    return CommitStatus.PREPARED if facts.staged is ContentState.RIGHT else CommitStatus.LOST


def _gone(facts: DirectoryEvidence) -> CommitStatus:
    if facts.aborted:
        return CommitStatus.LOST
    if facts.committed or facts.final is ContentState.RIGHT:
        return CommitStatus.COMMITTED
    return CommitStatus.UNKNOWN
