"""The status of a staged data file, derived from a table's log. Pure.

    table        fence     newest commit           data file    status
    another      any       any                     any          UNKNOWN: the table that it was written for is gone
    same         none      any                     any          UNKNOWN: the incarnation's entries in the log are gone
    same         first one of a later term         any          UNKNOWN: they were gone, and a later start started over
    same         older     any                     any          UNKNOWN: an older copy was restored
    same         any       older than known        any          UNKNOWN: an older copy was restored while the job runs
    same         present   this term, this epoch   any          COMMITTED, also if readers have deleted its rows, or
                           or a later one                       others have compacted or vacuumed its file
    same         present   of a later term         any          UNKNOWN: no valid process still probes this file
    same         present   older, or none          unchanged    PREPARED
    same         present   older, or none          other, gone  LOST: no commit names it, and none can

The fence and the newest commit are those of the file's incarnation. Each commit of an incarnation carries its epoch, an
epoch is one commit, and an epoch is decided only after the receipt of the previous one. So one number shows for every
committable whether it was committed. It is part of the log, so it becomes visible with the rows and only with them.
Rule: an absent file proves nothing by itself. Only the log proves that it was not committed.
"""

from __future__ import annotations

from msgspec import Struct

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.core.ids import EpochId

TAKEN_OVER = (1 << 62) - 1
"""The fence of an incarnation that a successor has taken over from."""


class LogState(Struct, frozen=True):
    """The state of one incarnation in one version of a table's log.

    ``table``: the table's identity.
    ``schema``: a digest of its columns and of everything else that a data file must match.
    ``version``: the version that this sink's next commit is based on.
    ``fence``: the newest term of the incarnation that has begun here; ``TAKEN_OVER``; None if none has.
    ``marker``: the newest epoch of the incarnation that is committed here, with the term that decided it; None if none
    is.
    ``since``: the term that wrote the incarnation's first fence; None if there is none.
    """

    table: str
    schema: str
    version: int
    fence: int | None
    marker: EpochId | None
    since: int | None = None

    def has_record_of(self, of: EpochId) -> bool:
        """Return whether the log reaches back to before an epoch's term staged anything."""
        return self.fence is not None and of.term.n <= self.fence and (self.since is None or self.since <= of.term.n)

    def is_ahead_of(self, epoch: EpochId) -> bool:
        """Return whether a later epoch of the incarnation is committed here."""
        return self.marker is not None and (self.marker.term, self.marker.epoch) > (epoch.term, epoch.epoch)

    def is_missing(self, epoch: EpochId | None) -> bool:
        """Return whether neither the epoch nor a later one is committed here. False for None."""
        if epoch is None:
            return False
        return self.marker is None or (self.marker.term, self.marker.epoch) < (epoch.term, epoch.epoch)


def is_older_than(seen: LogState, newest: EpochId, wrote: EpochId | None) -> bool:
    """Return whether the log is an older copy, in which something is missing that the given epoch proves.

    ``wrote``: the newest epoch, ``newest`` at most, with rows in this very table; None if none is known. The term of
    ``newest`` has written a fence before that epoch, so a copy from before that start is always detected. Epochs older
    than the first fence do not count, because the job started over there. A log without a fence belongs to a table
    that was recreated, unless this very table has rows of the job.
    """
    if seen.fence is None:
        return wrote is not None
    if seen.fence < newest.term.n:
        return True
    return wrote is not None and (seen.since is None or seen.since <= wrote.term.n) and seen.is_missing(wrote)


def derive_status(
    of: EpochId, has_fence: bool, same_table: bool, known: EpochId | None, seen: LogState, is_intact: bool
) -> CommitStatus:
    """Return a committable's status, by the table in the module's docstring.

    ``has_fence``: whether its incarnation writes a fence before it writes rows; a job without an identity does not.
    ``known``: the newest epoch of the incarnation that was seen committed here; None if none was.
    """
    if not same_table or (has_fence and not seen.has_record_of(of)) or seen.is_missing(known):
        return CommitStatus.UNKNOWN
    if seen.marker is not None and seen.marker.term > of.term:
        return CommitStatus.UNKNOWN
    if seen.marker is not None and seen.marker.term == of.term and seen.marker.epoch >= of.epoch:
        return CommitStatus.COMMITTED
    return CommitStatus.PREPARED if is_intact else CommitStatus.LOST
