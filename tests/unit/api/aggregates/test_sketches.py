"""Sketches: near the truth, and the same in whatever order and parts values come."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from kafka_eos import PlanError, agg
from kafka_eos.codecs import state_codec

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


def accumulated(aggregate: agg.Aggregate[Any, Any, Any], values: list[Any]) -> Any:
    acc = aggregate.create()
    for value in values:
        acc = aggregate.add(acc, value)
    return acc


@pytest.mark.parametrize(
    ("count", "error"), [(0, 0), (1, 0), (2, 0), (100, 0.03), (500, 0.05), (520, 0.05), (3000, 0.05), (50_000, 0.05)]
)
def test_the_number_of_different_values_is_near_the_truth(count: int, error: float) -> None:
    """The values are the same in every run, so the estimate is."""
    distinct = agg.approx_distinct()
    acc = accumulated(distinct, [f"user-{n}" for n in range(count)] * (2 if count < 1000 else 1))

    assert abs(distinct.result(acc) - count) <= error * count


def test_the_sketch_is_four_kilobytes_at_most() -> None:
    distinct = agg.approx_distinct()
    codec = state_codec(distinct.accumulator)
    sizes = [len(codec.encode(accumulated(distinct, list(range(count))))) for count in (10, 512, 20_000)]

    assert sizes[0] < 60 and sizes[1] < 2600 and sizes[2] < 4200


def test_sketches_are_stored_as_they_always_were() -> None:
    """A durable format: registers, and the buckets of values."""
    seen: Any = accumulated(agg.approx_distinct(), ["ann", "bob", 7, ("a", 1), b"x"])
    spread: Any = accumulated(agg.approx_quantiles(lambda value: value, 0.5), [1, 1.01, 2.5, -3, 0, 1e300, 1.02, -3, 0])

    assert seen == (15297, 43457, 47361, 62401, 190786)
    assert state_codec(agg.approx_distinct().accumulator).encode(seen) == msgpack.encode(seen)
    assert msgpack.decode(msgpack.encode(spread)) == [[[0, 1], [1, 2], [47, 1], [34884, 1]], [[56, 2]], 2]


@given(st.lists(st.integers(0, 3000), max_size=40), st.integers(0, 4), st.randoms(use_true_random=False))
def test_order_and_parts_make_no_difference_to_the_different(values: list[int], spread: int, random: Any) -> None:
    """``spread``: each value stands for many, so that parts are lists of registers and arrays of them."""
    distinct = agg.approx_distinct()
    many = [n for value in values for n in range(value, value + spread * 40)]
    whole = accumulated(distinct, many)
    random.shuffle(many)
    codec = state_codec(distinct.accumulator)
    parts = [codec.decode(codec.encode(accumulated(distinct, many[i::3]))) for i in range(3)]
    random.shuffle(parts)

    assert distinct.merge(distinct.merge(*parts[:2]), parts[2]) == whole


@pytest.mark.parametrize("others", [range(5), range(1000, 4000)])
def test_a_list_of_registers_and_an_array_are_put_together_in_either_order(others: range) -> None:
    distinct = agg.approx_distinct()
    one, other = accumulated(distinct, list(range(2000))), accumulated(distinct, list(others))

    assert distinct.merge(one, other) == distinct.merge(other, one) == accumulated(distinct, [*range(2000), *others])


def test_what_the_function_says_is_counted_and_none_is_not() -> None:
    lengths = agg.approx_distinct(lambda text: len(text) or None)

    assert lengths.result(accumulated(lengths, ["a", "b", "cc", ""])) == 2
    assert accumulated(agg.approx_quantiles(len, 0.5), ["a", "b"]) == accumulated(
        agg.approx_quantiles(float, 0.5), [1, 1]
    )


@pytest.mark.parametrize("value", [1.5, True, [1], ("a", 1.0)])
def test_what_could_be_equal_and_stored_in_two_ways_is_not_counted(value: Any) -> None:
    with pytest.raises(ValueError, match="must be str, int, bytes or a tuple"):
        accumulated(agg.approx_distinct(), [value])


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_each_quantile_is_within_one_percent_of_a_value_at_its_place(values: list[float], shares: list[float]) -> None:
    quantiles = agg.approx_quantiles(lambda value: value, *shares)
    found = quantiles.result(accumulated(quantiles, values))
    ranked = sorted(values)

    for share, value in zip(shares, found, strict=True):
        place = share * (len(values) - 1)
        near = (ranked[math.floor(place)], ranked[math.ceil(place)])
        assert any(math.isclose(value, each, rel_tol=0.0101) for each in near)


def test_the_first_and_the_last_share_are_the_least_and_the_greatest_value() -> None:
    quantiles = agg.approx_quantiles(lambda value: value, 0, 0.5, 1)

    found = quantiles.result(accumulated(quantiles, [-100, 1, 1, 1, 10_000]))

    assert found == pytest.approx([-100, 1, 10_000], rel=0.0101)


@given(st.lists(NUMBERS, max_size=40), st.randoms(use_true_random=False))
def test_order_and_parts_make_no_difference_to_quantiles(values: list[float], random: Any) -> None:
    quantiles = agg.approx_quantiles(lambda value: value, 0.5)
    whole = accumulated(quantiles, values)
    random.shuffle(values)
    codec = state_codec(quantiles.accumulator)
    parts = [codec.decode(codec.encode(accumulated(quantiles, values[i::3]))) for i in range(3)]
    random.shuffle(parts)

    assert quantiles.merge(quantiles.merge(*parts[:2]), parts[2]) == whole


@pytest.mark.parametrize("shares", [(), ((0.5,),), ([0.5, 0.9],), (1.5,), ("0.5",), (None,)])
def test_shares_are_numbers_from_0_to_1_one_by_one(shares: Any) -> None:
    with pytest.raises(PlanError, match=r"as in approx_quantiles\(f, 0.5, 0.99\) \(got"):
        agg.approx_quantiles(float, *shares)


def test_of_nothing_there_are_no_quantiles() -> None:
    quantiles = agg.approx_quantiles(lambda value: value, 0.5)

    assert quantiles.result(accumulated(quantiles, [None])) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_no_place(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        accumulated(agg.approx_quantiles(lambda value: value, 0.5), [value])


@pytest.mark.parametrize("shares", [(), (1.5,), (50, 99)])
def test_shares_are_from_0_to_1(shares: tuple[float, ...]) -> None:
    with pytest.raises(PlanError, match="shares between 0 and 1"):
        agg.approx_quantiles(lambda value: value, *shares)
