"""A fold with merge= has one output for each key and epoch: each of them is compared, not only the last of a key."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kafka_eos.abc.codec import Codec
from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.codecs import AvroCodec, JsonCodec
from kafka_eos.storage import object_names as paths
from tests.audit.job import Job
from tests.audit.job_runs import Ran, Rows, fed_at, told_by
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

SUMS = """
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    n: int

class Shown(msgspec.Struct):
    user: str
    total: int

pipeline = Pipeline("{name}")
orders = pipeline.source(KafkaSource("{input}", value=Order), name="orders")
sums = orders.key_by(lambda order: order.user).fold(
    name="sum", init=lambda: 0, step=lambda total, order: total + order.n, merge=lambda one, other: one + other,
    emit=Shown)
sums.sink(KafkaSink("{output}", value=Shown, key=lambda row: row.user), name="out")
"""
PARTS = """
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    n: int

class Shown(msgspec.Struct):
    user: str
    total: float

pipeline = Pipeline("{name}")
orders = pipeline.source(KafkaSource("{input}", value=Order), name="orders")
sums = orders.key_by(lambda order: order.user).fold(
    name="sum", init=lambda: 0.0, step=lambda total, order: total + order.n / 10, merge=lambda one, other: one + other,
    emit=Shown)
sums.sink(KafkaSink("{output}", value=Shown, key=lambda row: row.user), name="out")
"""
BINARY = PARTS.replace("import msgspec", "import msgspec\nfrom kafka_eos.codecs import AvroCodec").replace(
    "value=Shown", "value=AvroCodec(Shown)"
)
ROUNDS, USERS = 3, 4
ONE_EPOCH = ["--checkpoint-interval", "10s"]
"""All that is there is one epoch."""


@pytest.fixture
def ran(new_job: Callable[..., Job], topic: Callable[..., str], engine: str, program: str) -> Ran:
    """A job that was started for each round, in which every user has an order at the same offset of both partitions."""
    source, output = topic(partitions=2), topic(partitions=2)
    job = new_job(program, input=source, output=output)
    for start in range(0, ROUNDS * USERS, USERS):
        producer = in_order(job.bootstrap)
        for partition, user in product((0, 1), range(USERS)):
            offset = start + user
            order = b'{"user":"u%d","n":%d}' % (user, 1 + offset + partition)
            producer.produce(source, order, partition=partition, timestamp=fed_at(partition, offset))
        assert producer.flush(PATIENCE) == 0
        job.run("--engine", engine, *ONE_EPOCH, workers=2)
    return Ran(job, source, output, topic, job.app.read_text().replace(output, "{output}"))


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def of_a_key(rows: Rows, user: int) -> list[int]:
    """Where the outputs of this user are, in their order."""
    mine = [i for i, row in enumerate(rows) if row[1] == b"u%d" % user]
    return sorted(mine, key=lambda i: told_by(rows[i][3]).update or 0)


def spoil(rows: Rows) -> Rows:
    """Of one user the second sum is that of before, another's is lost, and a third has another output of the last
    epoch, numbered as its next, of another record.
    """
    (before, stale, _), (_, lost, _), (*_, last) = (of_a_key(rows, user) for user in range(3))
    said = told_by(rows[last][3])
    again = str(replace(said, partition=1 - said.partition, update=(said.update or 0) + 1))
    left = [(*row[:2], rows[before if i == stale else i][2], row[3]) for i, row in enumerate(rows) if i != lost]
    return [*left, (*rows[last][:3], [("kafka_eos", again.encode())])]


@pytest.fixture
def engine() -> str:
    return "embedded"


@pytest.fixture
def program() -> str:
    return SUMS


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
def test_each_sum_is_compared_with_what_its_key_had_at_the_end_of_the_epoch(ran: Ran, spark: Any) -> None:
    """And with nothing else: an epoch has one sum of a key."""
    verdict, wrong = ran.audit(spark), ran.spoilt(spark, spoil)

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.findings
    assert "not compared" not in verdict.headline
    once = dict.fromkeys((Check.WRONG_VALUE, Check.LOST, Check.UPDATE_GAP, Check.UNEXPECTED), 1)
    # Of the second epoch one is missing, of the last there is one too many.
    assert {**once, Check.WRONG_COUNT: 2} == found(wrong), wrong.findings
    (more,) = (finding for finding in wrong.findings if finding.check is Check.UNEXPECTED)
    assert "has another output of epoch" in more.examples[0].detail


@pytest.mark.campaign
def test_without_the_ledger_the_headline_says_how_many_sums_were_not_compared(ran: Ran, spark: Any) -> None:
    storage = ran.job.storage
    (storage.root / paths.LEDGER).unlink()
    for name in sorted(storage.list(paths.MANIFESTS))[:-1]:
        storage.delete(name)

    verdict = ran.audit(spark)

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.headline
    assert "no record shows which input they sum up" in verdict.headline


class Shown(msgspec.Struct):
    user: str
    total: float


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("program", "codec"), [(PARTS, JsonCodec(Shown)), (BINARY, AvroCodec(Shown))], ids=["JSON", "Avro"]
)
def test_floats_may_differ_in_their_last_digits(ran: Ran, spark: Any, codec: Codec[Shown]) -> None:
    """The parts of a sum are added in the order in which they come."""

    def with_totals(change: Callable[[float], float]) -> Callable[[Rows], Rows]:
        def changed(rows: Rows) -> Rows:
            return [(*row[:2], told(row, change), row[3]) for row in rows]

        return changed

    def told(row: Any, change: Callable[[float], float]) -> bytes:
        shown = codec.decode(row[2])
        return codec.encode(Shown(shown.user, change(shown.total)))

    verdict = ran.spoilt(spark, with_totals(lambda total: math.nextafter(total, math.inf)))
    near = ran.spoilt(spark, with_totals(lambda total: total * (1 + 1e-11)))
    wrong = ran.spoilt(spark, with_totals(lambda total: total * (1 + 1e-8)))

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    # No order of so few additions explains the difference.
    assert (Conclusion.PARTIAL, {}) == (near.conclusion, found(near)), near.headline
    assert f"floats of {ROUNDS * USERS} outputs of sink out not compared: they differ by more" in near.headline
    assert {Check.WRONG_VALUE: ROUNDS * USERS, Check.WRONG_TOTAL: USERS} == found(wrong), wrong.findings
