"""What a type checker must infer of tables. Checked with ``mypy --strict``; never run."""

from typing import assert_type

import msgspec

from kafka_eos import OutputTag, Pipeline, Stream, Table, VersionedTable, monotonic
from kafka_eos.connectors.kafka import KafkaSource


class Order(msgspec.Struct):
    user: str


class Customer(msgspec.Struct):
    level: str


def both(order: Order, customer: Customer) -> int:
    return len(order.user + customer.level)


def or_none(order: Order, customer: Customer | None) -> str:
    return order.user


pipeline = Pipeline("typed")
orders = pipeline.source(KafkaSource("orders", value=Order), name="orders").key_by(lambda order: order.user)
customers = pipeline.table(KafkaSource.records("customers", key=str, value=Customer), name="customers")

assert_type(customers, Table[str, Customer])
assert_type(orders.join(customers, both), Stream[int])
assert_type(orders.join(customers, lambda order, customer: customer.level), Stream[str])
assert_type(orders.left_join(customers, or_none), Stream[str])
orders.left_join(customers, both)  # type: ignore[arg-type]
orders.left_join(customers, lambda order, customer: customer.level)  # type: ignore[union-attr]

versions = customers.with_timestamps(lambda record: record.timestamp or 0, watermarks=monotonic())
assert_type(versions, VersionedTable[str, Customer])
assert_type(orders.join_as_of(versions, both, late=OutputTag("late", Order)), Stream[int])
assert_type(orders.join_as_of(versions, lambda order, customer: customer.level), Stream[str])
assert_type(orders.left_join_as_of(versions, or_none), Stream[str])
orders.left_join_as_of(versions, both)  # type: ignore[arg-type]
orders.left_join_as_of(versions, lambda order, customer: customer.level)  # type: ignore[union-attr]
orders.join_as_of(versions, both, late=OutputTag("late", Customer))  # type: ignore[arg-type]
orders.join_as_of(customers, both)  # type: ignore[arg-type]
orders.join(versions, both)  # type: ignore[arg-type]
