"""Which subtask a remote worker gets: its own, or the one whose state its machine has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.embedded.subtask_assignment import keep_subtasks, match_local_state


@pytest.mark.parametrize(
    ("connected", "count", "kept"),
    [
        ([0, 1, 2], 3, {0: 0, 1: 1, 2: 2}),
        ([0, 2], 4, {0: 0, 2: 1, 1: 2, 3: 3}),
        ([3], 4, {3: 0, 0: 1, 1: 2, 2: 3}),
        ([1, 2], 3, {1: 1, 2: 0, 0: 2}),
        ([], 2, {0: 0, 1: 1}),
    ],
)
def test_connected_workers_get_the_first_subtasks_and_keep_theirs_if_they_can(
    connected: list[int], count: int, kept: dict[int, int]
) -> None:
    assert keep_subtasks(connected, count) == kept


@pytest.mark.parametrize(
    ("local", "opened", "matched"),
    [
        ({0: [7, 8], 1: [5, 6]}, {0: [5, 6], 1: [7, 8]}, {0: 1, 1: 0}),
        # Both machines have some of subtask 0: the one that has more gets it.
        ({0: [5], 1: [5, 9]}, {0: [5, 9], 1: [1]}, {1: 0, 0: 1}),
        # Bytes count, not files.
        ({0: [1, 2, 3], 1: [100]}, {0: [1, 2, 3, 100], 1: []}, {1: 0, 0: 1}),
        # Two files of one size are two files to fetch.
        ({0: [5], 1: [9]}, {0: [5, 5], 1: [9]}, {0: 0, 1: 1}),
        ({0: [], 1: [], 2: []}, {0: [4], 1: [5], 2: [6]}, {0: 0, 1: 1, 2: 2}),
        ({2: [4], 0: []}, {0: [4], 2: [5]}, {2: 0, 0: 2}),
        ({}, {}, {}),
    ],
)
def test_a_worker_gets_the_subtask_whose_state_its_machine_has(
    local: dict[int, list[int]], opened: dict[int, list[int]], matched: dict[int, int]
) -> None:
    assert match_local_state(local, opened) == matched


@given(st.data())
def test_each_worker_gets_one_of_the_subtasks(data: st.DataObject) -> None:
    subtasks = data.draw(st.lists(st.integers(0, 9), unique=True))
    sizes = st.lists(st.integers(1, 4))
    local, opened = ({subtask: data.draw(sizes) for subtask in subtasks} for _ in range(2))

    matched = match_local_state(local, opened)

    assert sorted(matched) == sorted(matched.values()) == sorted(subtasks)
