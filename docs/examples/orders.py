"""Running totals of paid orders: topic ``orders`` in, topic ``totals`` out."""

from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(BaseModel):
    user: str
    amount: int
    status: str


class Total(BaseModel):
    user: str
    total: int


pipeline = Pipeline("order-totals")
(
    pipeline.source(KafkaSource("orders", value=Order))
    .filter(lambda o: o.status == "paid")
    .key_by("user")
    .fold(
        name="total",
        init=lambda: 0,
        step=lambda total, o: total + o.amount,
        emit=lambda user, total: Total(user=user, total=total),
    )
    .sink(KafkaSink("totals", value=Total, key="user"))
)

if __name__ == "__main__":
    pipeline.run()
