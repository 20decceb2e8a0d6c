"""The command ``kafka-eos jars``."""

from __future__ import annotations

import typer

from kafka_eos._util.jvm.jars import fetch_jars


def jars() -> None:
    """Print the jars that Spark needs to read and write Kafka, fetched if need be, as `--jars` takes them.

    They are the ones that this version was tested with. `kafka-eos run --engine spark` and the audit need them in no
    other way; a Structured Streaming query of your own, or spark-submit, does.

    Example: `spark-submit --jars "$(kafka-eos jars)" query.py`
    """
    typer.echo(",".join(map(str, fetch_jars("spark"))))
