import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(msgspec.Struct):
    customer: str
    total: int


class Customer(msgspec.Struct):
    level: str


class Priced(msgspec.Struct):
    customer: str
    total: int
    level: str


pipeline = Pipeline("prices")
customers = pipeline.table(KafkaSource.records("customers", key=str, value=Customer))
(
    pipeline.source(KafkaSource("orders", value=Order))
    .key_by("customer")
    .join(customers, lambda order, customer: Priced(order.customer, order.total, customer.level), name="price")
    .sink(KafkaSink("priced", value=Priced, key="customer"))
)
