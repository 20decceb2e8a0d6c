"""The job that the golden job directory in this folder was made of: broadcast state of three workers.

Its rows are in the file, and no broker is needed. They had come to the first sixty; with TEST_MORE there are sixty
more, for a version that goes on with what is stored. All rules come before them.
"""

import os
from collections.abc import Iterable
from typing import Any

import msgspec

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    Pipeline,
    connect,
)
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import Record
from kafka_eos.testing import ListSource

GOLDEN = 60


class Rule(msgspec.Struct):
    above: int


Row = tuple[str, int]
Upsert = Record[str, Rule]


class Plain(BroadcastProcessFunction[Row, Upsert, bytes]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, Rule)

    def process(self, value: Row) -> Iterable[bytes]:
        return [f"{name} {value[1]}".encode() for name, rule in self.rules.items() if value[1] > rule.above]

    def process_broadcast(self, value: Upsert) -> None:
        self.rules.put(value.key, value.value)


class Keyed(KeyedBroadcastProcessFunction[str, Row, Upsert, bytes]):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, Rule)
        self.count = ctx.value_state("count", int, 0)

    def process(self, key: str, value: Row) -> Iterable[bytes]:
        self.count.put(self.count.get() + 1)
        return [f"{key} {self.count.get()} of {sum(rule.above for rule in self.rules.values())}".encode()]

    def process_broadcast(self, value: Upsert) -> None:
        self.rules.put(value.key, value.value)


ROWS = [(f"a{n % 5}", n) for n in range(2 * GOLDEN)]
RULES = [Record(f"rule-{n % 20}", Rule(n % 60)) for n in range(110)] + [Record("rule-7", None)]

pipeline = Pipeline(
    "golden-broadcast",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    state_backend="memory",
)
rows = pipeline.source(ListSource(ROWS if os.environ.get("TEST_MORE") else ROWS[:GOLDEN]), name="rows")
by_key = rows.key_by(lambda row: row[0], name="by-key", values=tuple[str, int])
rules: Any = pipeline.table(ListSource(RULES, name="rules"), name="rules", values=Record[str, Rule]).broadcast()
plain = connect(rows, rules).process(Plain, name="plain")
keyed = connect(by_key, rules, name="rules-of-keys").process(Keyed, name="keyed")
plain.union(keyed).sink(FileSink(os.environ["TEST_FILES"]), name="out")
