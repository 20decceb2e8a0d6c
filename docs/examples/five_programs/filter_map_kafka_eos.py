import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(msgspec.Struct):
    user: str
    amount: int
    status: str


class Paid(msgspec.Struct):
    user: str
    amount: int


pipeline = Pipeline("paid-orders")
(
    pipeline.source(KafkaSource("orders", value=Order))
    .filter(lambda order: order.status == "paid")
    .map(lambda order: Paid(order.user, order.amount))
    .sink(KafkaSink("paid", value=Paid, key="user"))
)
