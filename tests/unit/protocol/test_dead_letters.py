"""How many dead letters are too many, and what is said about them."""

from __future__ import annotations

import functools
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor, DeadLetterSamples
from kafka_eos.core.errors import TooManyDeadLetters
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.record_preview import RecordExcerpt
from kafka_eos.core.records import RecordCounts, Rejection
from kafka_eos.protocol.dead_letter_limit import DeadLetterLimit, DeadLetterTotals, describe_counts, format_counts

INSIDE = RecordExcerpt.of(-1, b"key", b"a secret", (), "ValueError: bad")


def epoch(read: int, refused: int, source: str = "in", operator: str = "parse") -> RecordCounts:
    tally = RecordCounts()
    tally.add_read(source, read)
    for number in range(refused):
        tally.add_rejection(source, Rejection(f"topic/0/{number}", operator, "ValueError: bad", INSIDE))
    return tally


def decided(limit: DeadLetterLimit, *epochs: RecordCounts) -> DeadLetterTotals:
    books = DeadLetterTotals()
    for each in epochs:
        assert books.find_excess(each, limit) is None
        books = books.with_epoch(each, limit)
    return books


def test_a_number_counts_the_run() -> None:
    limit = DeadLetterLimit.parse("10", 1000)
    books = decided(limit, epoch(100, 4), epoch(100, 6))

    found = books.find_excess(epoch(5, 1), limit)

    assert found is not None
    assert (found.source, found.refused, found.read, found.by) == ("in", 11, 205, {"parse": 11})
    assert [refusal.where for refusal in found.first] == ["topic/0/0", "topic/0/1", "topic/0/2"]


def test_no_dead_letter_is_a_limit_too() -> None:
    assert DeadLetterTotals().find_excess(epoch(1, 1), DeadLetterLimit.parse("0", 1000)) is not None
    assert DeadLetterTotals().find_excess(epoch(1, 0), DeadLetterLimit.parse("0", 1000)) is None


def test_what_was_read_before_this_run_is_not_counted_as_read() -> None:
    """A row that was under way is refused in an epoch that has read nothing of its source."""
    tally = RecordCounts()
    tally.add_rejection("in", Rejection("topic/0/0", "parse", "ValueError: bad", INSIDE))

    found = DeadLetterTotals().find_excess(tally, DeadLetterLimit.parse("0", 1000))

    assert found is not None and (found.refused, found.read) == (1, 0)


def test_a_share_is_that_of_enough_records() -> None:
    limit = DeadLetterLimit.parse("50%", 1000)

    assert DeadLetterTotals().find_excess(epoch(999, 999), limit) is None, "too few to tell"
    assert DeadLetterTotals().find_excess(epoch(1000, 500), limit) is None
    assert DeadLetterTotals().find_excess(epoch(1000, 501), limit) is not None


def test_a_share_looks_at_the_newest_records() -> None:
    """Years without a bad record do not hide that all are bad now, nor does an old burst count for ever."""
    limit = DeadLetterLimit.parse("50%", 100)

    assert decided(limit, *[epoch(50, 0)] * 40, epoch(50, 50)).find_excess(epoch(50, 1), limit) is not None
    assert decided(limit, epoch(50, 50), *[epoch(50, 0)] * 2).find_excess(epoch(50, 20), limit) is None


def test_each_source_has_its_own_share() -> None:
    limit = DeadLetterLimit.parse("50%", 100)
    books = decided(limit, epoch(100_000, 0, "good"), epoch(60, 0, "bad"))

    found = books.find_excess(epoch(90, 90, "bad"), limit)

    assert found is not None
    assert found.source == "bad"


def test_none_is_no_limit() -> None:
    assert DeadLetterTotals().find_excess(epoch(10**6, 10**6), DeadLetterLimit.parse("none", 1)) is None


SOURCES = ("busy", "quiet", "other")
NOTHING = RecordCounts()


single = st.builds(epoch, st.integers(0, 30), st.integers(0, 30), st.sampled_from(SOURCES))
runs = st.one_of(
    single.map(lambda tally: [tally]),
    st.builds(lambda many: [NOTHING] * many, st.integers(1, 50)),
    st.builds(lambda many: [epoch(0, 1, "quiet")] * many, st.integers(1, 50)),
    st.builds(lambda many, read: [epoch(read, 1, "busy")] * many, st.integers(1, 50), st.integers(1, 30)),
    st.lists(single, min_size=2, max_size=3).map(lambda tallies: [functools.reduce(RecordCounts.plus, tallies)]),
)
histories = st.lists(runs, max_size=12).map(lambda parts: list(chain.from_iterable(parts)))


def newest_records(history: list[RecordCounts], source: str, enough: int) -> tuple[int, int]:
    """Read and refused of the newest epochs that have enough records together; recounted from all."""
    read = letters = 0
    for tally in reversed(history):
        if read >= enough:
            break
        read, letters = read + tally.read.get(source, 0), letters + tally.count_dead_letters(source)
    return read, letters


@given(histories, single, st.integers(1, 100), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_books_say_what_a_recount_of_all_epochs_says(
    history: list[RecordCounts], last: RecordCounts, window: int, share: float
) -> None:
    limit = DeadLetterLimit(share=share, window=window)
    books = functools.reduce(lambda books, tally: books.with_epoch(tally, limit), history, DeadLetterTotals())

    (source,) = last.read
    read, letters = newest_records([*history, last], source, window)
    found = books.find_excess(last, limit)
    if source in last.refused and read >= window and letters > share * read:
        assert found is not None
        assert (found.source, found.read, found.refused, sum(found.by.values())) == (source, read, letters, letters)
    else:
        assert found is None
    assert all(
        books.total.count_dead_letters(name) == sum(tally.count_dead_letters(name) for tally in history)
        for name in SOURCES
    )


@given(histories, st.integers(1, 100))
def test_the_books_keep_what_a_window_needs_and_no_more(history: list[RecordCounts], window: int) -> None:
    limit, books = DeadLetterLimit(share=1.0, window=window), DeadLetterTotals()
    for tally in history:
        books = books.with_epoch(tally, limit)
        assert all(len(kept.epochs) <= window for kept in books.newest.values())

    for source, kept in books.newest.items():
        reads = [count.read for count in kept.epochs]
        assert kept.sum.read == sum(reads) >= min(window, sum(tally.read.get(source, 0) for tally in history))
        assert sum(reads[1:]) < window
        assert kept.sum.refused.total() == sum(count.refused.total() for count in kept.epochs)


@pytest.mark.parametrize("limit", ["50%", "10", "none"])
def test_a_quiet_weekend_leaves_nothing_behind(limit: str) -> None:
    """One source was read once and then never again, another one is idle for long and then busy."""
    parsed = DeadLetterLimit.parse(limit, 1000)
    books = DeadLetterTotals().with_epoch(epoch(1, 0, "quiet"), parsed).with_epoch(epoch(1, 0, "busy"), parsed)
    for _ in range(5000):
        books = books.with_epoch(NOTHING, parsed)
    for _ in range(100):
        books = books.with_epoch(epoch(1000, 1, "busy"), parsed)

    kept = {source: len(window.epochs) for source, window in books.newest.items()}
    assert kept == ({"busy": 1, "quiet": 1} if parsed.share is not None else {})


def test_letters_of_records_that_were_read_before_are_counted_with_them() -> None:
    limit = DeadLetterLimit.parse("50%", 100)
    books = decided(limit, epoch(100, 10), epoch(0, 20), epoch(0, 20))

    found = books.find_excess(epoch(0, 1), limit)

    assert found is not None
    assert (found.read, found.refused) == (100, 51)
    assert decided(limit, epoch(100, 10), epoch(0, 40), epoch(100, 50)).find_excess(epoch(10, 1), limit) is None


def test_counts_of_two_moments_tell_what_came_between() -> None:
    before, after = epoch(10, 2), epoch(10, 2).plus(epoch(5, 1, operator="total"))

    assert after.since(before).read == {"in": 5}
    assert after.since(before).refused == {"in": {"total": 1}}


def test_the_end_of_a_run_says_how_many() -> None:
    counts = epoch(10, 2).plus(epoch(5, 1, operator="total")).refused

    assert describe_counts(counts) == "3 dead letters (in: 2 by parse, 1 by total)"
    assert format_counts(counts) == "3 (in: 2 by parse, 1 by total)"
    assert describe_counts(epoch(1, 1).refused) == "1 dead letter (in: 1 by parse)"


def test_who_is_stopped_is_told_how_many_where_and_why() -> None:
    told: list[dict[str, object]] = []
    kept: list[DeadLetterSamples] = []
    refusals = DeadLetterMonitor("50%", 10, lambda event, **facts: told.append({"event": event, **facts}), kept.append)
    first = epoch(10, 2)
    refusals.check_epoch(EpochId(Epoch(3), Term(1)), first)
    assert told == []
    refusals.confirm()

    with pytest.raises(TooManyDeadLetters) as stopped:
        refusals.check_epoch(EpochId(Epoch(4), Term(1)), epoch(10, 9))

    counts = {"in": {"parse": 2}}
    shown = [{"where": f"topic/0/{n}", "operator": "parse", "reason": "ValueError: bad"} for n in (0, 1)]
    assert kept == [first.first], "what is in them is kept, and in no event"
    assert told == [{"event": "dead-letters", "epoch": 3, "counts": counts, "total": counts, "first": {"in": shown}}]
    said = str(stopped.value)
    assert "9 of the newest 10 records of 'in'" in said
    assert "9 by operator 'parse'" in said
    assert "topic/0/0 in 'parse': ValueError: bad" in said
    assert "max_dead_letters=50%" in said
