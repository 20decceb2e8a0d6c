from collections.abc import Iterable

import bytewax.operators as op
import msgspec
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.operators import KeyedStream


class Order(msgspec.Struct):
    customer: str
    total: int


class Customer(msgspec.Struct):
    level: str


class Priced(msgspec.Struct):
    customer: str
    total: int
    level: str


def price(level: str | None, row: Order | Customer) -> tuple[str | None, Iterable[Priced]]:
    if isinstance(row, Customer):
        return row.level, []
    return level, [] if level is None else [Priced(row.customer, row.total, level)]


BROKERS = ["localhost:9092"]
flow = Dataflow("prices")
order_records = kop.input("orders", flow, brokers=BROKERS, topics=["orders"])
customer_records = kop.input("customers", flow, brokers=BROKERS, topics=["customers"])
orders = op.map("orders-json", order_records.oks, lambda r: msgspec.json.decode(r.value or b"", type=Order))
changes = op.map(
    "customers-json",
    customer_records.oks,
    lambda r: ((r.key or b"").decode(), msgspec.json.decode(r.value or b"", type=Customer)),
)
both: KeyedStream[Order | Customer] = op.merge(
    "both", op.key_on("by-customer", orders, lambda order: order.customer), changes
)
priced = op.stateful_flat_map("price", both, price)
encoded = op.map("encode", priced, lambda row: KafkaSinkMessage(row[0].encode(), msgspec.json.encode(row[1])))
kop.output("priced", encoded, brokers=BROKERS, topic="priced")
