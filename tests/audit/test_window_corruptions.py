"""What is wrong with the results of windows is found and named, and nothing else is.

A job runs through kills, with late rows and with other numbers of workers. Then its outputs are written once more, into
topics of a sink for each corruption, and one audit judges them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check
from tests.audit.corrupted_job import Corruption, Outs, Spoil, spoilt, without
from tests.audit.job import FED_AT, Job, Out
from tests.marks import campaign

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import OutputTag, Pipeline, Windowed, monotonic, session, sliding, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

class Sale(msgspec.Struct):
    user: str
    at: int
    amount: int

LATE, LATER = OutputTag("late", Sale), OutputTag("later", Sale)

def add(total, sale):
    return total + sale.amount

def plus(one, other):
    return one + other

pipeline = Pipeline("{name}")
by_user = pipeline.source(KafkaSource("{input}", value=Sale), name="sales", on_error=dead_letter("{letters}")) \\
    .with_timestamps(lambda sale: {begin} + sale.at, watermarks=monotonic()).key_by(lambda sale: sale.user)
streams = {{
    "totals": by_user.window(tumbling(seconds=0.05), late=LATE).fold(name="totals", init=int, step=add),
    "strict": by_user.window(tumbling(seconds=0.05)).fold(name="strict", init=int, step=add),
    "patient": by_user.window(tumbling(seconds=0.05), lateness=0.06, late=LATER).fold(
        name="patient", init=int, step=add),
    "sliding": by_user.window(sliding(seconds=0.1, every=0.04)).fold(name="sliding", init=int, step=add, merge=plus),
    "sessions": by_user.window(session(gap=0.03)).fold(name="sessions", init=int, step=add, merge=plus),
}}
for sink, topic in {topics}.items():
    streams[sink.partition(" ")[0]].sink(
        KafkaSink(topic, value=Windowed[str, int], key=lambda found: found.key), name=sink.replace(" ", "-"))
streams["totals"].side_output(LATE).sink(KafkaSink("{late}", value=Sale), name="late")
streams["patient"].side_output(LATER).sink(KafkaSink("{later}", value=Sale), name="later")
"""
BEGIN = (FED_AT - 86_400_000) // 1000 * 1000


def at(outs: Outs, end: int, key: str = "ann", value: int | None = None, of: str = "") -> int:
    """Which output is the result of the window that ends there. ``of``: the topic that it names as its origin."""
    told = enumerate(map(said, outs))
    results = [n for n, (k, window, v) in told if (k, window[1]) == (key, end) and value in (None, v)]
    return next(n for n in results if not of or f"/{of}/" in (outs[n].text or ""))


def said(out: Out) -> tuple[str, tuple[int, int], int]:
    told = json.loads(out.value or b"")
    return told["key"], (told["window"]["start"] - BEGIN, told["window"]["end"] - BEGIN), told["value"]


def changed(out: Out, *, start: int | None = None, end: int | None = None, more: int = 0, renamed: bool = False) -> Out:
    """Another window or value; ``renamed``: the provenance tells of the other end, too."""
    key, (first, last), value = said(out)
    window = {"start": BEGIN + (first if start is None else start), "end": BEGIN + (last if end is None else end)}
    text, time = out.text or "", out.timestamp
    if renamed and end is not None:
        text, time = text.replace(str(BEGIN + last - 1), str(BEGIN + end - 1)), BEGIN + end - 1
    data = json.dumps({"key": key, "window": window, "value": value + more}, separators=(",", ":")).encode()
    return replace(out, value=data, text=text, timestamp=time)


def twice(outs: Outs) -> Outs:
    return [*outs, outs[at(outs, 100)]]


def missing(outs: Outs) -> Outs:
    return without(outs, at(outs, 100))


def other(until: int, which: Mapping[str, Any] | None = None, **changes: Any) -> Spoil:
    """The result of the window that ends there is another one. ``which``: see ``at``."""

    def spoil(outs: Outs) -> Outs:
        index = at(outs, until, **which or {})
        return [*outs[:index], changed(outs[index], **changes), *outs[index + 1 :]]

    return spoil


def split(outs: Outs) -> Outs:
    """The session in two: its first row, and the rest."""
    index = at(outs, SESSION_END)
    first = changed(outs[index], end=SESSION + 30, renamed=True, more=1 - said(outs[index])[2])
    return [*outs[:index], first, changed(outs[index], start=SESSION + 10, more=-1), *outs[index + 1 :]]


def early(outs: Outs) -> Outs:
    """A window that is not over has a result."""
    return [*outs, changed(outs[at(outs, 100)], start=700, end=750, renamed=True)]


def no_update(outs: Outs) -> Outs:
    return without(outs, at(outs, 350, value=PATIENT[1]))


SESSION, SESSION_END = 0, 80
"""The first session of ann."""
PATIENT = (20, 120, 1120)
"""What the window of ann until 350 has at first, and then with each row that came when it was over."""
CORRUPTIONS = (
    Corruption("totals right", list, {}),
    Corruption("strict right", list, {}),
    Corruption("patient right", list, {}),
    Corruption("sliding right", list, {}),
    Corruption("sessions right", list, {}),
    Corruption("totals twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("totals missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("totals late-row-counted", other(50, more=1000), {Check.WRONG_VALUE: 1}),
    Corruption("strict late-row-counted", other(50, more=1000), {Check.WRONG_VALUE: 1}),
    Corruption("sliding pane-lost", other(180, more=-4), {Check.WRONG_VALUE: 1}),
    Corruption("totals wrong-end", other(100, end=150), {Check.WRONG_VALUE: 1}),
    Corruption("totals wrong-name", other(100, end=120, renamed=True), {Check.LOST: 1, Check.UNEXPECTED: 1}),
    Corruption("totals too-early", early, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("sessions split", split, {Check.UNEXPECTED: 1, Check.WRONG_VALUE: 1, Check.WRONG_COUNT: 1}),
    Corruption("sessions other-end", other(80, end=60, renamed=True), {Check.LOST: 1, Check.UNEXPECTED: 1}),
    Corruption("patient no-update", no_update, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("patient wrong-update", other(350, more=1), {Check.WRONG_VALUE: 1}),
)

SOME = (
    "totals right",
    "sessions right",
    "patient right",
    "strict late-row-counted",
    "sliding pane-lost",
    "totals wrong-name",
    "totals too-early",
    "sessions split",
    "patient no-update",
)
"""One of each kind of window, and of each way to be wrong: what an audit takes grows with its sinks."""


def sale(user: str, at: int, amount: int) -> tuple[int, str | None, bytes]:
    return len(user) % 2, None, json.dumps({"user": user, "at": at, "amount": amount}).encode()


def regular(begin: int, end: int) -> list[tuple[int, str | None, bytes]]:
    """A sale each ten milliseconds for four, and then none for six, of ann (partition 1) and of carl (partition 0)."""
    return [sale(user, n, 4) for n in range(begin, end, 10) if n // 10 % 10 < 6 for user in ("ann", "carl")]


@pytest.mark.parametrize(
    "corruptions",
    [pytest.param(tuple(c for c in CORRUPTIONS if c.sink in SOME), id="some"), campaign(CORRUPTIONS, named="every")],
)
def test_each_corruption_of_windows_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = [corruption.sink for corruption in corruptions]
    shared = {"letters": topic(), "late": topic(), "later": topic()}
    topics = {name: topic() for name in names}
    given: dict[str, Any] = {**shared, "input": topic(partitions=2), "topics": topics, "begin": BEGIN}
    job = new_job(PIPELINE, **given)
    job.feed(given["input"], regular(0, 360))
    job.run(workers=2, failpoints="commit.before=kill@1")
    late = [sale("ann", 20, 1000), sale("ann", 345, 100), sale("carl", 21, 1000), sale("ann", 346, 1000)]
    job.feed(given["input"], [*late, *regular(400, 660)])
    job.run(workers=3, failpoints="timers.fired=kill@2")

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    run.expect_named()
