import pathway as pw


class Purchase(pw.Schema):
    user: str
    amount: int


KAFKA = {"bootstrap.servers": "localhost:9092", "group.id": "totals", "auto.offset.reset": "earliest"}
POSTGRES = {"host": "localhost", "port": "5432", "dbname": "shop", "user": "shop", "password": ""}
purchases = pw.io.kafka.read(KAFKA, "purchases", schema=Purchase, format="json")
totals = purchases.groupby(purchases.user).reduce(purchases.user, total=pw.reducers.sum(purchases.amount))
pw.io.postgres.write(totals, POSTGRES, "totals", output_table_type="snapshot", primary_key=[totals.user])
pw.run(persistence_config=pw.persistence.Config(pw.persistence.Backend.filesystem("state")))
