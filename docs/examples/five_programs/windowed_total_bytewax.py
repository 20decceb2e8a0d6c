from datetime import UTC, datetime, timedelta

import bytewax.operators as op
import bytewax.operators.windowing as win
import msgspec
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow


class Sale(msgspec.Struct):
    user: str
    amount: int
    at: int


class Total(msgspec.Struct):
    user: str
    start: int
    end: int
    amount: int


BROKERS = ["localhost:9092"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIVE_MINUTES = timedelta(minutes=5)


def time_of(sale: Sale) -> datetime:
    return EPOCH + timedelta(milliseconds=sale.at)


def to_row(result: tuple[str, tuple[int, int]]) -> Total:
    user, (window, amount) = result
    start = window * 300_000
    return Total(user, start, start + 300_000, amount)


flow = Dataflow("totals")
records = kop.input("sales", flow, brokers=BROKERS, topics=["sales"])
sales = op.map("decode", records.oks, lambda record: msgspec.json.decode(record.value or b"", type=Sale))
totals = win.fold_window(
    "total",
    op.key_on("by-user", sales, lambda sale: sale.user),
    win.EventClock(time_of, wait_for_system_duration=timedelta(minutes=1)),
    win.TumblingWindower(length=FIVE_MINUTES, align_to=EPOCH),
    int,
    lambda total, sale: total + sale.amount,
    lambda left, right: left + right,
)
rows = op.map("to-row", totals.down, to_row)
encoded = op.map("encode", rows, lambda row: KafkaSinkMessage(row.user.encode(), msgspec.json.encode(row)))
kop.output("totals", encoded, brokers=BROKERS, topic="totals")
