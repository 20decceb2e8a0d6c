"""Which windows a moment is in, and which panes a window has: by the definition of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones
from zoneinfo._common import load_data, load_tzdata  # type: ignore[import-not-found]

import pytest

from kafka_eos.core.errors import PlanError
from kafka_eos.plan.window_assigners import (
    JoinInterval,
    days,
    describe_window,
    global_,
    interval,
    rows,
    session,
    sliding,
    tumbling,
)

Edges = list[tuple[int, int]]
MOMENTS = range(-60, 60)


def every_window(size: int, every: int, offset: int) -> Edges:
    """Of one size, a new one each ``every``, around the moments that are looked at."""
    return [(at, at + size) for at in range(-200, 200) if (at - offset) % every == 0]


def with_early(size: int, every: int, offset: int) -> Edges:
    wholes = every_window(size, size, offset)
    return [(start, start + part) for start, _ in wholes for part in range(every, size + 1, every)]


KINDS: dict[str, tuple[Any, Edges]] = {
    "tumbling": (tumbling(seconds=0.010), every_window(10, 10, 0)),
    "tumbling, shifted": (tumbling(seconds=0.010, offset=0.003), every_window(10, 10, 3)),
    "tumbling, shifted back by more than a window": (tumbling(seconds=0.010, offset=-0.012), every_window(10, 10, -2)),
    "early": (tumbling(seconds=0.012, early=0.004), with_early(12, 4, 0)),
    "early, shifted": (tumbling(seconds=0.012, early=0.004, offset=0.003), with_early(12, 4, 3)),
    "early, shifted by more than a window": (tumbling(seconds=0.012, early=0.003, offset=0.017), with_early(12, 3, 5)),
    "early, each millisecond": (tumbling(seconds=0.003, early=0.001), with_early(3, 1, 0)),
    "sliding": (sliding(seconds=0.012, every=0.004), every_window(12, 4, 0)),
    "sliding, in panes smaller than a step": (sliding(seconds=0.010, every=0.004), every_window(10, 4, 0)),
    "sliding, shifted": (sliding(seconds=0.010, every=0.006, offset=-0.001), every_window(10, 6, -1)),
    "sliding, shifted by more than a step": (sliding(seconds=0.010, every=0.004, offset=0.007), every_window(10, 4, 3)),
    "sliding, shifted by part of a pane": (sliding(seconds=0.012, every=0.004, offset=0.001), every_window(12, 4, 1)),
    "sliding, each millisecond": (sliding(seconds=0.003, every=0.001), every_window(3, 1, 0)),
    "sliding, without overlap": (sliding(seconds=0.005, every=0.005), every_window(5, 5, 0)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_moment_is_in_those_windows_that_contain_it(kind: str) -> None:
    windows, edges = KINDS[kind]

    for at in MOMENTS:
        ends = windows.ends(windows.pane(at))

        assert [(windows.start(end), end) for end in ends] == sorted(
            ((start, end) for start, end in edges if start <= at < end), key=lambda edge: edge[1]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_panes_of_a_window_lie_side_by_side_from_its_start_to_its_end(kind: str) -> None:
    windows, edges = KINDS[kind]
    ends = {end for _, end in edges}

    for end in MOMENTS:
        inside = [windows.pane(at) for at in range(windows.start(end), end)] if end in ends else []

        assert list(windows.panes(end)) == sorted(set(inside))
        assert all(pane <= at < pane + 12 for pane, at in zip(inside, range(windows.start(end), end), strict=False))


@pytest.mark.parametrize("kind", KINDS)
def test_windows_share_panes_if_one_has_several_or_may_end_within(kind: str) -> None:
    windows, _ = KINDS[kind]

    assert windows.is_shared == ("tumbling" not in kind)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_day_is_a_pane_of_its_own() -> None:
    windows = days("Europe/Berlin")
    first, second = at("2024-03-31T00:00+01:00"), at("2024-04-01T00:00+02:00")

    assert [windows.pane(moment) for moment in (first, first + 1, second - 1, second)] == [first, first, first, second]
    assert (windows.ends(first), windows.start(second)) == ((second,), first)
    assert (windows.panes(second), windows.panes(second - 1), windows.panes(second + 1)) == ((first,), (), ())
    assert not windows.is_shared


def test_a_day_that_clocks_end_twice_ends_once() -> None:
    """In St. John's they went back from 00:01 to 23:01, so the first midnight ends the day, and then it is over."""
    windows = days("America/St_Johns")
    start, end = at("2006-10-29T00:00-02:30"), at("2006-10-30T00:00-03:30")

    assert (windows.pane(start), windows.ends(start)) == (start, (end,))
    moments = [start + minute * 60_000 for minute in range(120)]
    assert {(windows.pane(moment), *windows.ends(moment)) for moment in moments} == {(start, end)}


def test_a_day_whose_midnight_was_skipped_begins_when_clocks_were_set() -> None:
    """In Toronto they went from 23:30 to 00:30."""
    windows, start = days("America/Toronto"), at("1919-03-30T23:30-05:00")

    assert [windows.pane(start + ms) for ms in (-1, 0, 1_799_999)] == [at("1919-03-30T00:00-05:00"), start, start]


def test_days_of_every_zone_lie_side_by_side() -> None:
    """Around every change of clocks at midnight, from 1900 on."""
    seen = set[tuple[int, int, int]]()
    for name in sorted(available_timezones() - {"localtime"}):
        windows = days(name)
        for second, before, after in changes_of_date(name):
            if (second, before, after) in seen:
                continue
            seen.add((second, before, after))
            day = windows.pane((second - 2 * DAY) * 1000)
            while day < (second + 2 * DAY) * 1000:
                (end,) = windows.ends(day)
                assert [windows.pane(moment) for moment in (day, end - 1)] == [day, day], (name, day)
                assert windows.pane(end) == end, (name, day)
                day = end
    assert len(seen) > 100


DAY = 86_400


def changes_of_date(name: str) -> Iterator[tuple[int, int, int]]:
    """Yield changes of clocks that skip or repeat a midnight: their second, and the offsets before and after."""
    zone = ZoneInfo(name)
    with load_tzdata(name) as file:
        _, changes, *_ = load_data(file)
    for second in changes:
        if second > EARLIEST:
            before, after = (offset_at(zone, second + at) for at in (-1, 0))
            if (second + before) // DAY != (second + after) // DAY:
                yield second, before, after


EARLIEST = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp())


def offset_at(zone: ZoneInfo, second: int) -> int:
    found = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).astimezone(zone).utcoffset()
    assert found is not None
    return int(found.total_seconds())


def test_a_time_in_no_year_has_no_day() -> None:
    with pytest.raises(ValueError, match=r"the event time 10{17} is outside the years 1 to 9999"):
        days("UTC").pane(10**17)


@pytest.mark.parametrize(
    ("windows", "text"),
    [
        (tumbling(seconds=60), "tumbling windows of 60 s"),
        (tumbling(seconds=0.5, offset=0.1), "tumbling windows of 0.5 s from 0.1 s on"),
        (tumbling(seconds=60, early=10, offset=5), "tumbling windows of 60 s from 5 s on, with a result every 10 s"),
        (sliding(seconds=60, every=10), "windows of 60 s every 10 s"),
        (sliding(seconds=60, every=10, offset=-1), "windows of 60 s every 10 s from 9 s on"),
        (days("Asia/Tokyo"), "calendar days of Asia/Tokyo"),
        (session(gap=1.5), "sessions with a gap of 1.5 s"),
        (rows(3), "windows of 3 rows"),
        (rows(3, every=1), "windows of 3 rows every 1"),
        (global_(every=2), "all rows, with a result every 2"),
        (interval(lower=-1, upper=2), "from -1 s to 2 s later"),
    ],
    ids=str,
)
def test_windows_say_what_they_are(windows: Any, text: str) -> None:
    assert str(windows) == text


def test_windows_of_rows_share_what_they_hold_if_they_overlap() -> None:
    assert [windows.is_shared for windows in (rows(1), rows(3), rows(3, every=2), global_(every=1))] == [
        False, False, True, False
    ]  # fmt: skip


def test_the_longest_windows_and_the_least() -> None:
    assert tumbling(seconds=0.001).size == 1
    assert (rows(1).size, rows(1).every, global_(every=1).size, global_(every=1).every) == (1, 1, None, 1)
    assert sliding(seconds=1, every=1).every == 1000
    assert interval(lower=2, upper=2) == JoinInterval(2000, 2000)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: tumbling(seconds=0), "a window's size .* whole milliseconds, at least one .got 0.\n"),
        (lambda: tumbling(seconds=1, offset=0.0001), "or a timedelta, in whole milliseconds .got"),
        (lambda: tumbling(seconds=9, early=0), "the time between early results must be a number of seconds"),
        (lambda: tumbling(seconds=9, early=4), "early=4 s must be a proper divisor of the window's 9 s"),
        (lambda: tumbling(seconds=9, early=9), "early=9 s must be a proper divisor of the window's 9 s"),
        (lambda: sliding(seconds=0, every=1), "a window's size must be"),
        (lambda: sliding(seconds=1, every=0), "the time between two windows is"),
        (lambda: sliding(seconds=1, every=1, offset=True), "an offset is"),
        (lambda: sliding(seconds=1, every=1.001), "windows of 1 s every 1.001 s skip the rows between them"),
        (lambda: session(gap=0), "a gap is"),
        (lambda: session(gap=float("nan")), "a gap is"),
        (lambda: days("Europe/Berlinn"), "unknown time zone 'Europe/Berlinn'"),
        (lambda: days("../etc/passwd"), "unknown time zone"),
        (lambda: rows(0), "got count=0, every=0"),
        (lambda: rows(2, every=0), "got count=2, every=0"),
        (lambda: rows(2, every=3), "got count=2, every=3"),
        (lambda: rows(2.0), "got count=2.0, every=2.0"),  # type: ignore[arg-type]
        (lambda: rows(2.5, every=1), "got count=2.5, every=1"),  # type: ignore[arg-type]
        (lambda: global_(), "got every=None"),
        (lambda: global_(every=0), "got every=0"),
        (lambda: interval(lower=2, upper=1), r"lower \(2 s\) must not be greater than upper \(1 s\)"),
        (lambda: interval(lower=0.0001, upper=1), "lower= must be"),
        (lambda: interval(lower=0, upper=float("inf")), "upper= must be"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_are_refused_with_the_reason(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        make()


def test_the_first_moment_of_1970_is_in_the_window_that_begins_there() -> None:
    assert tumbling(seconds=10).pane(0) == 0
    assert [days("UTC").pane(moment) for moment in (-1, 0, 1)] == [-86_400_000, 0, 0]


def test_a_definition_is_a_durable_format() -> None:
    assert [
        describe_window(tumbling(seconds=10, offset=1)),
        describe_window(tumbling(seconds=10, early=5)),
        describe_window(sliding(seconds=10, every=4)),
        describe_window(days("UTC")),
        describe_window(session(gap=1)),
        describe_window(rows(4, every=2)),
        describe_window(global_(every=2)),
        describe_window(interval(lower=-1, upper=2)),
    ] == [
        {"kind": "tumbling", "size": 10_000, "offset": 1000},
        {"kind": "early", "size": 10_000, "every": 5000, "offset": 0},
        {"kind": "sliding", "size": 10_000, "every": 4000, "offset": 0},
        {"kind": "days", "timezone": "UTC"},
        {"kind": "session", "gap": 1000},
        {"kind": "rows", "size": 4, "every": 2},
        {"kind": "global"},
        {"kind": "interval", "lower": -1000, "upper": 2000},
    ]
