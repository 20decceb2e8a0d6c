"""Jobs that really ran, with one worker and with three, whose plans the recompute cannot simply follow row by row:
folds in two phases, loops, broadcasts, dead letters from behind exchanges. Right outputs pass; a spoilt one is found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kafka_eos.audit import Check, Conclusion, Verdict
from tests.audit.job import Job
from tests.audit.job_runs import Ran, fed_at, last_of_a_key
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

HEAD = """
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.plan.process_functions import ProcessFunction

class Order(msgspec.Struct):
    user: str
    n: int
    seen: int = 0

class Shown(msgspec.Struct):
    user: str
    count: int
    total: int

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=20)
orders = pipeline.source(KafkaSource("{input}", value=Order), name="orders", on_error=dead_letter("{letters}"))
def sink(stream, tp):
    stream.sink(KafkaSink("{output}", value=tp, key=lambda row: row.user), name="out")
"""
SUMS = """
def step(acc, order):
    if order.n == 7:
        raise ValueError("seven")
    return [acc[0] + 1, acc[1] + order.n]

sink(orders.key_by(lambda order: order.user).fold(name="sum", init=lambda: [0, 0], step=step,
     merge=lambda a, b: [a[0] + b[0], a[1] + b[1]], emit=lambda user, acc: Shown(user, *acc)), Shown)
"""
ROUNDS = """
class Count(ProcessFunction):
    def open(self, ctx):
        self.total = ctx.value_state("total", int, 0)

    def process(self, key, order):
        self.total.put(self.total.get() + order.n)
        last = order.seen == 2
        return [Order(key, self.total.get() if last else order.n, order.seen + 1)]

def body(rows):
    counted = rows.key_by(lambda row: row.user, values=Order).process(Count, name="count")
    return counted.filter(lambda row: row.seen < 3), counted.filter(lambda row: row.seen == 3)

sink(orders.iterate(body, name="rounds", values=Order), Order)
"""
PLAIN_ROUNDS = """
def body(rows):
    split = rows.flat_map(lambda row: [Order(row.user, row.n, row.seen + 1)] * (2 if row.n % 2 else 1))
    return split.filter(lambda row: row.seen < 3), split.filter(lambda row: row.seen == 3)

sink(orders.iterate(body, name="rounds", values=Order).map(lambda row: row), Order)
"""
COPIES = """
sink(orders.broadcast(name="everywhere", values=Order).map(lambda order: Order(order.user, order.n + 1)), Order)
"""
LETTERS = """
def refusing(total, order):
    if order.n % 10 == 3:
        raise ValueError("three")
    return Shown(order.user, total.count + 1, total.total + order.n)

items = orders.flat_map(lambda order: [Order(order.user + str(i), order.n) for i in range(order.n % 3 + 1)])
sink(items.key_by(lambda order: order.user, values=Order).fold(name="total", init=lambda: Shown("", 0, 0),
     step=refusing, emit=lambda user, total: total, state=Shown), Shown)
"""
ORDERS = 60


@pytest.fixture
def ran(bootstrap: str, tmp_path: Path, topic: Callable[..., str]) -> Callable[[str, int], Ran]:
    def run(plan: str, workers: int) -> Ran:
        name = f"shape-{uuid4().hex[:8]}"
        source, output, letters = topic(partitions=3), topic(partitions=2), topic()
        text = HEAD + plan
        for role, value in (("{name}", name), ("{input}", source), ("{letters}", letters)):
            text = text.replace(role, value)
        app = tmp_path / f"{name.replace('-', '_')}.py"
        app.write_text(text.replace("{output}", output))
        job = Job(bootstrap, tmp_path, app, name)
        producer = in_order(bootstrap)
        for i in range(ORDERS):
            order = b"bad" if i == 20 else b'{"user":"u%d","n":%d}' % (i % 4, i % 11)
            producer.produce(source, order, partition=i % 3, timestamp=fed_at(i % 3, i // 3))
        assert producer.flush(PATIENCE) == 0
        job.run(workers=workers)
        return Ran(job, source, output, topic, text)

    return run


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def said(verdict: Verdict) -> str:
    return " ".join(verdict.facts.notes)


workers = pytest.mark.parametrize("workers", [1, 3])


@workers
@pytest.mark.campaign
def test_the_last_sums_of_a_fold_in_two_phases_are_compared(ran: Any, spark: Any, workers: int) -> None:
    run = ran(SUMS, workers)

    verdict = run.audit(spark)
    wrong = run.spoilt(spark, lambda rows: [
        (*row[:2], row[2].replace(b'"count":', b'"count":9'), row[3]) if i == last_of_a_key(rows) else row
        for i, row in enumerate(rows)
    ])  # fmt: skip
    lost = run.spoilt(spark, lambda rows: [row for i, row in enumerate(rows) if i != last_of_a_key(rows)])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "merge=" in said(verdict)
    assert {Check.WRONG_TOTAL: 1, Check.WRONG_VALUE: 1} == found(wrong), wrong.findings
    assert found(lost).keys() >= {Check.LOST, Check.WRONG_COUNT}, lost.findings


@workers
@pytest.mark.parametrize("plan", [ROUNDS, PLAIN_ROUNDS], ids=["with-state", "without"])
@pytest.mark.campaign
def test_what_leaves_a_loop_is_neither_lost_nor_doubled(ran: Any, spark: Any, workers: int, plan: str) -> None:
    run = ran(plan, workers)

    verdict = run.audit(spark)
    spoilt = run.spoilt(spark, lambda rows: [*rows[1:], rows[5]])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert verdict.facts.expected == verdict.facts.outputs
    assert {Check.LOST: 1, Check.DUPLICATE: 1}.items() <= found(spoilt).items(), spoilt.findings


@workers
@pytest.mark.campaign
def test_every_worker_has_a_copy_of_what_is_broadcast(ran: Any, spark: Any, workers: int) -> None:
    run = ran(COPIES, workers)

    verdict = run.audit(spark)
    spoilt = run.spoilt(spark, lambda rows: [*rows[1:], rows[5]])

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert (workers > 1) == ("broadcast" in said(verdict))
    assert {Check.DUPLICATE: 1, Check.LOST: 1}.items() <= found(spoilt).items(), spoilt.findings
    assert workers * (ORDERS - 1) + 1 == verdict.facts.expected  # and the dead letter


@workers
@pytest.mark.campaign
def test_dead_letters_from_behind_an_exchange_are_foretold_by_name(ran: Any, spark: Any, workers: int) -> None:
    verdict = ran(LETTERS, workers).audit(spark)

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings


PLAIN_SUMS = """
from pathlib import Path
from kafka_eos.connectors.files import FileSink

sink(orders, Order)
orders.key_by(lambda order: order.user).fold(
    name="sum", init=lambda: [0, 0], step=lambda acc, order: [acc[0] + 1, acc[1] + order.n],
    merge=lambda a, b: [a[0] + b[0], a[1] + b[1]], emit=lambda user, acc: Shown(user, *acc),
).sink(FileSink(str(Path(__file__).parent / "plain"), value=Shown), name="plain")
"""


@pytest.mark.campaign
def test_a_sink_of_which_nothing_can_be_checked_is_said_to_be_not_audited(ran: Any, spark: Any) -> None:
    """What it writes depends on where epochs ended, and does not say which epoch, or record, it is from."""
    verdict = ran(PLAIN_SUMS, 1).audit(spark)

    assert (Conclusion.PARTIAL, {}) == (verdict.conclusion, found(verdict)), verdict.findings
    assert ["plain"] == [*verdict.facts.not_audited]
    assert "sink plain not audited" in verdict.headline
    assert "plain" not in verdict.facts.not_recomputed
    assert "Sink plain" not in said(verdict)
