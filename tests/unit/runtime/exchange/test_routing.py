"""Who gets which row: keys go to the owner of their group, the rest is spread evenly, or goes to all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Pipeline, Stream
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.ids import SplitId
from kafka_eos.core.provenance import extend_branches
from kafka_eos.core.records import Batch
from kafka_eos.plan import Node
from kafka_eos.protocol.split_assignment import is_numbered, select_positions, subtask_of_split
from kafka_eos.runtime.exchange.routing import _Owners, make_router
from kafka_eos.runtime.state.key_groups import group_of, key_group_range, subtask_of
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from tests.limits import set_limits

Keys = st.lists(st.text() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.tuples(st.text(), st.integers(0, 9)))


def exchange(verb: Callable[[Stream[Any]], Any]) -> Node:
    pipeline = Pipeline("routes")
    verb(pipeline.source(ListSource([]), name="source")).sink(MemorySink(), name="sink")
    return pipeline.plan().exchanges[0]


KEY_BY = exchange(lambda stream: stream.key_by(str).reduce(lambda _, value: value, name="last"))
REBALANCE = exchange(lambda stream: stream.rebalance())
BROADCAST = exchange(lambda stream: stream.broadcast())


def batch_of(values: list[Any], **columns: Any) -> Batch[Any]:
    return Batch(values, columns.pop("rows", range(len(values))), ListOrigin("s", "t", 0, 0, values), **columns)


@given(Keys.filter(bool), st.integers(1, 128))
def test_a_key_goes_to_the_owner_of_its_group(keys: list[Any], parallelism: int) -> None:
    """Each time: also when more keys have come than a router remembers."""
    split = make_router(KEY_BY, 0, parallelism)
    with set_limits(remembered_routes=2):
        for _ in range(2):
            parts = list(split(batch_of(list(range(len(keys))), keys=keys)))

            for target, part in parts:
                owned = key_group_range(target, parallelism)
                assert all(group_of(KeyCodec().encode(key)) in owned for key in part.keys or ())
            together = [
                (row, value) for _, part in parts for row, value in zip(part.origin_rows, part.values, strict=True)
            ]
            assert sorted(together) == [(n, n) for n in range(len(keys))]
            assert all(list(part.origin_rows) == sorted(part.origin_rows) for _, part in parts), (
                "rows of a batch changed their order"
            )
            assert len({target for target, _ in parts}) == len(parts)


@pytest.mark.limits("usual")
def test_owners_of_long_keys_are_not_remembered() -> None:
    """A million of them are, however long they are: whoever writes a topic decides how long its keys are."""
    owners = _Owners(KeyCodec(), 3)
    long, short = "k" * 200, "k" * 100

    assert [owners[long], owners[short]] == [subtask_of(group_of(KeyCodec().encode(key)), 3) for key in (long, short)]
    assert list(owners) == [short]


def test_a_router_remembers_no_more_keys_than_it_may() -> None:
    owners = _Owners(KeyCodec(), 3)
    with set_limits(remembered_routes=4):
        for key in map(str, range(20)):
            assert 0 <= owners[key] < 3
            assert len(owners) <= 4


def test_the_route_of_a_key_is_for_ever() -> None:
    """A change here would send rows that are stored under way to subtasks without their state."""
    split = make_router(KEY_BY, 0, 8)

    routes: dict[Any, list[int]] = {"a": [4], "b": [4], 7: [1], ("a", 7): [4]}
    assert {key: [t for t, _ in split(batch_of([0], keys=[key]))] for key in routes} == routes


@pytest.mark.parametrize("parallelism", [1, 2, 3, 128])
def test_every_key_group_has_one_owner(parallelism: int) -> None:
    owned = [group for subtask in range(parallelism) for group in key_group_range(subtask, parallelism)]

    assert owned == list(range(128))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 7), st.data())
def test_rebalance_gives_even_shares(sizes: list[int], parallelism: int, data: st.DataObject) -> None:
    split = make_router(REBALANCE, data.draw(st.integers(0, parallelism - 1)), parallelism)

    got: Counter[int] = Counter(dict.fromkeys(range(parallelism), 0))
    pieces = 0
    for size in sizes:
        values = list(range(size))
        parts = list(split(batch_of(values)))
        assert [value for _, part in parts for value in part.values] == values
        got.update({target: len(part) for target, part in parts})
        pieces += len(parts)
    biggest = -(-max(sizes) // parallelism)
    assert max(got.values()) - min(got.values()) <= biggest * len(sizes)
    if set(sizes) == {parallelism}:
        assert len(set(got.values())) == 1


def test_single_rows_go_round() -> None:
    split = make_router(REBALANCE, 1, 3)

    assert [target for _ in range(6) for target, _ in split(batch_of(["x"]))] == [1, 2, 0, 1, 2, 0]


def test_broadcast_copies_are_told_apart() -> None:
    batch = extend_branches(batch_of(["a", "b", "c"], rows=[0, 0, 1]), 4, always=True)

    parts = list(make_router(BROADCAST, 0, 3)(batch))

    assert [(target, part.values) for target, part in parts] == [(n, ["a", "b", "c"]) for n in range(3)]
    assert [part.branch for _, part in parts] == [[f"4-0-{n}-", f"4-1-{n}-", f"4-0-{n}-"] for n in range(3)]


# ---------------------------------------------------------------- splits


@given(st.integers(1, 20), st.integers(1, 128))
def test_equal_partitions_of_several_topics_meet(partitions: int, parallelism: int) -> None:
    positions: Any = {s: {f"{s}/{n}": {"offset": n} for n in range(partitions)} for s in ("shop", "web")}

    shares = [select_positions(positions, subtask, parallelism) for subtask in range(parallelism)]

    for source, splits in positions.items():
        assert {split: at for mine in shares for split, at in mine[source].items()} == splits
        assert sum(len(mine[source]) for mine in shares) == partitions, "a split has two readers"
    for mine in shares:
        numbers = [{split.rpartition("/")[2] for split in mine[source]} for source in positions]
        assert numbers[0] == numbers[1]


@pytest.mark.parametrize("split", ["events.log", "", "ü/x", "part-٣"])
def test_other_splits_have_one_subtask_in_every_process(split: Any) -> None:
    assert [subtask_of_split(split, 1), *{subtask_of_split(split, 5) for _ in range(3)}][0] == 0
    assert 0 <= subtask_of_split(split, 5) < 5


@pytest.mark.parametrize(("split", "numbered"), [("orders/3", True), ("3", True), ("orders", False), ("3/a", False)])
def test_a_split_is_numbered_if_its_name_ends_in_a_number(split: str, numbered: bool) -> None:
    assert is_numbered(SplitId(split)) is numbered
