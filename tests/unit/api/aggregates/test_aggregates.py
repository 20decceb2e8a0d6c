"""Each aggregate gives the same, in whatever order and parts its values come, also if parts are stored in between."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kafka_eos import PlanError, agg
from kafka_eos.api.aggregates.aggregate import PLAIN
from kafka_eos.api.aggregates.row_aggregation import CompositeAggregate
from kafka_eos.codecs import exchange_codec, state_codec


class Sale(BaseModel):
    amount: int
    price: float
    note: str


Placed = tuple[Sale, tuple[int, int, int]]

SALES = st.builds(
    Sale,
    amount=st.integers(-3, 3) | st.integers(-(2**40), 2**40),
    price=st.floats(-1e300, 1e300) | st.floats(-1, 1),
    note=st.sampled_from("abc"),
)
PLACES = st.tuples(st.integers(-2, 2), st.integers(0, 1), st.integers(0, 2**40))
PLACED = st.lists(st.tuples(SALES, PLACES), max_size=12, unique_by=lambda each: each[1])

by_amount = lambda sale: sale.amount  # noqa: E731
PARTS: dict[str, agg.Aggregate[Sale, Any, Any]] = {
    "count": agg.count(),
    "many": agg.count(lambda sale: sale.amount > 0),
    "total": agg.sum(by_amount),
    "price": agg.sum(lambda sale: sale.price),
    "exact": agg.sum(lambda sale: Decimal(sale.amount) / 4),
    "mean": agg.mean(lambda sale: sale.price),
    "least": agg.min(by_amount),
    "dearest": agg.max(lambda sale: sale.price),
    "low": agg.min_by(by_amount),
    "high": agg.max_by(lambda sale: (sale.note, sale.amount), lambda sale: sale.note),
    "first": agg.first(),
    "last": agg.last(by_amount),
    "top": agg.top(3, by_amount),
    "all": agg.collect(lambda sale: sale.note),
}


def expected(values: list[Placed]) -> dict[str, Any]:
    """By the definition of each, of all values at once."""
    sales = [sale for sale, _ in values]
    amounts, prices = [sale.amount for sale in sales], [sale.price for sale in sales]
    in_time = [sale for sale, _ in sorted(values, key=lambda each: each[1])]
    stored = state_codec(dict).encode
    ranked = sorted(sales, key=lambda sale: (sale.amount, stored(sale.model_dump())))
    return {
        "count": len(sales),
        "many": sum(amount > 0 for amount in amounts),
        "total": sum(amounts),
        "price": math.fsum(prices) if prices else 0,
        "exact": sum(map(Decimal, amounts)) / 4,
        "mean": math.fsum(prices) / len(prices) if prices else None,
        "least": min(amounts, default=None),
        "dearest": max(prices, default=None),
        "low": ranked[0] if ranked else None,
        "high": max((sale.note, sale.amount) for sale in sales)[0] if sales else None,
        "first": in_time[0] if in_time else None,
        "last": in_time[-1].amount if in_time else None,
        "top": ranked[-3:][::-1],
        "all": [sale.note for sale in in_time],
    }


@given(PLACED, st.randoms(use_true_random=False))
def test_order_and_parts_make_no_difference(values: list[Placed], random: Any) -> None:
    all_of_them = CompositeAggregate.of_all([], PARTS, Sale)
    stored, sent = state_codec(all_of_them.accumulator), exchange_codec(all_of_them.accumulator)
    made = expected(values)
    random.shuffle(values)
    parts = [all_of_them.create() for _ in range(3)]
    for value in values:
        index = random.randrange(3)
        parts[index] = stored.decode(stored.encode(all_of_them.add(parts[index], value)))
    parts = sent.decode(sent.encode(parts))
    while len(parts) > 1:
        random.shuffle(parts)
        parts.append(all_of_them.merge(parts.pop(), parts.pop()))

    assert all_of_them.result(parts[0]) == made


@given(st.lists(st.floats(-1e300, 1e300) | st.integers(-(2**62) // 20, 2**62 // 20), max_size=20))
def test_a_sum_of_floats_is_rounded_once(numbers: list[float]) -> None:
    exact = sum(map(Fraction, numbers), Fraction())

    assert summed(agg.sum(), numbers) == (float(exact) if any(isinstance(n, float) for n in numbers) else exact)


@pytest.mark.parametrize("numbers", [[1.5, math.inf], [math.inf, 1], [math.inf, math.inf]])
def test_infinity_is_a_sum(numbers: list[float]) -> None:
    assert summed(agg.sum(), numbers) == math.inf


@pytest.mark.parametrize("numbers", [[math.inf, -math.inf], [1.0, math.nan, math.inf]])
def test_what_has_no_sum_is_nan(numbers: list[float]) -> None:
    assert math.isnan(summed(agg.sum(), numbers))


@pytest.mark.parametrize(
    ("numbers", "error", "says"),
    [
        ([2**62, 2**62], OverflowError, "64 bits"),
        ([-(2**63), -1], OverflowError, "64 bits"),
        ([1e308, 1e308], OverflowError, "exceeds the range of a float"),
        ([Decimal(1), 1.0], TypeError, "convert them to one type"),
        (["1"], TypeError, "not '1' of type str"),
        ([True], TypeError, "not True"),
        ([Decimal("1e600"), Decimal("1e-600")], ArithmeticError, "Inexact"),
    ],
)
def test_a_number_that_cannot_be_added_exactly_is_refused(
    numbers: list[Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        summed(agg.sum(), numbers)


def test_none_counts_nothing() -> None:
    parts = {
        "sum": agg.sum(), "mean": agg.mean(), "min": agg.min(), "max": agg.max(), "by": agg.max_by(lambda value: value),
        "first": agg.first(by=lambda value: 0), "all": agg.collect(by=lambda value: 0), "count": agg.count(),
    }  # fmt: skip
    nothing: dict[str, Any] = {"sum": 0, "mean": None, "min": None, "max": None, "by": None, "first": None, "all": []}

    assert summed(CompositeAggregate.of_all([], parts, int), [None, None]) == {**nothing, "count": 2}
    assert summed(agg.min(lambda value: None), [1]) is None


def test_a_mean_of_decimals_is_one() -> None:
    assert summed(agg.mean(), [Decimal("0.1"), Decimal("0.2")]) == Decimal("0.15")


def test_a_mean_of_whole_numbers_is_their_mean() -> None:
    assert summed(agg.mean(), [1, 2, 4]) == statistics.fmean([1, 2, 4])


@pytest.mark.parametrize("aggregate", [agg.min(), agg.max_by(lambda value: value), agg.top(2, lambda value: value)])
def test_nan_has_no_place_in_an_order(aggregate: agg.Aggregate[Any, Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"agg\.\w+ cannot order NaN"):
        summed(aggregate, [math.nan])


@pytest.mark.parametrize(
    "aggregate",
    [agg.min(), agg.first(by=lambda value: 0), agg.collect(by=lambda value: 0), agg.top(2, lambda value: 0)],
)
def test_what_would_come_back_as_something_else_needs_its_type(aggregate: agg.Aggregate[Any, Any, Any]) -> None:
    with pytest.raises(ValueError, match="of type tuple, but this type is not declared.*state=tuple"):
        summed(aggregate, [(1, 2)])


@pytest.mark.parametrize(
    "make",
    [
        lambda state: agg.min(state=state),
        lambda state: agg.first(by=lambda value: value[0], state=state),
        lambda state: agg.top(1, lambda value: value[0], state=state),
    ],
)
def test_a_declared_type_comes_back(make: Callable[[Any], agg.Aggregate[Any, Any, Any]]) -> None:
    kept = make(tuple[int, int])
    codec = state_codec(kept.accumulator)

    assert kept.result(codec.decode(codec.encode(kept.add(kept.create(), (1, 2))))) in [(1, 2), [(1, 2)]]


def priced(value: Any) -> Decimal:
    return Decimal(value)


BY = {"by": lambda value: value}


@pytest.mark.parametrize(
    ("aggregate", "returns"),
    [
        (agg.min(), int | None),
        (agg.min(state=float), float | None),
        (agg.min(lambda value: value), PLAIN),
        (agg.min(priced), Decimal | None),
        (agg.max(priced), Decimal | None),
        (agg.max(priced, state=float), float | None),
        (agg.first(**BY), int | None),
        (agg.first(**BY, state=float), float | None),
        (agg.last(lambda value: value, **BY), PLAIN),
        (agg.last(priced, **BY), Decimal | None),
        (agg.last(priced, **BY, state=float), float | None),
        (agg.top(2, lambda value: value), list[int]),
        (agg.collect(priced), list[Decimal]),
    ],
)
def test_what_is_kept_has_the_type_that_was_given_or_else_that_of_the_function_or_the_stream(
    aggregate: agg.Aggregate[Any, Any, Any], returns: Any
) -> None:
    assert aggregate.for_type(int).returns == returns


def same(value: Any) -> int:
    return 0


@pytest.mark.parametrize(
    ("aggregate", "kept"),
    [
        (agg.min_by(same), "a"),
        (agg.max_by(same), "c"),
        (agg.first(by=same), "a"),
        (agg.last(by=same), "c"),
        (agg.top(2, same), ["c", "b"]),
        (agg.collect(by=same), ["a", "b", "c"]),
    ],
)
def test_values_at_one_place_stand_in_the_order_of_their_stored_form(
    aggregate: agg.Aggregate[Any, Any, Any], kept: Any
) -> None:
    assert all(summed(aggregate, list(values)) == kept for values in permutations("abc"))


@pytest.mark.parametrize("aggregate", [agg.min(), agg.max()])
def test_of_equal_numbers_one_is_kept_whichever_comes_first(aggregate: agg.Aggregate[Any, Any, Any]) -> None:
    assert {repr(summed(aggregate, list(values))) for values in permutations([1, 1.0])} == {"1"}


def test_of_all_values_the_last_one_alone_is_kept() -> None:
    latest: Any = agg.last(**BY)

    assert latest.add(latest.add(latest.create(), 1), 2) == ((2, 2),)


def test_a_sum_is_stored_as_an_array() -> None:
    """A durable format."""
    total = agg.mean().add(agg.mean().create(), 1.5)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(total)) == [1, [[1.5], 0.0]]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda half: half.create(), "create()"),
        (lambda half: half.add(0, 1), "add(accumulator, value)"),
        (lambda half: half.merge(0, 1), "merge(one, other)"),
        (lambda half: half.result(0), "result(accumulator)"),
    ],
)
def test_an_aggregate_of_yours_says_what_it_lacks(call: Callable[[Any], Any], what: str) -> None:
    class Half(agg.Aggregate[int, int, int]):
        pass

    with pytest.raises(NotImplementedError, match=rf"Half does not define {re.escape(what)}"):
        call(Half())


def test_an_order_that_could_not_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="agg.max_by orders by numbers, str, or tuples of these, not by b'x'"):
        summed(agg.max_by(lambda value: value), [b"x"])


def test_top_has_one_value_at_least() -> None:
    with pytest.raises(PlanError, match="got 0"):
        agg.top(0, by_amount)


def test_a_new_aggregate_begins_with_nothing_and_one_that_is_gone_is_forgotten() -> None:
    before = CompositeAggregate.of_all([agg.count()], {"total": agg.sum()}, int)
    today = CompositeAggregate.of_all([agg.count()], {"most": agg.max()}, int)
    acc = before.add(before.create(), 5)

    acc = state_codec(today.accumulator).decode(state_codec(before.accumulator).encode(acc))

    assert today.result(today.add(acc, 3)) == {"count": 2, "most": 3}


def summed(aggregate: agg.Aggregate[Any, Any, Any], values: list[Any]) -> Any:
    acc = aggregate.create()
    for value in values:
        acc = aggregate.add(acc, value)
    return aggregate.result(acc)
