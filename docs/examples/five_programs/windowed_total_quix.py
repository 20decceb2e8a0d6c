from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Sum

app = Application(
    "localhost:9092", consumer_group="totals", auto_offset_reset="earliest", processing_guarantee="exactly-once"
)
sales = app.dataframe(app.topic("sales", timestamp_extractor=lambda row, headers, timestamp, kind: row["at"]))
totals = (
    sales.group_by("user")
    .tumbling_window(timedelta(minutes=5), grace_ms=timedelta(minutes=1))
    .agg(amount=Sum("amount"))
    .final()
    .apply(lambda row, user, timestamp, headers: {"user": user, **row}, metadata=True)
)
totals.to_topic(app.topic("totals", key_serializer="str"))
app.run()
