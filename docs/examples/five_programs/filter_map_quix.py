from quixstreams import Application

app = Application(
    "localhost:9092", consumer_group="paid-orders", auto_offset_reset="earliest", processing_guarantee="exactly-once"
)
orders = app.dataframe(app.topic("orders"))
paid = orders[orders["status"] == "paid"][["user", "amount"]]
paid.to_topic(app.topic("paid", key_serializer="str"), key=lambda row: row["user"])
app.run()
