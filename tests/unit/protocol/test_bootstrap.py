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
    Held,
    begun,
    end_of,
    ending,
    has_got_all,
    in_words,
    plain,
    reached,
    restored,
    resumed,
    waiting,
    without,
)

ONE, OTHER = SplitId("table/0"), SplitId("table/1")
POSITIONS: Positions = {ONE: {"offset": 3}, OTHER: {"offset": 7}}
ENDS: Positions = {ONE: {"offset": 9}, OTHER: {"offset": 8}}
JOINS = {"first", "second"}


def test_a_table_begins_with_the_ends_that_it_has_then() -> None:
    first = begun(POSITIONS, ENDS, JOINS)

    assert {split: end_of(at) for split, at in first.items()} == ENDS
    assert plain(first) == POSITIONS


def test_a_split_that_has_nothing_is_whole() -> None:
    first = begun(POSITIONS, {**ENDS, ONE: POSITIONS[ONE]}, JOINS)

    assert (end_of(first[ONE]), end_of(first[OTHER])) == (None, ENDS[OTHER])


def test_a_split_that_is_found_when_the_ends_are_known_has_none_to_wait_for() -> None:
    first = begun(POSITIONS, {ONE: ENDS[ONE]}, JOINS)

    assert plain(first)[OTHER] == POSITIONS[OTHER] and end_of(first[OTHER]) is None


def test_where_a_split_was_to_be_read_to_is_known_when_it_has_been() -> None:
    at = begun(POSITIONS, ENDS, JOINS)[ONE]

    assert end_of(reached(at)) is None
    assert reached(at)[FIELD] == {
        "from": POSITIONS[ONE], "until": ENDS[ONE], "whole": True, "joins": ["first", "second"]
    }  # fmt: skip
    assert plain({ONE: reached(at)}) == {ONE: POSITIONS[ONE]}


def test_what_is_known_of_ends_goes_to_newer_positions() -> None:
    moved: Positions = {ONE: {"offset": 5}, SplitId("table/2"): {"offset": 0}}

    found = restored(moved, begun(POSITIONS, ENDS, JOINS))

    assert plain(found) == moved
    assert {split: end_of(at) for split, at in found.items()} == {ONE: ENDS[ONE], SplitId("table/2"): None}


def test_a_table_of_which_nothing_was_read_is_whole_for_every_join() -> None:
    first = begun(POSITIONS, ENDS, {"first"})

    assert has_got_all("second", first) and has_got_all("second", {})
    assert has_got_all("second", resumed(POSITIONS, first, JOINS))


@pytest.mark.parametrize("ends", [ENDS, POSITIONS], ids=["ends", "empty"])
def test_a_join_that_comes_when_something_was_read_has_not_got_all(ends: Positions) -> None:
    first = begun(POSITIONS, ends, {"first"})
    read = restored({**POSITIONS, ONE: {"offset": 4}}, first)

    assert has_got_all("first", read) and not has_got_all("second", read)


def test_nor_has_one_that_was_left_out_meanwhile() -> None:
    with_both = begun(POSITIONS, ENDS, JOINS)
    with_one = restored({**POSITIONS, ONE: {"offset": 4}}, resumed(POSITIONS, with_both, {"first"}))

    assert has_got_all("first", with_one) and not has_got_all("second", with_one)


def test_nobody_has_got_what_was_read_as_a_stream() -> None:
    assert not has_got_all("first", resumed(POSITIONS, POSITIONS, JOINS))


def test_what_is_found_later_goes_to_all_joins() -> None:
    known = begun({ONE: POSITIONS[ONE]}, ENDS, JOINS)

    found = resumed(POSITIONS, known, JOINS)

    assert plain(found) == POSITIONS and end_of(found[OTHER]) is None
    assert has_got_all("second", restored({ONE: {"offset": 4}, OTHER: {"offset": 8}}, found))


def test_a_join_that_loses_what_it_had_got_has_not_got_all() -> None:
    first = {split: {**at, "offset": 5} for split, at in begun(POSITIONS, ENDS, {"one", "two"}).items()}

    left = without(first, {"one", "whatever"})

    assert [has_got_all(join, left) for join in ("one", "two")] == [False, True]
    assert (plain(left), [end_of(at) for at in left.values()]) == (plain(first), [end_of(at) for at in first.values()])
    assert without({ONE: {"offset": 5}}, {"one"}) == {ONE: {"offset": 5}}


def test_who_waits_is_said_with_what_for() -> None:
    assert in_words({"orders": ["rates"], "clicks": [], "views": ["pages", "users"]}) == (
        "source orders waits until rates is read to the end; source views waits until pages, users are read to the end"
    )
    assert in_words({"orders": []}) == ""


def test_a_source_after_another_one_is_waited_for_in_event_time_an_epoch_before_it_is_read() -> None:
    """So no worker goes on with its rows before all workers have said that event time waits for theirs."""
    meets = {"live": {"history"}}
    unread = {"history": ending(POSITIONS, {}, ENDS), "live": {}}
    read = {"history": {split: reached(at) for split, at in unread["history"].items()}, "live": {}}

    held = [Held.at_start(meets, {"live"}, unread)]
    for positions in (unread, read, read):
        held.append(held[-1].decided(meets, positions))

    assert [(sorted(each.waiting), sorted(each.silent)) for each in held] == [
        (["live"], ["live"]),
        (["live"], ["live"]),
        (["live"], []),
        ([], []),
    ]
    assert Held.at_start(meets, {"live"}, read) == Held(frozenset(), frozenset())


def test_a_stream_that_waits_for_a_table_is_waited_for_in_event_time_and_read_at_once() -> None:
    meets = {"stream": {"table"}}
    held = Held.at_start(meets, (), {"table": begun(POSITIONS, ENDS, JOINS)})

    assert held == Held(frozenset({"stream"}), frozenset())
    assert held.decided(meets, {"table": whole(table=True)}) == Held(frozenset(), frozenset())


def test_a_split_that_was_read_before_anything_was_after_it_is_read_to_its_end_first() -> None:
    known = ending({ONE: POSITIONS[ONE]}, {}, ENDS)

    found = ending(POSITIONS, known, {ONE: {"offset": 99}, OTHER: ENDS[OTHER]})

    assert found == {**known, OTHER: found[OTHER]} and end_of(found[OTHER]) == ENDS[OTHER]


def whole(table: bool) -> Positions:
    first = begun(POSITIONS, ENDS, JOINS)
    return {ONE: reached(first[ONE]), OTHER: reached(first[OTHER]) if table else first[OTHER]}


@given(
    st.dictionaries(st.sampled_from("abc"), st.frozensets(st.sampled_from("xyz"), min_size=1)),
    st.fixed_dictionaries({table: st.booleans() for table in "xyz"}),
)
def test_a_source_waits_exactly_for_its_own_tables(
    meets: Mapping[str, frozenset[str]], tables: Mapping[str, bool]
) -> None:
    stream: Position = {"offset": 0}
    positions = {**{table: whole(is_whole) for table, is_whole in tables.items()}, "a": {SplitId("a/0"): stream}}

    found = waiting(meets, positions)

    assert found == {source for source, met in meets.items() if not all(tables[table] for table in met)}
