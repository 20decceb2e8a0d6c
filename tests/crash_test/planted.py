"""Pipelines with one mistake each, which a crash test must find; ``CORRECT`` has none."""

from __future__ import annotations

_BEGINNING = """
import itertools
import random
import tempfile
from pathlib import Path

from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


class Order(BaseModel):
    user: str
    amount: int
    status: str


class Total(BaseModel):
    user: str
    total: int


COUNTER = itertools.count()
SEEN = []


def add(total: int, order: Order) -> int:
    {body}
    return total + order.amount


class DirectSink(KafkaSink[Total]):
    def writer(self, ctx):
        return KafkaSink("totals", value=Total, key="user", delivery="at-least-once").writer(ctx)


pipeline = Pipeline("planted")
(
    pipeline.source(KafkaSource("orders", value=Order))
    .filter(lambda order: order.status == "paid")
    .key_by({key})
    .fold(name="total", init=lambda: 0, step=add, emit=lambda user, total: Total(user=user, total=total))
    .sink({sink}("totals", value=Total, key="user"))
)
"""


def _pipeline(body: str = "pass", key: str = '"user"', sink: str = "KafkaSink") -> str:
    return _BEGINNING.format(body=body, key=key, sink=sink)


CORRECT = _pipeline()
SIDE_EFFECT = _pipeline("Path(tempfile.gettempdir(), 'kafka-eos-planted').write_text(order.user)")
CHANGED_GLOBAL = _pipeline("SEEN.append(order.user)")
NOT_DETERMINISTIC = _pipeline("total += random.randrange(100)")
RANDOM_KEY = _pipeline(key="lambda order: f'{order.user}-{random.randrange(1000)}'")
LYING_SINK = _pipeline(sink="DirectSink")


def line_of(program: str, text: str) -> int:
    """Return the number of the only line that contains a text."""
    (found,) = (number for number, line in enumerate(program.splitlines(), 1) if text in line)
    return found
