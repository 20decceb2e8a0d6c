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

from kafka_eos.errors import ConfigError
from kafka_eos.schemas import KeyCodec
from kafka_eos.state.keygroups import GROUPING, OLDEST, PRESENT, Grouping, key_group_range, subtask_of


@pytest.mark.parametrize(("key_hash", "groups"), [(OLDEST, [0, 67, 20, 62]), (PRESENT, [0, 78, 96, 106])])
def test_the_group_of_a_key_is_pinned(key_hash: str, groups: list[int]) -> None:
    """Changing any of these numbers makes every stored state unreadable."""
    grouping = Grouping(key_hash)

    assert [grouping.group(key) for key in (b"", b"a", b"user-1", "é".encode())] == groups


def test_a_grouping_is_known_by_its_hash_and_its_number_of_groups() -> None:
    assert repr(GROUPING) == "Grouping(key_hash='crc32-16381', groups=128)"
    assert len({GROUPING, Grouping(PRESENT, 128), Grouping(PRESENT, 64), Grouping(OLDEST, 128)}) == 3


def test_a_hash_of_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="'xxh3', which is not known here. Upgrade"):
        Grouping("xxh3")


@given(groups=st.integers(1, 500), data=st.data())
def test_each_group_belongs_to_one_subtask_and_shares_are_even(groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, groups))
    ranges = [key_group_range(subtask, parallelism, groups) for subtask in range(parallelism)]

    assert [g for r in ranges for g in r] == list(range(groups))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    assert all(subtask_of(g, parallelism, groups) == subtask for subtask, r in enumerate(ranges) for g in r)


@pytest.mark.parametrize("key_hash", [OLDEST, PRESENT])
@given(keys=st.lists(st.binary(max_size=20)), groups=st.sampled_from([1, 7, 128]))
def test_a_row_key_begins_with_its_group(key_hash: str, keys: list[bytes], groups: int) -> None:
    grouping = Grouping(key_hash, groups)

    assert grouping.row_keys(keys) == [grouping.group(key).to_bytes(2, "big") + key for key in keys]
    assert all(0 <= grouping.group(key) < groups for key in keys)


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


def shares(keys: list[Any], workers: int, grouping: Grouping) -> list[int]:
    """Keys of each worker."""
    encode = KeyCodec().encode
    owners = Counter(subtask_of(grouping.group(encode(key)), workers) for key in keys)
    return [owners[worker] for worker in range(workers)]


def unevenness(found: list[int]) -> float:
    """Chi square for each degree of freedom: 1 is what chance does, 0 is even."""
    even = sum(found) / len(found)
    return sum((share - even) ** 2 / even for share in found) / (len(found) - 1)


def test_twenty_short_keys_are_on_two_workers() -> None:
    keys = [f"a{n}" for n in range(20)]

    assert shares(keys, 2, Grouping(OLDEST)) == [0, 20]
    assert shares(keys, 2, GROUPING) == [11, 9]


def test_usual_keys_are_spread_as_evenly_as_by_chance() -> None:
    """And never all of twenty keys or more on one of two workers, which chance does once in half a million times."""
    by_set = {(name, w): shares(keys, w, GROUPING) for name, keys in usual_keys() for w in WORKERS}
    found = sorted(map(unevenness, by_set.values()))

    assert mean(found) < 1.1
    assert found[int(len(found) * 0.99)] < 5
    assert all(all(share) for (_, w), share in by_set.items() if sum(share) >= 20 and w == 2)


def test_a_thousand_keys_fill_every_worker_of_sixteen() -> None:
    for name, keys in usual_keys():
        if len(keys) == 1000:
            assert min(shares(keys, 16, GROUPING)) > 25, name
