import pathway as pw


class Order(pw.Schema):
    order: str
    total: int
    at: int


class Payment(pw.Schema):
    order: str
    amount: int
    at: int


KAFKA = {"bootstrap.servers": "localhost:9092", "group.id": "paid", "auto.offset.reset": "earliest"}
orders = pw.io.kafka.read(KAFKA, "orders", schema=Order, format="json")
payments = pw.io.kafka.read(KAFKA, "payments", schema=Payment, format="json")
paid = orders.interval_join(
    payments, orders.at, payments.at, pw.temporal.interval(0, 600_000), orders.order == payments.order
).select(orders.order, orders.total, payments.amount)
pw.io.kafka.write(paid, KAFKA, "paid", key=paid.order)
pw.run(persistence_config=pw.persistence.Config(pw.persistence.Backend.filesystem("state")))
