"""What a type checker must infer of ``async_map``. Checked with ``mypy --strict``; never run."""

from typing import assert_type

import msgspec

from kafka_eos import OutputTag, Pipeline, Stream, breaker, retries
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
