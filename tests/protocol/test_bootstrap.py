"""Streams wait until the tables that their rows are joined with are whole, and no longer."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.ids import SplitId
from kafka_eos.interfaces import Position, Positions
from kafka_eos.protocol.bootstrap import FIELD, begun, end_of, plain, reached, restored, waiting

ONE, OTHER = SplitId("table/0"), SplitId("table/1")
POSITIONS: Positions = {ONE: {"offset": 3}, OTHER: {"offset": 7}}
ENDS: Positions = {ONE: {"offset": 9}, OTHER: {"offset": 8}}


def test_a_table_begins_with_the_ends_that_it_has_then() -> None:
    first = begun(POSITIONS, ENDS)

    assert {split: end_of(at) for split, at in first.items()} == ENDS
    assert plain(first) == POSITIONS


def test_a_split_that_has_nothing_is_whole() -> None:
    first = begun(POSITIONS, {**ENDS, ONE: POSITIONS[ONE]})

    assert (end_of(first[ONE]), end_of(first[OTHER])) == (None, ENDS[OTHER])


def test_a_split_that_is_found_when_the_ends_are_known_has_none_to_wait_for() -> None:
    first = begun(POSITIONS, {ONE: ENDS[ONE]})

    assert first[OTHER] == POSITIONS[OTHER] and end_of(first[OTHER]) is None


def test_where_a_split_was_to_be_read_to_is_known_when_it_has_been() -> None:
    at = begun(POSITIONS, ENDS)[ONE]

    assert end_of(reached(at)) is None
    assert reached(at)[FIELD] == {"until": ENDS[ONE], "whole": True}
    assert plain({ONE: reached(at)}) == {ONE: POSITIONS[ONE]}


def test_what_is_known_of_ends_goes_to_newer_positions() -> None:
    moved: Positions = {ONE: {"offset": 5}, SplitId("table/2"): {"offset": 0}}

    found = restored(moved, begun(POSITIONS, ENDS))

    assert plain(found) == moved
    assert {split: end_of(at) for split, at in found.items()} == {ONE: ENDS[ONE], SplitId("table/2"): None}


def whole(table: bool) -> Positions:
    first = begun(POSITIONS, ENDS)
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
