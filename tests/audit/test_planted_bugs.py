"""Ten bugs in operators of the engine, in the job and in the audit's own processes: the audit names each sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from tests.audit.job import Job

PIPELINE = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.runtime.operators.fold import FoldOperator
from kafka_eos.runtime.operators.stateless import FilterOperator, FlatMapOperator, KeyByOperator, MapOperator

def lose(rows):
    return [*rows][: len(rows) // 2]

def repeat(rows):
    return [*rows, *rows][: len(rows) + 1]

def swap(rows):
    return [*rows][::-1]

CHANGES = {{"lose": lose, "repeat": repeat, "swap": swap}}

def plant(operator):
    whole = operator.process
    def process(self, batch):
        change = CHANGES.get(self._ctx.operator.partition("-")[0])
        return whole(self, batch if change is None else batch.take(change(range(len(batch)))))
    operator.process = process

for operator in (FilterOperator, FlatMapOperator, FoldOperator, KeyByOperator, MapOperator):
    plant(operator)

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
keyed = words.key_by(lambda word: word[0], name="right")

def write(stream, name, value=str):
    stream.sink(KafkaSink(TOPICS[name], value=value), name=name)

TOPICS = {topics}
for bug in ("lose", "repeat"):
    write(words.filter(bool, name=f"{{bug}}-filter"), f"{{bug}}-filter-out")
    write(words.flat_map(lambda word: [word], name=f"{{bug}}-flat-map"), f"{{bug}}-flat-map-out")
    write(words.map(str.upper, name=f"{{bug}}-map"), f"{{bug}}-map-out")
    again = words.key_by(lambda word: word, name=f"{{bug}}-key-by")
    write(again.reduce(lambda _, word: word, name=f"of-{{bug}}", state=str), f"{{bug}}-key-by-out")
write(keyed.fold(name="lose-fold", init=int, step=lambda n, word: n + 1), "lose-fold-out", tuple[str, int])
write(keyed.reduce(lambda a, b: a + b, name="swap-reduce", state=str), "swap-reduce-out")
"""
BUGS = (
    *(f"{bug}-{operator}" for bug in ("lose", "repeat") for operator in ("filter", "flat-map", "map", "key-by")),
    "lose-fold", "swap-reduce",
)  # fmt: skip


@pytest.mark.campaign
def test_the_audit_has_none_of_the_bugs_of_the_engine(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    sinks = {f"{bug}-out": topic() for bug in BUGS}
    source = topic()
    job = new_job(PIPELINE, input=source, topics=repr(sinks))
    job.feed(source, [(0, None, b'"%c%d"' % (97 + i % 3, i)) for i in range(30)])
    job.run("--checkpoint-interval", "10s", workers=1)

    verdict = job.audit(spark)

    found = {check: {f for each in verdict.findings if each.check is check for f in each.by_sink} for check in Check}
    assert Conclusion.FAIL is verdict.conclusion, verdict.headline
    assert {sink for sink in sinks if sink.startswith("lose")} <= found[Check.LOST]
    assert {sink for sink in sinks if sink.startswith("repeat")} <= found[Check.DUPLICATE]
    assert "swap-reduce-out" in found[Check.WRONG_VALUE]
