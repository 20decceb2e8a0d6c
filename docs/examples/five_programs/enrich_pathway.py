import pathway as pw


class Order(pw.Schema):
    customer: str
    total: int


class Customer(pw.Schema):
    customer: str
    level: str


KAFKA = {"bootstrap.servers": "localhost:9092", "group.id": "prices", "auto.offset.reset": "earliest"}
orders = pw.io.kafka.read(KAFKA, "orders", schema=Order, format="json")
changes = pw.io.kafka.read(KAFKA, "customers", schema=Customer, format="json")
customers = changes.groupby(changes.customer).reduce(changes.customer, level=pw.reducers.latest(changes.level))
priced = orders.asof_now_join(customers, orders.customer == customers.customer).select(
    orders.customer, orders.total, customers.level
)
pw.io.kafka.write(priced, KAFKA, "priced", key=priced.customer)
pw.run(persistence_config=pw.persistence.Config(pw.persistence.Backend.filesystem("state")))
