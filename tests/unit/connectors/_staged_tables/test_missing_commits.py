"""Which commits of an incarnation a restored database lacks, for each combination of facts."""

from __future__ import annotations

import pytest

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors._staged_tables.registrations import OpenStage, Registration, list_signs
from kafka_eos.connectors._staged_tables.stage_names import describe_missing_commits
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

NEWEST = EpochId(Epoch(5), Term(3))
COMMITTED, UNKNOWN, PREPARED = CommitStatus.COMMITTED, CommitStatus.UNKNOWN, CommitStatus.PREPARED


def mark(term: int, over: bool = False) -> Registration:
    return Registration(JobIdentity("a" * 12), Term(term), over)


@pytest.mark.parametrize(
    ("found", "standings", "last", "said"),
    [
        (None, [], None, None),  # no rows are known, so another database lacks nothing
        (None, [UNKNOWN], None, "db has no record of this job"),
        (mark(3), [], None, None),
        (mark(4), [COMMITTED], 5, None),
        (mark(3), [COMMITTED], 4, None),
        (mark(2), [COMMITTED], 5, "db has no term of this job after 2"),
        (mark(3), [COMMITTED, PREPARED], 4, "db lacks output that was committed up to epoch 5/3"),
        (mark(3), [UNKNOWN], None, "db lacks output that was committed up to epoch 5/3"),
        (mark(3), [UNKNOWN], 6, "db already has epoch 6 of this job"),
        (mark(3), [], 6, "db already has epoch 6 of this job"),
        (mark(2, over=True), [UNKNOWN], 6, None),
    ],
)
def test_a_database_lacks_what_its_books_do_not_tell(
    found: Registration | None, standings: list[CommitStatus], last: int | None, said: str | None
) -> None:
    assert describe_missing_commits("db", found, NEWEST, standings, None if last is None else Epoch(last)) == said


def test_the_sign_of_an_incarnation_tells_its_newest_committed_epoch() -> None:
    staged = OpenStage(JobIdentity("b" * 12), "stage", Term(1), 2.0)
    committed = {JobIdentity("a" * 12): Epoch(5), JobIdentity("b" * 12): Epoch(7)}

    signs = list_signs("db", [mark(3)], [staged], committed)

    assert {sign.identity: sign.committed for sign in signs} == committed
