"""Both workloads in plain Structured Streaming, as its guide would write them. BENCH_VARIANT says how:

    built-in        expressions and aggregations of Spark; W2 puts out one row a key and batch (it cannot do more)
    exactly-once    the same query, its output by ``exactly_once_kafka``
    row state       W2 by transformWithState, one row for each input; state is read and written once a key and batch

BENCH_TRIGGER: time between micro-batches, for ever; without it, the query ends when the input is read.
Writes ``batches.jsonl``: when each batch ended, how many rows it read, and how many rows of state it changed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from kafka_eos.devtools.broker import fetch_jars
from kafka_eos.structured_streaming import exactly_once_kafka

HERE = Path(os.environ["BENCH_DIRECTORY"])
SERVERS, VARIANT = os.environ["BENCH_BOOTSTRAP"], os.environ["BENCH_VARIANT"]
CORES = os.environ["BENCH_CORES"]
TRIGGER: Any = {"processingTime": each} if (each := os.environ.get("BENCH_TRIGGER")) else {"availableNow": True}
PAYMENT = "id long, account string, amount long, note string"
TOTAL = "account string, total long"
CONFIG: dict[str, bool | float | int | str | None] = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    "spark.sql.shuffle.partitions": CORES,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
READER = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed", "kafka.max.poll.records": "10000"}
WRITER = {"kafka.compression.type": "lz4", "kafka.linger.ms": "20", "kafka.batch.size": "262144"}


class Sum(StatefulProcessor):
    """A running sum for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        known = self._total.get()
        total = known[0] if known else 0
        for row in rows:
            total += row.amount
            yield Row(account=key[0], total=total)
        self._total.update((total,))

    def close(self) -> None:
        """Nothing is open."""


def payments(spark: SparkSession) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .options(**READER)
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", os.environ["BENCH_INPUT"])
        .option("maxOffsetsPerTrigger", os.environ["BENCH_BATCH"])
        .load()
        .select(F.from_json(F.col("value").cast("string"), PAYMENT).alias("p"))
        .select("p.*")
    )


def doubled(rows: DataFrame) -> DataFrame:
    """W1."""
    kept = rows.where(F.col("amount") % 10 != 7).withColumn("twice", 2 * F.col("amount"))
    return kept.select(F.to_json(F.struct("*")).alias("value"))


def totals(rows: DataFrame) -> DataFrame:
    """W2."""
    keyed = rows.groupBy("account")
    if VARIANT == "row state":
        summed = keyed.transformWithState(
            statefulProcessor=Sum(), outputStructType=TOTAL, outputMode="update", timeMode="none"
        )
    else:
        summed = keyed.agg(F.sum("amount").alias("total"))
    return summed.select(F.col("account").alias("key"), F.to_json(F.struct("account", "total")).alias("value"))


def start(rows: DataFrame, mode: str) -> Any:
    """Spark's handle of the query."""
    checkpoint, output = str(HERE / "checkpoint"), os.environ["BENCH_OUTPUT"]
    if VARIANT == "exactly-once":
        return exactly_once_kafka(
            rows,
            topic=output,
            bootstrap_servers=SERVERS,
            checkpoint=checkpoint,
            output_mode=mode,
            trigger=TRIGGER,
            config={"compression.type": "lz4", "linger.ms": 20, "batch.size": 262_144},
        )
    writer = rows.writeStream.format("kafka").options(**WRITER).option("kafka.bootstrap.servers", SERVERS)
    writer = writer.option("topic", output).option("checkpointLocation", checkpoint).outputMode(mode)
    return writer.trigger(**TRIGGER).start()


def tell(progress: Iterable[Any]) -> None:
    """Write down what each batch with input did; ``at`` is in seconds since 1970."""
    with (HERE / "batches.jsonl").open("w") as lines:
        for batch in progress:
            if batch["numInputRows"]:
                began = datetime.fromisoformat(batch["timestamp"]).timestamp()
                updated = sum(operator["numRowsUpdated"] for operator in batch["stateOperators"])
                at = began + batch["durationMs"]["triggerExecution"] / 1000
                lines.write(json.dumps({"at": at, "read": batch["numInputRows"], "updated": updated}) + "\n")


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    jars = ",".join(map(str, fetch_jars("spark")))
    spark = SparkSession.builder.master(f"local[{CORES},4]").config(map=CONFIG | {"spark.jars": jars}).getOrCreate()
    stateless = os.environ["BENCH_WORKLOAD"] == "W1"
    query = start((doubled if stateless else totals)(payments(spark)), "append" if stateless else "update")
    query.awaitTermination()
    tell(json.loads(one.json) for one in getattr(query, "query", query).recentProgress)
    spark.stop()


if __name__ == "__main__":
    main()
