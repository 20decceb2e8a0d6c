import msgspec

from kafka_eos import Pipeline, agg, bounded, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Sale(msgspec.Struct):
    user: str
    amount: int
    at: int


class Total(msgspec.Struct):
    user: str
    start: int
    end: int
    amount: int


pipeline = Pipeline("totals")
(
    pipeline.source(KafkaSource("sales", value=Sale))
    .with_timestamps(lambda sale: sale.at, watermarks=bounded(seconds=60))
    .key_by("user")
    .window(tumbling(seconds=300))
    .aggregate(amount=agg.sum("amount"), key="user", out=Total, name="total")
    .sink(KafkaSink("totals", key="user"))
)
