"""Orders into three systems at once: running totals of paid orders into a topic and a table, the orders into Parquet.

topic ``orders``     what comes in
topic ``totals``     each total of a user, as it grows
table ``totals``     the newest total of each user, where ``ORDERS_DATABASE`` names a PostgreSQL
``ORDERS_FILES``     the directory of paid orders, as Parquet
"""

import os

from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSink


class Order(BaseModel):
    user: str
    amount: int
    status: str


class UserTotal(BaseModel):
    user: str
    total: int


FILES, DATABASE = os.environ.get("ORDERS_FILES", "paid-orders"), os.environ.get("ORDERS_DATABASE")

pipeline = Pipeline("order-totals")
paid = pipeline.source(KafkaSource("orders", value=Order), name="orders").filter(lambda o: o.status == "paid")
totals = paid.key_by(lambda o: o.user).fold(
    name="total",
    init=lambda: 0,
    step=lambda total, o: total + o.amount,
    emit=lambda user, total: UserTotal(user=user, total=total),
)
totals.sink(KafkaSink("totals", value=UserTotal, key=lambda t: t.user), name="totals")
paid.sink(FileSink(FILES, value=Order, format="parquet", envelope=True), name="paid-orders")
if DATABASE:
    totals.sink(PostgresSink(DATABASE, "totals", value=UserTotal, key="user", create=True), name="totals-now")

if __name__ == "__main__":
    pipeline.run()
