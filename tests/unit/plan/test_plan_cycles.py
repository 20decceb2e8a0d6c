"""Back-edges: enough to break every cycle, none more than a depth-first search needs, the same every time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.errors import Bug
from kafka_eos.plan.feedback_edges import back_edges

EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=24)
NODES = range(8)


def has_cycle(edges: set[tuple[int, int]]) -> bool:
    """Kahn's algorithm: what cannot be sorted lies on, or behind, a cycle."""
    left = set(NODES)
    while free := {n for n in left if not any(end == n and start in left for start, end in edges)}:
        left -= free
    return bool(left)


def test_a_plan_without_cycles_has_no_back_edges() -> None:
    assert back_edges("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]) == frozenset()


def test_the_back_edge_leads_to_where_the_loop_is_entered() -> None:
    edges = [("source", "head"), ("head", "body"), ("body", "tail"), ("tail", "head"), ("tail", "sink")]

    assert back_edges(["source", "head", "body", "tail", "sink"], edges) == {("tail", "head")}


def test_each_of_two_nested_loops_has_its_own() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "a")]

    assert back_edges("abcd", edges) == {("c", "b"), ("d", "a")}


def test_a_node_may_feed_itself() -> None:
    assert back_edges("ab", [("a", "b"), ("b", "b")]) == {("b", "b")}


def test_a_loop_that_no_source_reaches_is_found_too() -> None:
    assert back_edges("abc", [("b", "c"), ("c", "b")]) == {("c", "b")}


def test_a_plan_longer_than_the_stack_is_deep() -> None:
    length = 100_000

    assert back_edges(range(length), [(n, (n + 1) % length) for n in range(length)]) == {(length - 1, 0)}


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(Bug, match="'b'"):
        back_edges("a", [("a", "b")])


@given(EDGES)
def test_nothing_is_left_that_could_go_round(edges: list[tuple[int, int]]) -> None:
    assert not has_cycle(set(edges) - back_edges(NODES, edges))


@given(EDGES)
def test_every_back_edge_closes_a_cycle(edges: list[tuple[int, int]]) -> None:
    found = back_edges(NODES, edges)

    assert all(has_cycle((set(edges) - found) | {edge}) for edge in found)


@given(EDGES)
def test_the_answer_is_always_the_same(edges: list[tuple[int, int]]) -> None:
    assert back_edges(NODES, edges) == back_edges(list(NODES), iter(edges + edges))
