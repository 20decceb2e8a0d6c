"""The command ``kafka-eos jars``."""

from __future__ import annotations

from kafka_eos._util.jvm.jars import fetch_jars
from kafka_eos.cli.output import echo


def jars() -> None:
    """Print the paths of the jars that Spark needs for Kafka, separated by commas; download them if missing.

    This version of kafka_eos was tested with these jars. Pass them to spark-submit, or to a Structured Streaming query
    of your own. The audit uses them by itself.

    Example: `spark-submit --jars "$(kafka-eos jars)" query.py`
    """
    echo(",".join(map(str, fetch_jars("spark"))))
