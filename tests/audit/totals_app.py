"""A keyed pipeline whose topics come from the environment, as a user would write it."""

import os

from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(BaseModel):
    user: str
    amount: int


class Total(BaseModel):
    user: str
    total: int


pipeline = Pipeline("audited-totals")
(
    pipeline.source("orders", KafkaSource(os.environ["AUDIT_TEST_INPUT"], value=Order))
    .filter(lambda order: order.amount > 0)
    .key_by(lambda order: order.user)
    .fold(
        "total",
        init=lambda: 0,
        step=lambda total, order: total + order.amount,
        emit=lambda user, total: Total(user=user, total=total),
    )
    .sink("totals", KafkaSink(os.environ["AUDIT_TEST_OUTPUT"], value=Total, key=lambda total: total.user))
)
