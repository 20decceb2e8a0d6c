from typing import Any

from quixstreams import Application, State
from quixstreams.sinks.community.postgresql import PostgreSQLSink


def add(row: dict[str, Any], state: State[str, int]) -> dict[str, Any]:
    total = state.get("total", 0) + row["amount"]
    state.set("total", total)
    return {"user": row["user"], "total": total}


app = Application(
    "localhost:9092", consumer_group="totals", auto_offset_reset="earliest", processing_guarantee="exactly-once"
)
purchases = app.dataframe(app.topic("purchases"))
totals = purchases.group_by("user").apply(add, stateful=True)
table = PostgreSQLSink(
    host="localhost",
    port=5432,
    dbname="shop",
    user="shop",
    password="",
    table_name="totals",
    primary_key_columns="user",
    upsert_on_primary_key=True,
    include_metadata=False,
)
totals.sink(table)
app.run()
