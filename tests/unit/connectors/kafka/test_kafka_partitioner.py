"""Where records go that the writer sends to a partition itself."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.connectors.kafka.sink.partitioner_hashes import fnv1a, murmur2
from kafka_eos.connectors.kafka.sink.sticky_partitioner import StickyPartitioner
from kafka_eos.core.errors import ConfigError

KEYED = ("consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random")
MURMUR2 = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}  # fmt: skip
"""The test of Kafka's own client."""


def test_murmur2_is_that_of_the_java_client() -> None:
    assert list(murmur2([*MURMUR2])) == [hashed & 0x7FFFFFFF for hashed in MURMUR2.values()]


def test_fnv1a_is_that_of_librdkafka() -> None:
    """The values of its own test."""
    assert list(fnv1a([b"kafka", b"giberish123456789", b"1234"])) == [0xD33C4E1, 0x77A58295, 0x23BDD03]


@given(st.lists(st.binary(max_size=20), max_size=40))
def test_many_keys_at_once_have_the_numbers_that_each_has_alone(keys: list[bytes]) -> None:
    """Whatever lies beside it: no bit of one number gets into another."""
    for hashed in (murmur2, fnv1a):
        assert list(hashed(keys)) == [number for key in keys for number in hashed([key])]


@pytest.mark.parametrize("partitioner", KEYED)
def test_a_key_has_one_place_as_text_and_as_bytes_whatever_comes_before_it(partitioner: str) -> None:
    places = StickyPartitioner(partitioner, 0)

    first = places.of(["a", b"b", "ü"], 3, 5)
    places.of([None, "c"], 2, 5)

    assert places.of([b"a", "b", "ü".encode()], 3, 5) == first


@pytest.mark.parametrize("partitioner", ["consistent_random", "murmur2_random", "fnv1a_random", "random"])
def test_records_without_a_key_stay_together_for_a_while_and_then_go_elsewhere(partitioner: str) -> None:
    times = iter([0.0, 0.001, 0.009, 0.010, 0.021, 0.022, 0.050])
    places = StickyPartitioner(partitioner, 1, times.__next__)

    found = [places.of(repeat(None), 2, 3) for _ in range(3)] + [places.of([None, None], 2, 3) for _ in range(3)]

    assert found == [[1, 1], [1, 1], [2, 2], [0, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize("partitioner", ["consistent", "murmur2", "fnv1a"])
def test_without_chance_no_key_is_a_key_too(partitioner: str) -> None:
    places = StickyPartitioner(partitioner, 0)

    assert len({place for _ in range(4) for place in places.of([None, b""], 2, 3)}) == 1


def test_an_empty_key_is_one_but_to_consistent_random() -> None:
    spread = {name: {StickyPartitioner(name, first).of([""], 1, 7)[0] for first in range(7)} for name in KEYED}

    assert {name for name, found in spread.items() if len(found) > 1} == {"consistent_random"}


def test_random_looks_at_no_key() -> None:
    assert StickyPartitioner("random", 1).of(["a", "b", "c"], 3, 4) == [1, 1, 1]


def test_a_topic_that_grows_moves_its_keys() -> None:
    keys = [f"key {n}" for n in range(100)]
    places = StickyPartitioner("murmur2_random", 0)
    before = places.of(keys, 100, 2)

    assert set(before) == {0, 1}
    assert places.of(keys, 100, 8) == [number % 8 for number in murmur2([key.encode() for key in keys])]


def test_a_key_of_a_wrong_type_is_left_to_the_client_to_refuse() -> None:
    keys = ["a", bytearray(b"b"), 7, b"c"]

    found = StickyPartitioner("murmur2_random", 0).of(keys, 4, 8)  # type: ignore[arg-type]

    assert (found[0], found[3]) == tuple(number % 8 for number in murmur2([b"a", b"c"]))


@pytest.mark.parametrize("partitioner", ["something_else", None])
def test_a_partitioner_that_only_the_client_knows_is_refused(partitioner: str | None) -> None:
    with pytest.raises(ConfigError, match=r'or use provenance="header"'):
        StickyPartitioner(partitioner, 0)
