import bytewax.operators as op
import msgspec
import psycopg
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition


class Purchase(msgspec.Struct):
    user: str
    amount: int


class Total(msgspec.Struct):
    user: str
    total: int


UPSERT = 'INSERT INTO totals ("user", total) VALUES (%s, %s) ON CONFLICT ("user") DO UPDATE SET total = excluded.total'


class TotalsWriter(StatelessSinkPartition[Total]):
    def __init__(self) -> None:
        self.connection = psycopg.connect("host=localhost dbname=shop user=shop")

    def write_batch(self, items: list[Total]) -> None:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(UPSERT, [(total.user, total.total) for total in items])

    def close(self) -> None:
        self.connection.close()


class TotalsTable(DynamicSink[Total]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> TotalsWriter:
        return TotalsWriter()


def add(total: int | None, purchase: Purchase) -> tuple[int | None, Total]:
    new = (total or 0) + purchase.amount
    return new, Total(purchase.user, new)


flow = Dataflow("totals")
records = kop.input("purchases", flow, brokers=["localhost:9092"], topics=["purchases"])
purchases = op.map("decode", records.oks, lambda record: msgspec.json.decode(record.value or b"", type=Purchase))
totals = op.stateful_map("total", op.key_on("by-user", purchases, lambda purchase: purchase.user), add)
op.output("totals", op.key_rm("rows", totals), TotalsTable())
