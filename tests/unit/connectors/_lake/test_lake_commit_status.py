"""What a table's log means for a staged data file, for every combination of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._lake.commit_status import TAKEN_OVER, LogState, derive_status, is_older_than
from kafka_eos.core.ids import Epoch, EpochId, Term


def at(epoch: int, term: int) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


OF = at(5, 3)
"""The epoch of the staged file."""
OLDER = {None, at(4, 3), at(9, 2)}
THIS = {OF, at(6, 3)}
NEWER = {at(1, 4), at(5, 4), at(9, 4)}
FENCES = {None, 2, 3, 4, TAKEN_OVER}
SINCE = {None, 1, 3, 4}
"""The first fence: none, of a term before, of this one, of a later one."""
KNOWN = {None: OLDER | THIS | NEWER, at(4, 3): {at(4, 3)} | THIS | NEWER, at(6, 3): {at(6, 3)} | NEWER}
"""The newest epoch seen committed (none, the one before, a later one), and the markers of logs that hold it."""


@dataclass(frozen=True)
class Facts:
    same_table: bool
    has_fence: bool
    fence: int | None
    marker: EpochId | None
    is_intact: bool
    since: int | None
    known: EpochId | None

    def judged(self) -> CommitStatus:
        seen = LogState("table", "schema", 7, self.fence, self.marker, self.since)
        return derive_status(OF, self.has_fence, self.same_table, self.known, seen, self.is_intact)


def everything() -> Iterator[Facts]:
    flags = (False, True)
    for each in itertools.product(flags, flags, FENCES, OLDER | THIS | NEWER, flags, SINCE, KNOWN):
        yield Facts(*each)


YES, NO, ANY = {True}, {False}, {True, False}
REACHED = FENCES - {None, 2}
BEFORE = SINCE - {4}
TABLE = [
    # that table, it leaves a fence, fence, newest commit, file as prepared, first fence, holds what is known, standing
    (NO, ANY, FENCES, OLDER | THIS | NEWER, ANY, SINCE, ANY, CommitStatus.UNKNOWN),
    (YES, NO, FENCES, OLDER | THIS | NEWER, ANY, SINCE, NO, CommitStatus.UNKNOWN),
    (YES, YES, REACHED, OLDER | THIS | NEWER, ANY, BEFORE, NO, CommitStatus.UNKNOWN),
    (YES, YES, {None}, OLDER | THIS | NEWER, ANY, SINCE, ANY, CommitStatus.UNKNOWN),
    (YES, YES, {2}, OLDER | THIS | NEWER, ANY, SINCE, ANY, CommitStatus.UNKNOWN),
    (YES, YES, REACHED, OLDER | THIS | NEWER, ANY, {4}, ANY, CommitStatus.UNKNOWN),
    (YES, YES, REACHED, THIS, ANY, BEFORE, YES, CommitStatus.COMMITTED),
    (YES, YES, REACHED, NEWER, ANY, BEFORE, YES, CommitStatus.UNKNOWN),
    (YES, YES, REACHED, OLDER, YES, BEFORE, YES, CommitStatus.PREPARED),
    (YES, YES, REACHED, OLDER, NO, BEFORE, YES, CommitStatus.LOST),
    # a job without an identity leaves none
    (YES, NO, FENCES, THIS, ANY, SINCE, YES, CommitStatus.COMMITTED),
    (YES, NO, FENCES, NEWER, ANY, SINCE, YES, CommitStatus.UNKNOWN),
    (YES, NO, FENCES, OLDER, YES, SINCE, YES, CommitStatus.PREPARED),
    (YES, NO, FENCES, OLDER, NO, SINCE, YES, CommitStatus.LOST),
]


def test_every_combination_has_the_standing_of_the_table() -> None:
    for facts in everything():
        holds = facts.marker in KNOWN[facts.known]
        found = (facts.same_table, facts.has_fence, facts.fence, facts.marker, facts.is_intact, facts.since, holds)
        rows = [row for *wanted, row in TABLE if all(each in want for each, want in zip(found, wanted, strict=True))]

        assert rows == [facts.judged()], facts


def test_a_file_that_is_not_there_is_lost_only_if_the_log_says_that_it_was_not_committed() -> None:
    for facts in everything():
        if facts.judged() is CommitStatus.LOST:
            assert facts.same_table
            assert facts.marker is None or (facts.marker.term, facts.marker.epoch) < (OF.term, OF.epoch)


def test_the_fence_of_an_incarnation_that_was_taken_over_is_what_logs_of_tables_hold() -> None:
    """Behind every term, and a number of 64 bits, as Delta keeps them."""
    assert TAKEN_OVER == 4_611_686_018_427_387_903


@pytest.mark.parametrize(
    ("fence", "since", "marker", "wrote", "is_older"),
    [
        (3, 1, OF, OF, False),
        (4, 1, at(6, 4), OF, False),
        (TAKEN_OVER, 1, OF, OF, False),
        (3, 1, at(4, 3), OF, True),
        (3, 3, at(4, 3), OF, True),
        (3, None, at(4, 3), OF, True),
        (3, 1, None, OF, True),
        (3, 1, at(9, 2), OF, True),  # a number that comes again after going back is another epoch
        (3, 1, at(4, 3), at(4, 3), False),  # the newest epochs had no rows for it
        (3, 1, at(3, 3), at(4, 3), True),
        (3, 1, at(9, 1), at(4, 2), True),
        (3, 3, None, at(4, 2), False),  # a start has begun anew there, behind the rows
        (3, 1, at(4, 3), None, False),  # no rows are known
        (2, 1, at(9, 2), None, True),  # the start that decided the epoch has left its fence
        (2, None, None, None, True),
        (2, 2, None, at(4, 1), True),
        (4, 4, None, OF, False),  # a start of before this was looked at has begun anew there
        (None, None, None, OF, True),  # rows in this very table, and nothing of the incarnation
        (None, None, None, None, False),  # another table, or no rows
    ],
)
def test_a_log_is_older_than_what_was_finished_there_if_it_lacks_its_start_or_its_commit(
    fence: int | None, since: int | None, marker: EpochId | None, wrote: EpochId | None, is_older: bool
) -> None:
    """``wrote``: the newest epoch with rows in this table."""
    assert is_older_than(LogState("table", "schema", 7, fence, marker, since), OF, wrote) is is_older


@pytest.mark.parametrize(
    ("marker", "is_ahead"), [(None, False), (at(6, 2), False), (OF, False), (at(6, 3), True), (at(4, 4), True)]
)
def test_a_log_with_a_later_epoch_is_ahead(marker: EpochId | None, is_ahead: bool) -> None:
    assert LogState("table", "schema", 7, 9, marker, 1).is_ahead_of(OF) is is_ahead
