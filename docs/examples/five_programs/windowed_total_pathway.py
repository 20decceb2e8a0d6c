import pathway as pw


class Sale(pw.Schema):
    user: str
    amount: int
    at: int


KAFKA = {"bootstrap.servers": "localhost:9092", "group.id": "totals", "auto.offset.reset": "earliest"}
sales = pw.io.kafka.read(KAFKA, "sales", schema=Sale, format="json")
totals = sales.windowby(
    sales.at,
    window=pw.temporal.tumbling(duration=300_000),
    behavior=pw.temporal.exactly_once_behavior(shift=60_000),
    instance=sales.user,
).reduce(
    user=pw.this._pw_instance,
    start=pw.this._pw_window_start,
    end=pw.this._pw_window_end,
    amount=pw.reducers.sum(pw.this.amount),
)
pw.io.kafka.write(totals, KAFKA, "totals", key=totals.user)
pw.run(persistence_config=pw.persistence.Config(pw.persistence.Backend.filesystem("state")))
