"""What a type checker must infer of ``async_map``. Checked with ``mypy --strict``; never run."""

from typing import assert_type

import msgspec

from kafka_eos import OutputTag, Pipeline, Stream, Ttl, breaker, retries
from kafka_eos.connectors.kafka import KafkaSource


class Order(msgspec.Struct):
    id: int
    user: str


async def price(order: Order) -> float:
    return order.id * 1.5


def country(order: Order) -> str:
    return order.user


failed = OutputTag("failed", Order)
orders = Pipeline("typed").source(KafkaSource("orders", value=Order), name="orders")
prices = orders.async_map(price, name="price", capacity=10, timeout=1, failed=failed)
assert_type(prices, Stream[float])
assert_type(prices.side_output(failed), Stream[Order])
assert_type(orders.async_map(country, name="country", ordered=False), Stream[str])
assert_type(orders.async_map(lambda order: price(order), name="again", retries=retries(3)), Stream[float])
orders.async_map(price, name="paused", breaker=breaker(5, pause=1), retry_on=(OSError, KeyError))
orders.async_map(len, name="wrong")  # type: ignore[arg-type]


class Known(msgspec.Struct):
    id: int
    country: str


async def country_of(user: str) -> str:
    return user


def rate_of(user: str) -> float | None:
    return None


def known(order: Order, country: str) -> Known:
    return Known(order.id, country)


by_user = orders.key_by(lambda order: order.user)
assert_type(by_user.async_map(country_of, known, name="known", cache=Ttl(60)), Stream[Known])
assert_type(by_user.async_map(rate_of, lambda order, rate: rate, name="rate", cache=Ttl(60)), Stream[float | None])
by_user.async_map(country_of, known, name="not-kept")  # type: ignore[call-overload]
by_user.async_map(rate_of, known, name="wrong", cache=Ttl(60))  # type: ignore[arg-type]
