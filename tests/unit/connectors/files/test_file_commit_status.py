"""What the names in a FileSink's directory mean, for every combination of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kafka_eos.abc.committer import CommitStatus
from kafka_eos.connectors.files.sink.commit_status import ContentState, DirectoryEvidence, derive_status


def everything() -> Iterator[DirectoryEvidence]:
    flags = (False, True)
    for staged, final, aborted, committed in itertools.product(ContentState, ContentState, flags, flags):
        yield DirectoryEvidence(staged, final, aborted, committed)


YES, NO, ANY = {True}, {False}, {True, False}
THERE, WHATEVER = {ContentState.RIGHT, ContentState.OTHER}, set(ContentState)
TABLE = [
    # staged, final, aborted, committed, standing
    (THERE, {ContentState.RIGHT}, ANY, ANY, CommitStatus.COMMITTED),
    (THERE, {ContentState.OTHER}, ANY, ANY, CommitStatus.LOST),
    ({ContentState.RIGHT}, {ContentState.ABSENT}, ANY, ANY, CommitStatus.PREPARED),
    ({ContentState.OTHER}, {ContentState.ABSENT}, ANY, ANY, CommitStatus.LOST),
    ({ContentState.ABSENT}, WHATEVER, YES, ANY, CommitStatus.LOST),
    ({ContentState.ABSENT}, {ContentState.RIGHT}, NO, ANY, CommitStatus.COMMITTED),
    ({ContentState.ABSENT}, WHATEVER, NO, YES, CommitStatus.COMMITTED),
    ({ContentState.ABSENT}, {ContentState.ABSENT, ContentState.OTHER}, NO, NO, CommitStatus.UNKNOWN),
]


def test_every_combination_has_the_standing_of_the_table() -> None:
    for facts in everything():
        found = (facts.staged, facts.final, facts.aborted, facts.committed)
        rows = [row for *wanted, row in TABLE if all(each in want for each, want in zip(found, wanted, strict=True))]

        assert set(rows) == {derive_status(facts)}, facts


def test_what_is_not_there_is_lost_only_if_an_abort_says_so() -> None:
    for facts in everything():
        if facts.staged is ContentState.ABSENT and derive_status(facts) is CommitStatus.LOST:
            assert facts.aborted


def test_what_is_not_there_is_committed_only_if_a_trace_or_the_file_says_so() -> None:
    for facts in everything():
        if facts.staged is ContentState.ABSENT and derive_status(facts) is CommitStatus.COMMITTED:
            assert facts.committed or facts.final is ContentState.RIGHT


def test_only_a_whole_staged_file_whose_name_is_free_is_prepared() -> None:
    prepared = [facts for facts in everything() if derive_status(facts) is CommitStatus.PREPARED]

    assert prepared
    for facts in prepared:
        assert (facts.staged, facts.final) == (ContentState.RIGHT, ContentState.ABSENT)


def test_nothing_at_all_is_unknown() -> None:
    nothing = DirectoryEvidence(ContentState.ABSENT, ContentState.ABSENT, aborted=False, committed=False)

    assert derive_status(nothing) is CommitStatus.UNKNOWN


def test_a_trace_of_a_commit_proves_nothing_while_the_staged_file_is_there() -> None:
    for facts in everything():
        if facts.staged is not ContentState.ABSENT and facts.committed:
            without = DirectoryEvidence(facts.staged, facts.final, facts.aborted, committed=False)
            assert derive_status(facts) is derive_status(without)
