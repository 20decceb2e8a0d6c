"""Rows that wait for answers: each is handed on once, in its order, and no watermark before a row in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.records import Batch, Watermark
from kafka_eos.runtime.operators.async_io.pending_rows import AnsweredRows, PendingRows, RequestResult
from kafka_eos.testing.list_source import ListOrigin

Step = tuple[str, int]
"""What happens next: so many rows come, the so-manieth open row is answered, or a watermark comes."""
STEPS = st.lists(
    st.tuples(st.sampled_from(("rows", "answer", "answer", "watermark", "due")), st.integers(0, 6)), max_size=60
)


def batch_of(first: int, count: int) -> Batch[int]:
    values = list(range(first, first + count))
    return Batch(values, range(count), ListOrigin("in", "in", 0, first, values, [-1] * count))


def run(ordered: bool, steps: list[Step]) -> Iterator[tuple[list[int], list[int], list[int], list[Any]]]:
    """After each step: the rows that have come, been answered, are held; and all that was handed on, in order.

    Rows are the numbers 0, 1, 2 …, and so are their tickets; a watermark is the number of rows before it.
    """
    held = PendingRows(ordered)
    came: list[int] = []
    answered: list[int] = []
    out: list[Any] = []
    for what, number in [*steps, *[("answer", 0)] * 400, ("due", 0)]:
        open_rows = sorted(set(came) - set(answered))
        match what:
            case "rows":
                assert list(held.add(batch_of(len(came), number))) == list(range(len(came), len(came) + number))
                came += range(len(came), len(came) + number)
            case "answer" if open_rows:
                ticket = open_rows[number % len(open_rows)]
                held.complete(ticket, RequestResult(ticket))
                answered.append(ticket)
            case "watermark":
                held.add_watermark(Watermark(len(came)))
            case "due":
                for each in held.take_ready():
                    out += [each] if isinstance(each, Watermark) else values(each)
                yield came, answered, [value for batch in held.rows() for value in batch.values], out


def values(answered: AnsweredRows) -> list[int]:
    """Each row with its own answer; and the rows of a batch in their order."""
    found = [answered.batch.values[index] for index in answered.indices]
    assert found == [answer.value for answer in answered.answers] == sorted(found)
    return found


@given(STEPS)
def test_in_order_rows_come_as_they_came_as_soon_as_all_before_them_have(steps: list[Step]) -> None:
    for came, answered, held, out in run(True, steps):
        rows = [each for each in out if not isinstance(each, Watermark)]
        waiting = [row for row in came if row not in answered]
        assert rows == came[: min(waiting, default=len(came))]
        assert held == came[len(rows) :]


@given(STEPS)
def test_as_answered_each_row_comes_at_once_and_none_twice(steps: list[Step]) -> None:
    for came, answered, held, out in run(False, steps):
        rows = [each for each in out if not isinstance(each, Watermark)]
        assert sorted(rows) == sorted(answered)
        assert held == [row for row in came if row not in answered]


@given(st.booleans(), STEPS)
def test_a_watermark_comes_when_every_row_before_it_has_and_no_later(ordered: bool, steps: list[Step]) -> None:
    for *_, out in run(ordered, steps):
        for place, each in enumerate(out):
            if isinstance(each, Watermark):
                before = [row for row in out[:place] if not isinstance(row, Watermark)]
                assert set(range(each.time)) <= set(before)
        times = [each.time for each in out if isinstance(each, Watermark)]
        assert times == sorted(times)
    marks = [0]
    came = 0
    for what, number in steps:
        came += number if what == "rows" else 0
        marks += [came] if what == "watermark" else []
    assert marks[-1] == 0 or times[-1] == marks[-1], "the last one comes, too"


def test_of_several_watermarks_between_two_rows_the_last_counts() -> None:
    held = PendingRows(True)
    held.add(batch_of(0, 1))
    for time in (5, 6, 7):
        held.add_watermark(Watermark(time))
    held.complete(0, RequestResult())

    _, *marks = held.take_ready()

    assert marks == [Watermark(7)]


def test_a_row_that_waits_since_the_first_barrier_is_told_from_those_that_have_come_later() -> None:
    for ordered in (True, False):
        held = PendingRows(ordered)
        held.add(batch_of(0, 2))
        assert held.pass_barrier()

        held.complete(1, RequestResult(1))
        held.add(batch_of(2, 2))
        list(held.take_ready())
        assert held.pass_barrier(), "row 0 waits still"

        held.complete(0, RequestResult(0))
        list(held.take_ready())
        assert not held.pass_barrier(), "rows 2 and 3 have come later"
