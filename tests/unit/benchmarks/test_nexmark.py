"""Nexmark's generator, the comparison that its figures rest on, and what is made of what was seen."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest

from benchmarks.nexmark import __main__ as command
from benchmarks.nexmark.events import DISORDER_MS, Auction, Bid, Person
from benchmarks.nexmark.expected import QUERIES as EXPECTED
from benchmarks.nexmark.expected import by_the_clock, different
from benchmarks.nexmark.generator import BEGIN_MS, Generator
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.trial import OURS, THEIRS, Look, figures
from benchmarks.plots import Row
from benchmarks.trial import WrongOutput

ROWS = [{"id": 1, "price": 5}, {"id": 2, "price": 7}, {"id": 2, "price": 7}]


def test_events_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    made = list(Generator(500).records())

    assert list(Generator(500).records()) == made
    assert list(Generator(500, seed=2).records()) != made


def test_persons_auctions_and_bids_are_one_three_and_46_of_fifty() -> None:
    assert Counter(type(event) for event in list(Generator(5000).all())[:5000]) == {
        Person: 100,
        Auction: 300,
        Bid: 4600,
    }


def test_no_event_is_older_than_the_disorder_allows() -> None:
    times = [event.date_time for event in Generator(5000, per_second=200).all()]
    ahead = [newest - at for newest, at in zip(accumulate(times, max), times, strict=True)]

    assert 0 < max(ahead) <= DISORDER_MS
    assert max(times[:5000]) <= Generator(5000, per_second=200).end == BEGIN_MS + 25_000


def test_bids_are_for_auctions_that_were_opened_before_by_persons_who_had_come() -> None:
    auctions, persons = set[int](), set[int]()
    for event in list(Generator(5000).all())[:5000]:
        match event:
            case Person():
                persons.add(event.id)
            case Auction():
                assert event.seller in persons
                assert event.expires > event.date_time
                auctions.add(event.id)
            case Bid():
                assert event.bidder in persons or event.bidder == max(persons) // 100 * 100 + 1
                assert event.auction in auctions


def test_every_query_has_its_sql() -> None:
    assert list(QUERIES) == list(EXPECTED)


def test_what_is_too_much_and_what_is_missing_is_named() -> None:
    assert different("q", (), ROWS, ROWS[::-1]) is None
    assert '1 are missing, such as [\'{"id": 2' in str(different("q", (), ROWS[:2], ROWS))
    assert '1 rows too many, such as [\'{"id": 1' in str(different("q", (), [ROWS[0], *ROWS], ROWS))
    assert "nothing is compared" in str(different("q", (), [], []))


def test_of_rows_that_replace_each_other_the_last_counts() -> None:
    older = {"id": 1, "price": 4}

    assert different("q", ("id",), [older, *ROWS], ROWS[:2]) is None
    assert "1 rows too many" in str(different("q", ("id",), [*ROWS, older], ROWS[:2]))


def test_a_window_by_the_clock_may_be_there_once() -> None:
    windows = [{"bidder": 1, "start": 0, "bids": 2}, {"bidder": 1, "start": 500, "bids": 3}]

    assert by_the_clock(windows) == [{"bidder": 1, "bids": 5}]
    with pytest.raises(ValueError, match="are there twice"):
        by_the_clock([*windows, windows[0]])


def test_figures_are_those_from_the_first_committed_offset_to_the_last_change() -> None:
    seen = [(0, 0, 0, 1.0), (1, 100, 10, 2.0), (3, 600, 10, 4.0), (5, 600, 90, 5.0), (9, 600, 90, 0.0)]
    looks = [Look(at, read, visible, cpu, cpu / 2, 10**6) for at, read, visible, cpu in seen]

    assert figures(looks, 600) == {"rate": 125.0, "cpu": 6000.0, "broker_cpu": 3000.0, "memory": 1.0}
    with pytest.raises(WrongOutput, match="600 of 700"):
        figures(looks, 700)


def test_contenders_are_compared_by_pairs_of_a_turn() -> None:
    rows: list[Row] = [
        {"turn": turn, "query": query, "who": who, "records": 1000, "rate": rate, "cpu": cpu, "load": 1.0}
        | {"broker_cpu": 1.0, "memory": 100.0}
        for query in ("q1", "q2")
        for turn, who, rate, cpu in ((0, OURS, 90.0, 5.0), (0, THEIRS, 60.0, 10.0), (1, OURS, 80.0, 4.0))
        if query in command.BESIDE or who == OURS
    ]

    assert command.ratios(rows, "q1", "rate") == [1.5]
    assert command.ratios(rows, "q1", "cpu", inverse=True) == [2.0]
    first, second = command.tables(rows).split("\n\n")
    assert [line.split(" | ")[:2] for line in first.splitlines()[2:]] == [
        ["| q1", OURS],
        ["| q1", THEIRS],
        ["| q2", OURS],
    ]
    assert second.splitlines()[2:] == ["| q1 | 2.00 | 2.00 | 1.50 | 1.50 |"]
