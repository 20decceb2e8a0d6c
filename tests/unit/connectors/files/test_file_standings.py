"""What the names in a FileSink's directory mean, for every combination of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kafka_eos.abc.committer import Standing
from kafka_eos.connectors.files.sink.commit_status import Content, Listing, judged


def everything() -> Iterator[Listing]:
    flags = (False, True)
    for staged, final, aborted, committed in itertools.product(Content, Content, flags, flags):
        yield Listing(staged, final, aborted, committed)


YES, NO, ANY = {True}, {False}, {True, False}
THERE, WHATEVER = {Content.RIGHT, Content.OTHER}, set(Content)
TABLE = [
    # staged, final, aborted, committed, standing
    (THERE, {Content.RIGHT}, ANY, ANY, Standing.COMMITTED),
    (THERE, {Content.OTHER}, ANY, ANY, Standing.LOST),
    ({Content.RIGHT}, {Content.ABSENT}, ANY, ANY, Standing.PREPARED),
    ({Content.OTHER}, {Content.ABSENT}, ANY, ANY, Standing.LOST),
    ({Content.ABSENT}, WHATEVER, YES, ANY, Standing.LOST),
    ({Content.ABSENT}, {Content.RIGHT}, NO, ANY, Standing.COMMITTED),
    ({Content.ABSENT}, WHATEVER, NO, YES, Standing.COMMITTED),
    ({Content.ABSENT}, {Content.ABSENT, Content.OTHER}, NO, NO, Standing.UNKNOWN),
]


def test_every_combination_has_the_standing_of_the_table() -> None:
    for facts in everything():
        found = (facts.staged, facts.final, facts.aborted, facts.committed)
        rows = [row for *wanted, row in TABLE if all(each in want for each, want in zip(found, wanted, strict=True))]

        assert set(rows) == {judged(facts)}, facts


def test_what_is_not_there_is_lost_only_if_an_abort_says_so() -> None:
    for facts in everything():
        if facts.staged is Content.ABSENT and judged(facts) is Standing.LOST:
            assert facts.aborted


def test_what_is_not_there_is_committed_only_if_a_trace_or_the_file_says_so() -> None:
    for facts in everything():
        if facts.staged is Content.ABSENT and judged(facts) is Standing.COMMITTED:
            assert facts.committed or facts.final is Content.RIGHT


def test_only_a_whole_staged_file_whose_name_is_free_is_prepared() -> None:
    prepared = [facts for facts in everything() if judged(facts) is Standing.PREPARED]

    assert prepared
    for facts in prepared:
        assert (facts.staged, facts.final) == (Content.RIGHT, Content.ABSENT)


def test_nothing_at_all_is_unknown() -> None:
    nothing = Listing(Content.ABSENT, Content.ABSENT, aborted=False, committed=False)

    assert judged(nothing) is Standing.UNKNOWN


def test_a_trace_of_a_commit_proves_nothing_while_the_staged_file_is_there() -> None:
    for facts in everything():
        if facts.staged is not Content.ABSENT and facts.committed:
            without = Listing(facts.staged, facts.final, facts.aborted, committed=False)
            assert judged(facts) is judged(without)
