import msgspec

from kafka_eos import Pipeline, bounded, connect
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(msgspec.Struct):
    order: str
    total: int
    at: int


class Payment(msgspec.Struct):
    order: str
    amount: int
    at: int


class Paid(msgspec.Struct):
    order: str
    total: int
    amount: int


pipeline = Pipeline("paid")
late = bounded(seconds=60)
orders = pipeline.source(KafkaSource("orders", value=Order)).with_timestamps(lambda o: o.at, watermarks=late)
payments = pipeline.source(KafkaSource("payments", value=Payment)).with_timestamps(lambda p: p.at, watermarks=late)
(
    connect(orders.key_by("order"), payments.key_by("order"))
    .interval_join(lambda o, p: Paid(o.order, o.total, p.amount), lower=0, upper=600, name="pairs")
    .sink(KafkaSink("paid", value=Paid, key="order"))
)
