"""Rows that a job called late though they were in time are found: by the results that they are missing from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check
from kafka_eos.core.provenance import HEADER
from tests.audit.job import FED_AT, Job, Out
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
from kafka_eos import OutputTag, Pipeline, Windowed, bounded, tumbling
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

LATE = OutputTag("late", int)

def add(total, at):
    return total + 1

pipeline = Pipeline("{name}")
windows = pipeline.source(KafkaSource("{input}", value=int), name="times", on_error=dead_letter("{letters}")) \\
    .with_timestamps(lambda at: {begin} + at, watermarks=bounded(0.02)).key_by(lambda at: "all")
streams = [
    windows.window(tumbling(seconds=0.05), late=LATE).fold(name="aside", init=int, step=add, state=int),
    windows.window(tumbling(seconds=0.05)).fold(name="refused", init=int, step=add, state=int),
    windows.window(tumbling(seconds=0.05), lateness=1).fold(name="again", init=int, step=add, state=int),
]
for stream, name, topic in zip(streams, ("aside", "refused", "again"), {outputs}):
    stream.sink(KafkaSink(topic, value=Windowed[str, int], key=lambda found: found.key), name="to-" + name)
streams[0].side_output(LATE).sink(KafkaSink("{late}", value=int), name="late")
"""
BEGIN = FED_AT - 86_400_000
FIRST, SECOND = (0, 10, 30, 55, 60, 80, 120), (5, 160, 230, 350)
"""Times of the input of two runs. When the second one begins event time is at 99, so the row at 5 is late."""
IN_TIME, LATE = FIRST.index(60), len(FIRST)
"""Offsets of a row of the window from 50 to 100, and of the late one."""


@pytest.mark.campaign
def test_a_row_that_is_called_late_though_it_was_in_time_is_missing_from_its_window(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    shared: dict[str, Any] = {"input": topic(), "begin": BEGIN}
    given = {"letters": topic(), "late": topic(), "outputs": [topic() for _ in range(3)]}
    job = new_job(PIPELINE, **shared, **given)
    for times in (FIRST, SECOND):
        job.feed(shared["input"], [(0, None, b"%d" % at) for at in times])
        job.run()

    aside, refused, again, letters, late = (
        [out(message) for message in read(job.bootstrap, name)]
        for name in (*given["outputs"], given["letters"], given["late"])
    )
    spoilt = {"letters": topic(), "late": topic(), "outputs": [topic() for _ in range(3)]}
    judged = new_job(PIPELINE, **shared, **spoilt)
    judged.name = job.name
    judged.app.write_text(PIPELINE.format(name=job.name, **shared, **spoilt))
    (update,) = (found for found in again if f"/0/{LATE}/" in (found.text or ""))
    judged.write_all(
        {
            spoilt["late"]: [called_late(late[0]), *late],
            spoilt["letters"]: [called_late(letters[0]), *letters],
            spoilt["outputs"][0]: without_the_row(aside),
            spoilt["outputs"][1]: without_the_row(refused),
            spoilt["outputs"][2]: [*without_the_row(again), replace(called_late(update), value=result(100, 3))],
        }
    )

    wrong = next(f for f in judged.audit(spark).findings if f.check is Check.WRONG_VALUE)

    assert wrong.by_sink == {"to-aside": 1, "to-refused": 1, "to-again": 1}


def out(message: Any) -> Out:
    headers = dict(message.headers())
    text = headers.pop(HEADER).decode()
    key = None if message.key() is None else message.key().decode()
    return Out(key, message.value(), text, 0, tuple(headers.items()), message.timestamp()[1])


def result(end: int, count: int) -> bytes:
    return b'{"key":"all","window":{"start":%d,"end":%d},"value":%d}' % (BEGIN + end - 50, BEGIN + end, count)


def called_late(told: Out) -> Out:
    """What tells that a row is late tells it of the one that is in time."""
    value = b"60" if told.value == b"5" else told.value
    return replace(told, value=value, text=(told.text or "").replace(f"/0/{LATE}/", f"/0/{IN_TIME}/"))


def without_the_row(outs: list[Out]) -> list[Out]:
    assert [found.value for found in outs].count(result(100, 3)) == 1, outs
    return [replace(found, value=result(100, 2)) if found.value == result(100, 3) else found for found in outs]
