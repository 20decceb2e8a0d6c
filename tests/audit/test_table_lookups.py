"""Joins with tables are computed again from the input, and what is wrong with their outputs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.state import audit_state
from kafka_eos.core.ids import AppRef
from tests.audit.corrupted_job import Corruption, Outs, found, out, shown, some_or_every, spoilt, without
from tests.audit.job import Input, Job, Out
from tests.audit.test_window_corruptions import BEGIN
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import Pipeline, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    id: int

class Rate(msgspec.Struct):
    version: int

class Rated(msgspec.Struct):
    user: str
    id: int
    version: int

def rated(order, rate):
    return Rated(order.user, order.id, -1 if rate is None else rate.version)

def dated(order):
    return {begin} + order.id

def since(record):
    # Versions 1, 2 and 3 are of the times 0, 100 and 200.
    return {begin} + (250 if record.value is None else 100 * record.value.version - 100)

pipeline = Pipeline("{name}")
read = pipeline.source(KafkaSource("{orders}", value=Order), name="orders")
orders = read.key_by(lambda order: order.user)
rates = pipeline.table(KafkaSource.records("{rates}", key=str, value=Rate), name="rates")

def then():
    versions = pipeline.table(KafkaSource.records("{versions}", key=str, value=Rate), name="versions")
    dated_orders = read.with_timestamps(dated, watermarks=monotonic()).key_by(lambda order: order.user)
    known = versions.with_timestamps(since, watermarks=monotonic())
    return dated_orders.left_join_as_of(known, rated, name="then-join")

made = {{
    "inner": lambda: orders.join(rates, rated, name="inner-join"),
    "outer": lambda: orders.left_join(rates, rated, name="outer-join"),
    "then": then,
}}
topics = {topics}
streams = {{kind: made[kind]() for kind in sorted({{sink.partition(" ")[0] for sink in topics}})}}
for sink, topic in topics.items():
    streams[sink.partition(" ")[0]].sink(KafkaSink(topic, value=Rated, key=lambda row: row.user),
                                         name=sink.replace(" ", "-"))
"""
USERS = ("ann", "carl", "dora", "eve", "finn", "bob")
"""Of ``eve`` the table has nothing any more, of ``bob`` never anything."""


def orders(begin: int, end: int) -> list[Input]:
    """Of each user in both partitions."""
    return [
        (n % 2, None, json.dumps({"user": user, "id": 10 * n + place}).encode())
        for n in range(begin, end)
        for place, user in enumerate(USERS)
    ]


def rate(user: str, version: int | None) -> Input:
    value = None if version is None else json.dumps({"version": version}).encode()
    return len(user) % 2, user, value  # type: ignore[return-value]


RATES = [*(rate(user, version) for version in (1, 2, 3) for user in USERS[:5]), rate("eve", None)]


def fed(new_job: Callable[..., Job], topic: Callable[..., str], names: tuple[str, ...]) -> tuple[Job, dict[str, Any]]:
    given: dict[str, Any] = {"orders": topic(partitions=2), "begin": BEGIN}
    given["rates"] = topic(partitions=2, config={"cleanup.policy": "compact"})
    # As of a time each of its records counts, so the audit of one that may be compacted compares nothing.
    given["versions"] = topic(partitions=2)
    given["topics"] = {name: topic() for name in names}
    job = new_job(PIPELINE, **given)
    for table in ("rates", "versions"):
        job.feed(given[table], RATES)
    job.feed(given["orders"], orders(0, 30))
    return job, given


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_what_a_table_has_is_computed_again(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, engine: str
) -> None:
    job, _ = fed(new_job, topic, ("inner", "outer"))
    job.run("--engine", engine)

    verdict = job.audit(spark)
    state = audit_state(job.pipeline, job.settings, app=AppRef(job.app, job.name), spark=spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), shown(verdict)
    assert "not" not in verdict.headline, verdict.headline
    assert state.conclusion is Conclusion.PASS and "not" not in state.headline, state.headline
    assert verdict.facts.outputs == verdict.facts.expected == 30 * (4 + 6)


def said(out: Out) -> Any:
    return json.loads(out.value or b"")


def at(outs: Outs, user: str) -> int:
    return next(n for n, each in enumerate(outs) if said(each)["user"] == user and said(each)["id"] >= 100)


def other(user: str, version: int) -> Callable[[Outs], Outs]:
    """A row of the user has met another version."""

    def spoil(outs: Outs) -> Outs:
        index = at(outs, user)
        value = json.dumps({**said(outs[index]), "version": version}, separators=(",", ":")).encode()
        return [*outs[:index], replace(outs[index], value=value), *outs[index + 1 :]]

    return spoil


def twice(outs: Outs) -> Outs:
    return [*outs, outs[at(outs, "ann")]]


def missing(outs: Outs) -> Outs:
    return without(outs, at(outs, "ann"))


def of_nobody(outs: Outs) -> Outs:
    """A row of a user whom the table does not have any more is in the inner join."""
    index = at(outs, "dora")
    text = (outs[index].text or "").split("/")
    text[4] = str(int(text[4]) + 1)
    told = {**said(outs[index]), "user": "eve", "id": said(outs[index])["id"] + 1}
    return [*outs, replace(outs[index], key="eve", value=json.dumps(told).encode(), text="/".join(text))]


CORRUPTIONS = (
    Corruption("inner right", list, {}),
    Corruption("outer right", list, {}),
    Corruption("inner twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("inner missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("inner stale", other("ann", 2), {Check.WRONG_VALUE: 1}),
    Corruption("inner of-nobody", of_nobody, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("outer stale", other("dora", 1), {Check.WRONG_VALUE: 1}),
    Corruption("outer without", other("ann", -1), {Check.WRONG_VALUE: 1}),
    Corruption("outer though-gone", other("eve", 3), {Check.WRONG_VALUE: 1}),
    Corruption("then right", list, {}),
    Corruption("then stale", other("ann", 1), {Check.WRONG_VALUE: 1}),
    Corruption("then early", other("ann", 3), {Check.WRONG_VALUE: 1}),
    Corruption("then without", other("dora", -1), {Check.WRONG_VALUE: 1}),
    Corruption("then twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("then missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
)


SOME = (
    "inner right",
    "outer right",
    "then right",
    "inner twice",
    "inner missing",
    "inner of-nobody",
    "outer stale",
    "outer without",
    "then early",
)
"""One of each kind of join, and of each way to be wrong."""


@pytest.mark.campaign
@some_or_every(CORRUPTIONS, SOME)
def test_each_corruption_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = tuple(corruption.sink for corruption in corruptions)
    job, given = fed(new_job, topic, names)
    job.run(workers=2, failpoints="commit.before=kill@1")
    job.feed(given["orders"], orders(30, 50))
    job.run(workers=3)

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    run.expect_named()
    assert not run.verdict.facts.uncompared


@pytest.mark.campaign
def test_either_row_of_a_key_in_two_partitions_of_a_table_is_right(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """The job has kept the one that it read last, and nobody knows which that was."""
    names = ("outer first", "outer second", "outer stale")
    job, given = fed(new_job, topic, names)
    job.feed(given["rates"], [(partition, "bob", b'{"version": %d}' % partition) for partition in (0, 1)])
    job.feed(given["orders"], orders(100, 101))
    job.run(workers=2)

    outs = {name: [out(message) for message in read(job.bootstrap, given["topics"][name])] for name in names}
    topics = {name: topic() for name in names}
    again = new_job(PIPELINE, **{**given, "topics": topics})
    again.name = job.name
    again.app.write_text(PIPELINE.format(name=job.name, **{**given, "topics": topics}))
    spoil = {
        "inner right": list,
        "outer first": other("bob", 0),
        "outer second": other("bob", 1),
        "outer stale": other("ann", 2),
    }
    again.write_all({topics[name]: spoil[name](outs[name]) for name in names})
    verdict = again.audit(spark)

    assert found(verdict) == {"outer-stale": {Check.WRONG_VALUE: 1}}, shown(verdict)
    assert {left.sink for left in verdict.facts.uncompared} == {name.replace(" ", "-") for name in names}


@pytest.mark.campaign
def test_what_looks_into_a_table_that_has_changed_is_not_recomputed(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    job, given = fed(new_job, topic, ("inner", "outer"))
    job.run(workers=2)
    job.feed(given["rates"], [rate("carl", 4), rate("finn", None), rate("bob", 1)])
    job.feed(given["orders"], orders(30, 40))
    job.run(workers=2)

    verdict = job.audit(spark)

    assert set(verdict.facts.not_recomputed) == {"inner", "outer"}
    assert not verdict.findings, shown(verdict)
