from quixstreams import Application

app = Application(
    "localhost:9092", consumer_group="prices", auto_offset_reset="earliest", processing_guarantee="exactly-once"
)
orders = app.dataframe(app.topic("orders"))
customers = app.dataframe(app.topic("customers", key_deserializer="str"))
by_customer = orders.group_by("customer", key_serializer="str", key_deserializer="str")
priced = by_customer.join_asof(customers, on_merge=lambda order, customer: {**order, "level": customer["level"]})
priced.to_topic(app.topic("priced", key_serializer="str"))
app.run()
