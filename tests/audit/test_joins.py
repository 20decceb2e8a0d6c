"""Joins are computed again from the input, and what is wrong with their results is named; a function of two streams is
computed again as far as the order of its input is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Check
from tests.audit.corrupted_job import Corruption, Outs, shown, some_or_every, spoilt, without
from tests.audit.job import FED_AT, Input, Job, Out
from tests.chaos.harness import read
from tests.marks import campaign

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import CoProcessFunction, OutputTag, Pipeline, Windowed, connect, monotonic, session, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    at: int

class Payment(msgspec.Struct):
    user: str
    at: int
    amount: int = 1

class Pair(msgspec.Struct):
    user: str
    at: int
    paid: int

def pair(order, payment):
    return Pair(order.user, order.at, payment.at)

class Counts(CoProcessFunction[str, Order, Payment, Pair]):
    def open(self, ctx):
        self.number = ctx.value_state("number", int, 0)

    def process_left(self, key, value):
        return self.counted(key)

    def process_right(self, key, value):
        return self.counted(key)

    def counted(self, key):
        self.number.put(self.number.get() + 1)
        return [Pair(key, self.number.get(), 0)]

UNPAID, UNORDERED, LONELY = OutputTag("unpaid", Order), OutputTag("unordered", Payment), OutputTag("lonely", Payment)
LATE_ORDERS, LATE_PAYMENTS = OutputTag("late-orders", Order), OutputTag("late-payments", Payment)
pipeline = Pipeline("{name}")
orders, payments = (
    pipeline.source(KafkaSource(topic, value=tp), name=name)
    .with_timestamps(lambda row: {begin} + row.at, watermarks=monotonic())
    .key_by(lambda row: row.user, name=f"by-{{name}}", values=tp)
    for name, topic, tp in (("orders", "{orders}", Order), ("payments", "{payments}", Payment))
)
both = connect(orders, payments)
near = both.interval_join(
    pair, name="near", lower=-0.01, upper=0.02, unmatched_left=UNPAID, unmatched_right=UNORDERED,
    late_left=LATE_ORDERS, late_right=LATE_PAYMENTS)
tumbled = both.window_join(
    tumbling(seconds=0.05), pair, name="windows", unmatched_right=LONELY, late_left=LATE_ORDERS,
    late_right=LATE_PAYMENTS)
streams = {{
    "pairs": near, "unpaid": near.side_output(UNPAID), "unordered": near.side_output(UNORDERED),
    "late-orders": near.side_output(LATE_ORDERS), "late-payments": near.side_output(LATE_PAYMENTS),
    "tumbled": tumbled, "lonely": tumbled.side_output(LONELY),
    "orders-too-late": tumbled.side_output(LATE_ORDERS), "payments-too-late": tumbled.side_output(LATE_PAYMENTS),
    {more}
}}
for sink, topic in {topics}.items():
    streams[sink.partition(" ")[0]].sink(KafkaSink(topic, value=dict, key=lambda row: row.user),
                                         name=sink.replace(" ", "-"))
"""
MORE = """
    "slid": both.window_join(sliding(seconds=0.06, every=0.02), pair, name="slides"),
    "in-session": both.window_join(session(gap=0.02), pair, name="sessions"),
"""
STREAMS = ("pairs", "unpaid", "unordered", "late-orders", "late-payments", "tumbled", "lonely", "orders-too-late",
           "payments-too-late")  # fmt: skip
BEGIN = (FED_AT - 86_400_000) // 1000 * 1000


def row(user: str, at: int) -> Input:
    return len(user) % 2, None, json.dumps({"user": user, "at": at}).encode()


def orders(begin: int, end: int) -> list[Input]:
    """Of ann (partition 1) and carl (partition 0): one each ten milliseconds, but for some."""
    return [row(user, n) for n in range(begin, end, 10) if n % 70 for user in ("ann", "carl")]


def payments(begin: int, end: int) -> list[Input]:
    """Of both, and of eva, who has ordered nothing."""
    paid = [row(user, n + 5) for n in range(begin, end, 10) if n // 10 % 9 < 4 for user in ("ann", "carl")]
    return sorted([*paid, *(row("eva", n) for n in range(begin, end, 40))], key=lambda each: json.loads(each[2])["at"])


def fed(new_job: Callable[..., Job], topic: Callable[..., str], names: tuple[str, ...], **given: Any) -> Any:
    inputs = {"orders": topic(partitions=2), "payments": topic(partitions=2)}
    given = {"begin": BEGIN, "more": "", **inputs, "topics": {name: topic() for name in names}, **given}
    return new_job(PIPELINE, **given), given


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
def test_what_joins_make_is_computed_again(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, engine: str
) -> None:
    job, given = fed(new_job, topic, (*STREAMS, "slid", "in-session"), more=MORE)
    job.feed(given["orders"], orders(0, 700))
    job.feed(given["payments"], payments(0, 700))
    job.run("--engine", engine)

    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), shown(verdict)
    assert "not" not in verdict.headline, verdict.headline
    assert verdict.facts.outputs == verdict.facts.expected
    empty = {name for name, at in given["topics"].items() if not read(job.bootstrap, at)}
    assert empty == {"late-orders", "late-payments", "orders-too-late", "payments-too-late"}


@pytest.mark.campaign
def test_a_function_of_two_streams_is_computed_again_as_far_as_its_order_is_known(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job, given = fed(new_job, topic, (*STREAMS, "counts"), more='"counts": both.process(Counts, name="counting"),')
    job.feed(given["orders"], orders(0, 200))
    job.feed(given["payments"], payments(0, 200))
    job.run(workers=2, failpoints="commit.before=kill@1")

    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), shown(verdict)
    assert "outputs of sink counts not compared" in verdict.headline
    assert len(read(job.bootstrap, given["topics"]["counts"])) == len(orders(0, 200)) + len(payments(0, 200))


# ---------------------------------------------------------------- what is wrong is named


def said(out: Out) -> Any:
    return json.loads(out.value or b"")


def at(outs: Outs, **fields: object) -> int:
    """Which output has these fields."""
    return next(n for n, each in enumerate(outs) if fields.items() <= said(each).items())


def twice(outs: Outs) -> Outs:
    return [*outs, outs[at(outs, **PAIR)]]


def missing(outs: Outs) -> Outs:
    return without(outs, at(outs, **PAIR))


def other(outs: Outs) -> Outs:
    """A pair with another payment than its own."""
    index = at(outs, **PAIR)
    changed = json.dumps({**said(outs[index]), "paid": 999}).encode()
    return [
        *outs[:index],
        Out(outs[index].key, changed, outs[index].text, 0, (), outs[index].timestamp),
        *outs[index + 1 :],
    ]


def moved(outs: Outs, index: int, at_ms: int, value: dict[str, Any]) -> Outs:
    """One output more, as if it were of another time."""
    of = outs[index]
    where = (of.text or "").split("/")
    before = int(where[4])
    where[4] = str(BEGIN + at_ms)
    assert before > BEGIN
    return [*outs, Out(of.key, json.dumps(value).encode(), "/".join(where), 0, (), BEGIN + at_ms)]


def though_matched(outs: Outs) -> Outs:
    """The order of 100 is paid at 105, and reported at the end of its interval all the same."""
    return moved(outs, at(outs, user="ann"), 120, {"user": "ann", "at": 100})


def late_one_paired(outs: Outs) -> Outs:
    """The order of 101 came too late."""
    return moved(outs, at(outs, user="ann"), 107, {"user": "ann", "at": 101, "paid": 107})


def unreported(outs: Outs) -> Outs:
    return without(outs, 0)


PAIR = {"user": "ann", "at": 100, "paid": 105}
CORRUPTIONS = (
    *(Corruption(f"{name} right", list, {}) for name in STREAMS),
    Corruption("pairs twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("pairs missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("pairs other", other, {Check.WRONG_VALUE: 1}),
    Corruption("pairs late-one", late_one_paired, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("unpaid though-matched", though_matched, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("unpaid unreported", unreported, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("unordered unreported", unreported, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("tumbled twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("tumbled missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("lonely unreported", unreported, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
)
SOME = (
    *(f"{name} right" for name in STREAMS if name not in ("pairs", "unpaid", "tumbled", "lonely")),
    "pairs other",
    "pairs late-one",
    "unpaid though-matched",
    "tumbled twice",
    "lonely unreported",
)
"""One of each way to be wrong, and every stream: what an audit takes grows with its sinks."""


@some_or_every(CORRUPTIONS, SOME)
def test_each_corruption_of_joins_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = tuple(corruption.sink for corruption in corruptions)
    job, given = fed(new_job, topic, names)
    job.feed(given["orders"], orders(0, 400))
    job.feed(given["payments"], payments(0, 400))
    job.run(workers=2, failpoints="commit.before=kill@1")
    job.feed(given["orders"], [row("ann", 101), row("carl", 102), *orders(400, 700)])
    job.feed(given["payments"], [row("ann", 103), *payments(400, 700)])
    job.run(workers=3, failpoints="timers.fired=kill@2")

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    assert {sink.partition(" ")[0] for sink, outs in run.outs.items() if outs} == {*STREAMS}
    run.expect_named()
    assert "not recomputed" not in run.verdict.headline
