"""Key groups are the same everywhere and for ever, and each belongs to exactly one subtask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.state.keygroups import key_group, key_group_range, row_keys, subtask_of


def test_the_group_of_a_key_is_pinned() -> None:
    """Changing any of these numbers makes every stored state unreadable."""
    assert [key_group(key) for key in (b"", b"a", b"user-1", "é".encode())] == [0, 67, 20, 62]
    assert key_group(b"user-1", 32_768) % 128 == 20


@given(groups=st.integers(1, 500), data=st.data())
def test_each_group_belongs_to_one_subtask_and_shares_are_even(groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, groups))
    ranges = [key_group_range(subtask, parallelism, groups) for subtask in range(parallelism)]

    assert [g for r in ranges for g in r] == list(range(groups))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert all(subtask_of(g, parallelism, groups) == subtask for subtask, r in enumerate(ranges) for g in r)


@given(keys=st.lists(st.binary(max_size=20)))
def test_a_row_key_begins_with_its_group(keys: list[bytes]) -> None:
    assert row_keys(keys) == [key_group(key).to_bytes(2, "big") + key for key in keys]
