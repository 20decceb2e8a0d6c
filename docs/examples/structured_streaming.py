"""Totals per user, exactly once: topic ``orders`` in, topic ``totals`` out.

spark-submit --jars "$(kafka-eos jars)" structured_streaming.py host:9092 /durable/totals
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kafka_eos.structured_streaming import exactly_once_kafka

servers, checkpoint = sys.argv[1:3]
spark = SparkSession.builder.appName("totals").getOrCreate()
orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), "user string, amount long").alias("order"))
)
totals = (
    orders.groupBy("order.user")
    .agg(F.sum("order.amount").alias("total"))
    .select(F.col("user").alias("key"), F.to_json(F.struct("user", "total")).alias("value"))
)

query = exactly_once_kafka(
    totals, topic="totals", bootstrap_servers=servers, checkpoint=checkpoint, name="totals", output_mode="update"
)
query.awaitTermination()
