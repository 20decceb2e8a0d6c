"""Key groups are the same everywhere and for ever, each belongs to one subtask, and usual keys are spread over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.state import StateHandle
from kafka_eos.codecs import KeyCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import KeyGroup
from kafka_eos.runtime.state.handle_merging import merge_watermarks
from kafka_eos.runtime.state.key_groups import (
    MAX_KEY_GROUPS,
    check_key_groups,
    group_of,
    groups_of,
    key_group_range,
    prefix_of,
    row_keys,
    subtask_of,
)


def test_the_group_of_a_key_is_pinned() -> None:
    """Changing any of these numbers makes every stored state unreadable."""
    assert [group_of(key) for key in (b"", b"a", b"user-1", "é".encode())] == [0, 78, 96, 106]


def test_another_number_of_key_groups_is_refused() -> None:
    check_key_groups("savepoint s", MAX_KEY_GROUPS)
    with pytest.raises(ConfigError, match="savepoint s has 64 key groups and this kafka-eos 128: keys would be"):
        check_key_groups("savepoint s", 64)


@given(parallelism=st.integers(1, MAX_KEY_GROUPS))
def test_each_group_belongs_to_one_subtask_and_shares_are_even(parallelism: int) -> None:
    ranges = [key_group_range(subtask, parallelism) for subtask in range(parallelism)]

    assert [g for r in ranges for g in r] == list(range(MAX_KEY_GROUPS))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert all(subtask_of(KeyGroup(g), parallelism) == subtask for subtask, r in enumerate(ranges) for g in r)


@given(keys=st.lists(st.binary(max_size=20)), time=st.sampled_from([b"", bytes(8)]))
def test_a_row_key_begins_with_its_group(keys: list[bytes], time: bytes) -> None:
    assert row_keys(keys, time) == [prefix_of(key) + time + key for key in keys]
    assert groups_of(keys) == [int.from_bytes(prefix_of(key), "big") for key in keys] == list(map(group_of, keys))
    assert all(0 <= group < MAX_KEY_GROUPS for group in groups_of(keys))


def test_a_subtask_restores_the_event_times_of_its_own_groups_only() -> None:
    def handle(*watermarks: list[int]) -> StateHandle:
        states = ({"name": "total", "watermarks": list(watermarks)}, {"name": "unrelated"})
        return StateHandle("total", "rocksdb", (watermarks[0][0], watermarks[-1][1]), (), states)

    handles = [handle([0, 9, 50], [10, 42, 60]), handle([43, 60, 40], [61, 84, 70]), handle([85, 127, 80])]

    def merged(first: int, last: int, local: bool = False) -> object:
        return merge_watermarks(handles, range(first, last + 1), local=local)

    assert merged(0, 127) == {"total": [(0, 9, 50), (10, 42, 60), (43, 60, 40), (61, 84, 70), (85, 127, 80)]}
    assert merged(9, 43) == {"total": [(9, 9, 50), (10, 42, 60), (43, 43, 40)]}
    assert merged(10, 42) == {"total": [(10, 42, 60)]}
    assert merged(61, 85) == {"total": [(61, 84, 70), (85, 85, 80)]}
    assert merged(10, 42, local=True) == {"total": [(10, 42, 40)]}, "a key may have been in any group"


# ---------------------------------------------------------------- how keys are spread

WORKERS = (2, 3, 4, 8)


def usual_keys() -> Iterator[tuple[str, list[Any]]]:
    """Short keys that differ in a digit or two, which is what tests and small tables have; and long ones."""
    for n in (10, 20, 50, 100, 1000):
        for prefix in ("", "a", "k", "user-", "customer_", "device"):
            yield f"{prefix}0 to {n}", [f"{prefix}{i}" for i in range(n)]
        yield f"int {n}", list(range(n))
        yield f"int, tens {n}", [i * 10 for i in range(n)]
        yield f"bytes, 4 {n}", [i.to_bytes(4, "big") for i in range(n)]
        yield f"bytes, 8 {n}", [i.to_bytes(8, "little") for i in range(n)]
        yield f"tuple {n}", [("eu", i) for i in range(n)]
        yield f"uuid {n}", [str(UUID(int=i * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128)) for i in range(n)]


def shares(keys: list[Any], workers: int) -> list[int]:
    """Keys of each worker."""
    encode = KeyCodec().encode
    owners = Counter(subtask_of(group_of(encode(key)), workers) for key in keys)
    return [owners[worker] for worker in range(workers)]


def unevenness(found: list[int]) -> float:
    """Chi square for each degree of freedom: 1 is what chance does, 0 is even."""
    even = sum(found) / len(found)
    return sum((share - even) ** 2 / even for share in found) / (len(found) - 1)


def test_twenty_short_keys_are_on_two_workers() -> None:
    keys = [f"a{n}" for n in range(20)]

    assert shares(keys, 2) == [11, 9]


def test_usual_keys_are_spread_as_evenly_as_by_chance() -> None:
    """And never all of twenty keys or more on one of two workers, which chance does once in half a million times."""
    by_set = {(name, w): shares(keys, w) for name, keys in usual_keys() for w in WORKERS}
    found = sorted(map(unevenness, by_set.values()))

    assert mean(found) < 1.1
    assert found[int(len(found) * 0.99)] < 5
    assert all(all(share) for (_, w), share in by_set.items() if sum(share) >= 20 and w == 2)


def test_a_thousand_keys_fill_every_worker_of_sixteen() -> None:
    for name, keys in usual_keys():
        if len(keys) == 1000:
            assert min(shares(keys, 16)) > 25, name
