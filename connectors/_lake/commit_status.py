"""What a look at a table means for one staged data file. Pure.

    table       fence   newest commit of the life      data file     standing
    another     any     any                            any           UNKNOWN: the one that it was written for is gone
    that one    none    any                            any           UNKNOWN: what the life left in the log is gone
    that one    of a later term, as its first          any           UNKNOWN: it was gone, and a start has begun anew
    that one    older   any                            any           UNKNOWN: it was put back to an older copy
    that one    any     older than what is known       any           UNKNOWN: the same, while the job runs
    that one    there   of this term, this epoch or    any           COMMITTED, also when readers have deleted its rows,
                        a later one                                  or others have compacted or vacuumed its file
    that one    there   of a later term                any           UNKNOWN: nobody who counts asks any more
    that one    there   older, or none                 as promised   PREPARED
    that one    there   older, or none                 other, gone   LOST: no commit names it, and none can

Each commit of a life carries its epoch, all of an epoch is one commit, and an epoch is decided only after the receipt
of the one before it. So one number says of every promise whether it was kept, and it is part of the log itself: it
becomes visible with the rows and only with them.

Rule: a file that is not there proves nothing by itself. What proves that it was not committed is the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.abc.committer import Standing
from kafka_eos.core.ids import EpochId

OVER = (1 << 62) - 1
"""The fence of a life that another one took over from: no term comes behind it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a table's log says of one life, at one version.

    ``table``    the table's identity
    ``schema``   its columns and what else a data file has to fit, in short
    ``version``  what the next commit of ours is based on
    ``fence``    the newest term of the life that has begun here; ``OVER``; None if none has
    ``marker``   the newest epoch of the life that is committed here, with the term that decided it; None if none is
    ``since``    the term that left the life's first fence; None if there is none
    """

    table: str
    schema: str
    version: int
    fence: int | None
    marker: EpochId | None
    since: int | None = None

    def knows(self, of: EpochId) -> bool:
        """Whether the life has been here since before an epoch's term staged anything, and the log is not older."""
        return self.fence is not None and of.term.n <= self.fence and (self.since is None or self.since <= of.term.n)

    def is_ahead_of(self, epoch: EpochId) -> bool:
        """Whether a later epoch of the life is committed here."""
        return self.marker is not None and (self.marker.term, self.marker.epoch) > (epoch.term, epoch.epoch)

    def lacks(self, epoch: EpochId | None) -> bool:
        """Whether neither ``epoch`` nor a later one of the life is committed here. False for None."""
        if epoch is None:
            return False
        return self.marker is None or (self.marker.term, self.marker.epoch) < (epoch.term, epoch.epoch)


def lacking(seen: Seen, newest: EpochId, wrote: EpochId | None) -> bool:
    """Whether the log is older than ``newest``, which the life has finished here: it was put back to an older copy.

    ``wrote``: the newest epoch up to it that has rows in this very table; None if none is known. The term of ``newest``
    has left a fence before it, so a copy of before that start shows in any case. What is older than the first fence
    does not count: a start has begun anew there. A log without a fence is that of a table that somebody has made anew,
    unless there are rows in this very table.
    """
    if seen.fence is None:
        return wrote is not None
    if seen.fence < newest.term.n:
        return True
    return wrote is not None and (seen.since is None or seen.since <= wrote.term.n) and seen.lacks(wrote)


def judged(
    of: EpochId, has_fence: bool, same_table: bool, known: EpochId | None, seen: Seen, as_promised: bool
) -> Standing:
    """The standing of a promise of epoch ``of``, by the table above.

    ``has_fence``: its life leaves one before it writes; a job without an identity does not.
    ``known``: the newest epoch of the life that has been seen committed here; None if none has.
    """
    if not same_table or (has_fence and not seen.knows(of)) or seen.lacks(known):
        return Standing.UNKNOWN
    if seen.marker is not None and seen.marker.term > of.term:
        return Standing.UNKNOWN
    if seen.marker is not None and seen.marker.term == of.term and seen.marker.epoch >= of.epoch:
        return Standing.COMMITTED
    return Standing.PREPARED if as_promised else Standing.LOST
