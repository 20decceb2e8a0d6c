"""A driver that tests kill: totals per user of topic IN, to topic OUT, until the input is read.

    python -m tests.structured_streaming.driver KIND SERVERS IN OUT CHECKPOINT

KIND ``certain`` is deterministic. KIND ``random`` gives every row a random token in each attempt anew and emits all
tokens of a user so far: if an output and Spark's state ever came from different attempts, the lists would not fit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import randrange
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PARTITIONS = 3
"""More than the Python workers of a driver, which runs two tasks at a time."""
PER_BATCH = 40
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    # A second name for the local file system, so that a checkpoint can be on one that is not "file".
    "spark.hadoop.fs.viewfs.mounttable.other.link./disk": "file:///",
}


def query(spark: Any, kind: str, servers: str, source: str) -> Any:
    """The streaming DataFrame: one row a user and batch, with all ids and tokens of the user so far."""
    from pyspark.sql import functions as F

    token = F.udf(lambda: randrange(10**12), "long").asNondeterministic() if kind == "random" else lambda: F.col("id")
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .load()
        .select(F.col("key").cast("string").alias("user"), F.col("value").cast("string").cast("long").alias("id"))
        .withColumn("token", token())
    )
    lists = rows.groupBy("user").agg(
        F.sort_array(F.collect_list("id")).alias("ids"),
        F.sort_array(F.collect_list("token")).alias("tokens"),
        F.sum("token").alias("total"),
    )
    return lists.select(F.col("user").alias("key"), F.to_json(F.struct("ids", "tokens", "total")).alias("value"))


def main(kind: str, servers: str, source: str, target: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from kafka_eos.devtools.broker import fetch_jars
    from kafka_eos.structured_streaming import exactly_once_kafka
    from tests import spark_java

    java = {
        "spark.jars": ",".join(map(str, fetch_jars("spark"))),
        "spark.driver.extraJavaOptions": spark_java.of_driver(),
    }
    spark = SparkSession.builder.master("local[2,3]").config(map=CONFIG | java).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    started = exactly_once_kafka(
        query(spark, kind, servers, source),
        topic=target,
        bootstrap_servers=servers,
        checkpoint=checkpoint,
        name="totals",
        output_mode="update",
        trigger={"availableNow": True},
    )
    started.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
