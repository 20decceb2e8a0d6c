import msgspec

from kafka_eos import Pipeline, agg
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.postgres import PostgresSink


class Purchase(msgspec.Struct):
    user: str
    amount: int


class Total(msgspec.Struct):
    user: str
    total: int


pipeline = Pipeline("totals")
(
    pipeline.source(KafkaSource("purchases", value=Purchase))
    .key_by("user")
    .aggregate(total=agg.sum("amount"), key="user", out=Total, name="total")
    .sink(PostgresSink("host=localhost dbname=shop user=shop", "totals", key="user"))
)
