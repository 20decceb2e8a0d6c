from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
import msgspec
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow


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


BROKERS = ["localhost:9092"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(row: Order | Payment) -> datetime:
    return EPOCH + timedelta(milliseconds=row.at)


def to_row(result: tuple[str, tuple[int, tuple[Order, Payment]]]) -> Paid:
    order, (_, (placed, payment)) = result
    return Paid(order, placed.total, payment.amount)


flow = Dataflow("paid")
order_records = kop.input("orders", flow, brokers=BROKERS, topics=["orders"])
payment_records = kop.input("payments", flow, brokers=BROKERS, topics=["payments"])
orders = op.map("orders-json", order_records.oks, lambda r: msgspec.json.decode(r.value or b"", type=Order))
payments = op.map("payments-json", payment_records.oks, lambda r: msgspec.json.decode(r.value or b"", type=Payment))
pairs = win.join_window(
    "pairs",
    win.EventClock(time_of, wait_for_system_duration=timedelta(minutes=1)),
    win.TumblingWindower(length=timedelta(minutes=10), align_to=EPOCH),
    op.key_on("orders-by-id", orders, lambda order: order.order),
    op.key_on("payments-by-order", payments, lambda payment: payment.order),
    insert_mode="product",
    emit_mode="complete",
)
rows = op.map("to-row", pairs.down, to_row)
encoded = op.map("encode", rows, lambda row: KafkaSinkMessage(row.order.encode(), msgspec.json.encode(row)))
kop.output("paid", encoded, brokers=BROKERS, topic="paid")
