"""What the names in a FileSink's directory mean, for every combination of facts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kafka_eos.connectors.files.standings import Content, Listing, judged
from kafka_eos.interfaces import Standing


def everything() -> Iterator[Listing]:
    flags = (False, True)
    for staged, linked, final, one_file, aborted, committed in itertools.product(
        Content, flags, Content, flags, flags, flags
    ):
        if one_file and Content.ABSENT in (staged, final):
            continue
        if linked and staged is Content.ABSENT:
            continue
        yield Listing(staged, linked, final, one_file, aborted, committed)


YES, NO, ANY = {True}, {False}, {True, False}
THERE, WHATEVER = {Content.RIGHT, Content.OTHER}, set(Content)
TABLE = [
    # staged, final, one file, linked, aborted, committed, standing
    (THERE, THERE, YES, ANY, ANY, ANY, Standing.COMMITTED),
    (THERE, {Content.RIGHT}, NO, ANY, ANY, ANY, Standing.COMMITTED),
    (THERE, {Content.OTHER}, NO, ANY, ANY, ANY, Standing.LOST),
    (THERE, {Content.ABSENT}, NO, YES, ANY, ANY, Standing.UNKNOWN),
    ({Content.RIGHT}, {Content.ABSENT}, NO, NO, ANY, ANY, Standing.PREPARED),
    ({Content.OTHER}, {Content.ABSENT}, NO, NO, ANY, ANY, Standing.LOST),
    ({Content.ABSENT}, WHATEVER, NO, NO, YES, ANY, Standing.LOST),
    ({Content.ABSENT}, {Content.RIGHT}, NO, NO, NO, ANY, Standing.COMMITTED),
    ({Content.ABSENT}, WHATEVER, NO, NO, NO, YES, Standing.COMMITTED),
    ({Content.ABSENT}, {Content.ABSENT, Content.OTHER}, NO, NO, NO, NO, Standing.UNKNOWN),
]


def test_every_combination_has_the_standing_of_the_table() -> None:
    for facts in everything():
        found = (facts.staged, facts.final, facts.one_file, facts.linked, facts.aborted, facts.committed)
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
        assert (facts.staged, facts.final, facts.linked) == (Content.RIGHT, Content.ABSENT, False)


def test_nothing_at_all_is_unknown() -> None:
    nothing = Listing(Content.ABSENT, False, Content.ABSENT, one_file=False, aborted=False, committed=False)

    assert judged(nothing) is Standing.UNKNOWN


def test_a_trace_of_a_commit_proves_nothing_while_the_staged_file_is_there() -> None:
    for facts in everything():
        if facts.staged is not Content.ABSENT and facts.committed:
            without = Listing(facts.staged, facts.linked, facts.final, facts.one_file, facts.aborted, committed=False)
            assert judged(facts) is judged(without)
