import bytewax.operators as op
import msgspec
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow


class Order(msgspec.Struct):
    user: str
    amount: int
    status: str


class Paid(msgspec.Struct):
    user: str
    amount: int


BROKERS = ["localhost:9092"]
flow = Dataflow("paid-orders")
records = kop.input("orders", flow, brokers=BROKERS, topics=["orders"])
orders = op.map("decode", records.oks, lambda record: msgspec.json.decode(record.value or b"", type=Order))
paid = op.filter("is-paid", orders, lambda order: order.status == "paid")
rows = op.map("shorten", paid, lambda order: Paid(order.user, order.amount))
encoded = op.map("encode", rows, lambda row: KafkaSinkMessage(row.user.encode(), msgspec.json.encode(row)))
kop.output("paid", encoded, brokers=BROKERS, topic="paid")
