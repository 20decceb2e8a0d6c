"""Streams wait until the tables that their rows are joined with are whole, and no longer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.protocol.source_dependencies import (
    FIELD,
    WaitingSources,
    connector_positions,
    describe_waiting,
    first_positions,
    has_seen_all,
    mark_complete,
    positions_until_end,
    remaining_end,
    resumed_positions,
    waiting_sources,
    with_bootstrap,
    without_joins,
)

ONE, OTHER = SplitId("table/0"), SplitId("table/1")
POSITIONS: Positions = {ONE: {"offset": 3}, OTHER: {"offset": 7}}
ENDS: Positions = {ONE: {"offset": 9}, OTHER: {"offset": 8}}
JOINS = {"first", "second"}


def test_a_table_begins_with_the_ends_that_it_has_then() -> None:
    first = first_positions(POSITIONS, ENDS, JOINS)

    assert {split: remaining_end(at) for split, at in first.items()} == ENDS
    assert connector_positions(first) == POSITIONS


def test_a_split_that_has_nothing_is_whole() -> None:
    first = first_positions(POSITIONS, {**ENDS, ONE: POSITIONS[ONE]}, JOINS)

    assert (remaining_end(first[ONE]), remaining_end(first[OTHER])) == (None, ENDS[OTHER])


def test_a_split_that_is_found_when_the_ends_are_known_has_none_to_wait_for() -> None:
    first = first_positions(POSITIONS, {ONE: ENDS[ONE]}, JOINS)

    assert connector_positions(first)[OTHER] == POSITIONS[OTHER] and remaining_end(first[OTHER]) is None


def test_where_a_split_was_to_be_read_to_is_known_when_it_has_been() -> None:
    at = first_positions(POSITIONS, ENDS, JOINS)[ONE]

    assert remaining_end(mark_complete(at)) is None
    assert mark_complete(at)[FIELD] == {
        "from": POSITIONS[ONE], "until": ENDS[ONE], "whole": True, "joins": ["first", "second"]
    }  # fmt: skip
    assert connector_positions({ONE: mark_complete(at)}) == {ONE: POSITIONS[ONE]}


def test_what_is_known_of_ends_goes_to_newer_positions() -> None:
    moved: Positions = {ONE: {"offset": 5}, SplitId("table/2"): {"offset": 0}}

    found = with_bootstrap(moved, first_positions(POSITIONS, ENDS, JOINS))

    assert connector_positions(found) == moved
    assert {split: remaining_end(at) for split, at in found.items()} == {ONE: ENDS[ONE], SplitId("table/2"): None}


def test_a_table_of_which_nothing_was_read_is_whole_for_every_join() -> None:
    first = first_positions(POSITIONS, ENDS, {"first"})

    assert has_seen_all("second", first) and has_seen_all("second", {})
    assert has_seen_all("second", resumed_positions(POSITIONS, first, JOINS))


@pytest.mark.parametrize("ends", [ENDS, POSITIONS], ids=["ends", "empty"])
def test_a_join_that_comes_when_something_was_read_has_not_got_all(ends: Positions) -> None:
    first = first_positions(POSITIONS, ends, {"first"})
    read = with_bootstrap({**POSITIONS, ONE: {"offset": 4}}, first)

    assert has_seen_all("first", read) and not has_seen_all("second", read)


def test_nor_has_one_that_was_left_out_meanwhile() -> None:
    with_both = first_positions(POSITIONS, ENDS, JOINS)
    with_one = with_bootstrap({**POSITIONS, ONE: {"offset": 4}}, resumed_positions(POSITIONS, with_both, {"first"}))

    assert has_seen_all("first", with_one) and not has_seen_all("second", with_one)


def test_nobody_has_got_what_was_read_as_a_stream() -> None:
    assert not has_seen_all("first", resumed_positions(POSITIONS, POSITIONS, JOINS))


def test_what_is_found_later_goes_to_all_joins() -> None:
    known = first_positions({ONE: POSITIONS[ONE]}, ENDS, JOINS)

    found = resumed_positions(POSITIONS, known, JOINS)

    assert connector_positions(found) == POSITIONS and remaining_end(found[OTHER]) is None
    assert has_seen_all("second", with_bootstrap({ONE: {"offset": 4}, OTHER: {"offset": 8}}, found))


def test_a_join_that_loses_what_it_had_got_has_not_got_all() -> None:
    first = {split: {**at, "offset": 5} for split, at in first_positions(POSITIONS, ENDS, {"one", "two"}).items()}

    left = without_joins(first, {"one", "whatever"})

    assert [has_seen_all(join, left) for join in ("one", "two")] == [False, True]
    assert (connector_positions(left), [remaining_end(at) for at in left.values()]) == (
        connector_positions(first),
        [remaining_end(at) for at in first.values()],
    )
    assert without_joins({ONE: {"offset": 5}}, {"one"}) == {ONE: {"offset": 5}}


def test_who_waits_is_said_with_what_for() -> None:
    assert describe_waiting({"orders": ["rates"], "clicks": [], "views": ["pages", "users"]}) == (
        "source orders waits until rates is read to the end; source views waits until pages, users are read to the end"
    )
    assert describe_waiting({"orders": []}) == ""


def test_a_source_after_another_one_is_waited_for_in_event_time_an_epoch_before_it_is_read() -> None:
    """So no worker goes on with its rows before all workers have said that event time waits for theirs."""
    meets = {"live": {"history"}}
    unread = {"history": positions_until_end(POSITIONS, {}, ENDS), "live": {}}
    read = {"history": {split: mark_complete(at) for split, at in unread["history"].items()}, "live": {}}

    held = [WaitingSources.at_start(meets, {"live"}, unread)]
    for positions in (unread, read, read):
        held.append(held[-1].after_epoch(meets, positions))

    assert [(sorted(each.waiting_sources), sorted(each.ignored_by_watermarks)) for each in held] == [
        (["live"], ["live"]),
        (["live"], ["live"]),
        (["live"], []),
        ([], []),
    ]
    assert WaitingSources.at_start(meets, {"live"}, read) == WaitingSources(frozenset(), frozenset())


def test_a_stream_that_waits_for_a_table_is_waited_for_in_event_time_and_read_at_once() -> None:
    meets = {"stream": {"table"}}
    held = WaitingSources.at_start(meets, (), {"table": first_positions(POSITIONS, ENDS, JOINS)})

    assert held == WaitingSources(frozenset({"stream"}), frozenset())
    assert held.after_epoch(meets, {"table": whole(table=True)}) == WaitingSources(frozenset(), frozenset())


def test_a_split_that_was_read_before_anything_was_after_it_is_read_to_its_end_first() -> None:
    known = positions_until_end({ONE: POSITIONS[ONE]}, {}, ENDS)

    found = positions_until_end(POSITIONS, known, {ONE: {"offset": 99}, OTHER: ENDS[OTHER]})

    assert found == {**known, OTHER: found[OTHER]} and remaining_end(found[OTHER]) == ENDS[OTHER]


def whole(table: bool) -> Positions:
    first = first_positions(POSITIONS, ENDS, JOINS)
    return {ONE: mark_complete(first[ONE]), OTHER: mark_complete(first[OTHER]) if table else first[OTHER]}


@given(
    st.dictionaries(st.sampled_from("abc"), st.frozensets(st.sampled_from("xyz"), min_size=1)),
    st.fixed_dictionaries({table: st.booleans() for table in "xyz"}),
)
def test_a_source_waits_exactly_for_its_own_tables(
    meets: Mapping[str, frozenset[str]], tables: Mapping[str, bool]
) -> None:
    stream: Position = {"offset": 0}
    positions = {**{table: whole(is_whole) for table, is_whole in tables.items()}, "a": {SplitId("a/0"): stream}}

    found = waiting_sources(meets, positions)

    assert found == {source for source, met in meets.items() if not all(tables[table] for table in met)}
