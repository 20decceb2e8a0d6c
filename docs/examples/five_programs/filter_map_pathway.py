import pathway as pw


class Order(pw.Schema):
    user: str
    amount: int
    status: str


KAFKA = {"bootstrap.servers": "localhost:9092", "group.id": "paid-orders", "auto.offset.reset": "earliest"}
orders = pw.io.kafka.read(KAFKA, "orders", schema=Order, format="json")
paid = orders.filter(orders.status == "paid").select(pw.this.user, pw.this.amount)
pw.io.kafka.write(paid, KAFKA, "paid", key=paid.user)
pw.run(persistence_config=pw.persistence.Config(pw.persistence.Backend.filesystem("state")))
