from datetime import timedelta

from quixstreams import Application

app = Application(
    "localhost:9092", consumer_group="paid", auto_offset_reset="earliest", processing_guarantee="exactly-once"
)
orders = app.dataframe(app.topic("orders", timestamp_extractor=lambda row, headers, timestamp, kind: row["at"]))
payments = app.dataframe(app.topic("payments", timestamp_extractor=lambda row, headers, timestamp, kind: row["at"]))
paid = orders.group_by("order").join_interval(
    payments.group_by("order"),
    on_merge=lambda order, payment: {**order, "amount": payment["amount"]},
    forward_ms=timedelta(minutes=10),
)
paid[["order", "total", "amount"]].to_topic(app.topic("paid", key_serializer="str"))
app.run()
