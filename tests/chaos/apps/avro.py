"""Kafka to Kafka in Avro, with the schemas of a registry; what cannot be read is written aside."""

import os

from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.codecs import Registry, avro
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter


class Payment(BaseModel):
    id: int
    account: str
    amount: int
    currency: str = "EUR"


class Total(BaseModel):
    account: str
    total: int
    id: int
    currency: str


registry = Registry(os.environ["TEST_REGISTRY"], config={"max.retries": 0, "timeout": 0.5})
pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    batch_size=50,
    restart_backoff_initial=0.05,
    restart_backoff_max=0.5,
    max_environment_failures=10_000,
)
payments = pipeline.source(
    KafkaSource(os.environ["TEST_INPUT"], value=avro(Payment, registry=registry)),
    name="payments",
    on_error=dead_letter(os.environ["TEST_LETTERS"]),
)
payments.key_by(lambda payment: payment.account).fold(
    name="total",
    init=lambda: Total(account="", total=0, id=-1, currency=""),
    step=lambda total, p: Total(account=p.account, total=total.total + p.amount, id=p.id, currency=p.currency),
    emit=lambda account, total: total,
).sink(
    KafkaSink(
        os.environ["TEST_OUTPUT"],
        value=avro(Total, registry=registry, namespace="com.example", auto_register=True),
        key=lambda total: total.account,
    ),
    name="totals",
)

if __name__ == "__main__":
    pipeline.run()
