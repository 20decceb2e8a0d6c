"""What is behind broadcast state is computed again, with the rules that the ledger says were read by then: a rule that
was applied too early, and one that is stale, are named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check
from kafka_eos.core.ids import SplitId
from tests.audit.corrupted_job import Corruption, Outs, found, shown, some_or_every, spoilt, without
from tests.audit.job import Ends, Input, Job, Out, epoch
from tests.audit.job import out as made
from tests.chaos.harness import read
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import BroadcastProcessFunction, KeyedBroadcastProcessFunction, Pipeline, connect
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    id: int

class Rule(msgspec.Struct):
    version: int

class Ruled(msgspec.Struct):
    user: str
    id: int
    version: int

def ruled(rules, order):
    rule = rules.get(order.user)
    return [] if rule is None else [Ruled(order.user, order.id, rule.version)]

class Plain(BroadcastProcessFunction):
    def open(self, ctx):
        self.rules = ctx.broadcast_state("rules", str, Rule)

    def process(self, order):
        return ruled(self.rules, order)

    def process_broadcast(self, change):
        self.rules.put(change.key, change.value)

class Keyed(KeyedBroadcastProcessFunction):
    open, process_broadcast = Plain.open, Plain.process_broadcast

    def process(self, key, order):
        return ruled(self.rules, order)

class Counted(Keyed):
    def open(self, ctx):
        super().open(ctx)
        self.count = ctx.value_state("count", int, 0)

pipeline = Pipeline("{name}")
orders = pipeline.source(KafkaSource("{orders}", value=Order), name="orders")

def by_user(name):
    return orders.key_by(lambda order: order.user, name=name)

rules = pipeline.table(KafkaSource.records("{rules}", key=str, value=Rule), name="rules").broadcast()
made = {{
    "plain": lambda: connect(orders, rules).process(Plain, name="plain-rules"),
    "keyed": lambda: connect(by_user("keys"), rules).process(Keyed, name="keyed-rules"),
    "counted": lambda: connect(by_user("counts"), rules).process(Counted, name="counted-rules"),
}}
topics = {topics}
streams = {{kind: made[kind]() for kind in sorted({{sink.partition(" ")[0] for sink in topics}})}}
for sink, topic in topics.items():
    streams[sink.partition(" ")[0]].sink(KafkaSink(topic, value=Ruled, key=lambda row: row.user),
                                         name=sink.replace(" ", "-"))
"""
APART = (
    PIPELINE
    + """
from kafka_eos.connectors.kafka import dead_letter

others = pipeline.table(KafkaSource.records("{others}", key=str, value=Rule), name="others").broadcast()
connect(orders, others).process(Plain, name="other-rules").sink(KafkaSink("{other}", value=Ruled), name="other")
beside = pipeline.source(KafkaSource("{beside}", value=Order), name="beside", on_error=dead_letter("{letters}"))
beside.sink(KafkaSink("{copies}", value=Order), name="copies")
"""
)
USERS = ("ann", "carl", "dora", "bob")
"""Of ``bob`` there is never a rule, of ``dora`` there is none any more in the end."""
FIRST = {"ann": 1, "carl": 1, "dora": 1}
SECOND = {"ann": 2, "dora": None}


def orders(begin: int, end: int) -> list[Input]:
    """Of each user in both partitions."""
    return [
        (n % 2, None, json.dumps({"user": user, "id": 10 * n + place}).encode())
        for n in range(begin, end)
        for place, user in enumerate(USERS)
    ]


def upserts(changes: dict[str, int | None], partition: int = 0) -> list[Input]:
    return [
        (partition, user, None if version is None else json.dumps({"version": version}).encode())  # type: ignore[misc]
        for user, version in changes.items()
    ]


def said(out: Out) -> Any:
    return json.loads(out.value or b"")


def other(user: str, version: int, at_least: int = 0) -> Callable[[Outs], Outs]:
    """A row of the user, with such an id or a higher one, has met another version."""

    def spoil(outs: Outs) -> Outs:
        index = at(outs, user, at_least)
        value = json.dumps({**said(outs[index]), "version": version}, separators=(",", ":")).encode()
        return [*outs[:index], replace(outs[index], value=value), *outs[index + 1 :]]

    return spoil


def at(outs: Outs, user: str, at_least: int) -> int:
    return next(n for n, each in enumerate(outs) if said(each)["user"] == user and said(each)["id"] >= at_least)


def twice(outs: Outs) -> Outs:
    return [*outs, outs[at(outs, "ann", 100)]]


def missing(outs: Outs) -> Outs:
    return without(outs, at(outs, "ann", 100))


def though_gone(outs: Outs) -> Outs:
    """A row of a user whose rule was taken away has come out all the same: that rule is stale."""
    index = at(outs, "carl", 200)
    text = (outs[index].text or "").split("/")
    text[4] = str(int(text[4]) + 1)
    told = {"user": "dora", "id": said(outs[index])["id"] + 1, "version": 1}
    return [*outs, replace(outs[index], key="dora", value=json.dumps(told).encode(), text="/".join(text))]


CORRUPTIONS = (
    Corruption("plain right", list, {}),
    Corruption("plain twice", twice, {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1}),
    Corruption("plain missing", missing, {Check.LOST: 1, Check.WRONG_COUNT: 1}),
    Corruption("plain too-early", other("ann", 2), {Check.WRONG_VALUE: 1}),
    Corruption("plain stale", other("ann", 1, 200), {Check.WRONG_VALUE: 1}),
    Corruption("plain though-gone", though_gone, {Check.UNEXPECTED: 1, Check.WRONG_COUNT: 1}),
    Corruption("keyed right", list, {}),
    Corruption("keyed too-early", other("ann", 2, 100), {Check.WRONG_VALUE: 1}),
    Corruption("keyed stale", other("ann", 1, 200), {Check.WRONG_VALUE: 1}),
    Corruption("counted right", list, {}),
)


SOME = (
    "plain right",
    "plain missing",
    "plain too-early",
    "plain though-gone",
    "keyed right",
    "keyed stale",
    "counted right",
)
"""One of each kind of function, and of each way that rules can be wrong."""


@pytest.mark.campaign
@some_or_every(CORRUPTIONS, SOME)
def test_each_corruption_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, corruptions: tuple[Corruption, ...]
) -> None:
    names = tuple(corruption.sink for corruption in corruptions)
    given: dict[str, Any] = {"orders": topic(partitions=2)}
    given["rules"] = topic(partitions=2, config={"cleanup.policy": "compact"})
    given["topics"] = {name: topic() for name in names}
    job = new_job(PIPELINE, **given)
    job.feed(given["rules"], upserts(FIRST))
    job.feed(given["orders"], orders(0, 20))
    job.run(workers=2, failpoints="commit.before=kill@1")
    # Rules change when nothing else is read: so each row has met what it can be asked for.
    job.feed(given["rules"], upserts(SECOND))
    job.run(workers=3)
    job.feed(given["orders"], orders(20, 40))
    job.run(workers=1)

    run = spoilt(job, new_job, topic, PIPELINE, given, corruptions, spark)

    assert len(run.outs["plain right"]) == 20 * 3 + 20 * 2
    run.expect_named()
    assert {*run.verdict.facts.not_recomputed} == {"counted-right"}
    assert "also has keyed state" in run.verdict.facts.not_recomputed["counted-right"]
    assert not run.verdict.facts.uncompared


def by_hand(
    new_job: Callable[..., Job],
    topic: Callable[..., str],
    rules: list[Input],
    spoil: dict[str, dict[int, int]],
    **config: str,
) -> Job:
    """Four epochs: rules, rows, a rule and rows, rows. ``spoil``: versions that rows of ``ann`` have met, by sink and
    number; others have met the right one. ``config``: of the topic of the rules.
    """
    given: dict[str, Any] = {
        "orders": topic(),
        "rules": topic(partitions=2, config=config),
        "topics": {sink: topic() for sink in spoil},
    }
    job = new_job(PIPELINE, **given)
    job.feed(given["rules"], rules)
    job.feed(given["orders"], [(0, None, json.dumps({"user": "ann", "id": n}).encode()) for n in range(6)])
    for sink, versions in spoil.items():
        told = [{"user": "ann", "id": n, "version": versions.get(n, 1 if n < 2 else 2)} for n in range(6)]
        values = [json.dumps(each, separators=(",", ":")).encode() for each in told]
        job.write(
            given["topics"][sink],
            [made((0, n), "ann", v, topic=given["orders"], epoch=(1, 2 + n // 2)) for n, v in enumerate(values)],
        )
    place = {number: SplitId(f"{given['rules']}/{number}") for number in (0, 1)}
    known, first = ([sum(partition == n for partition, *_ in some) for n in place] for some in (rules, rules[:3]))

    def ends(of_rules: list[int], of_rows: int) -> Ends:
        read = {place[n]: end for n, end in enumerate(of_rules)}
        return {"rules": read, "orders": {SplitId(f"{given['orders']}/0"): of_rows}}

    job.commits(
        *(epoch(1, number) for number in range(5)),
        positions=ends(known, 6),
        counts={epoch(1, number): {sink.replace(" ", "-"): 2 for sink in spoil} for number in (2, 3, 4)},
        earlier={epoch(1, 1): ends(first, 0), epoch(1, 2): ends(first, 2), epoch(1, 3): ends(known, 4)},
    )
    return job


@pytest.mark.campaign
def test_a_row_of_an_epoch_that_read_rules_may_have_met_either(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    # The first is of a rule that was read an epoch later, the second of one that was replaced an epoch before.
    spoil = {"plain either": {2: 1, 3: 7}, "plain early": {1: 2}, "plain stale": {4: 1}}
    job = by_hand(new_job, topic, [*upserts(FIRST), *upserts({"ann": 2})], spoil)

    verdict = job.audit(spark)

    assert found(verdict) == {sink: {Check.WRONG_VALUE: 1} for sink in ("plain-early", "plain-stale")}, shown(verdict)
    assert [left.outputs for left in verdict.facts.uncompared] == [2, 2, 2]
    assert all("no record shows which rules their rows met" in left.why for left in verdict.facts.uncompared)


@pytest.mark.campaign
def test_rules_of_a_key_in_two_partitions_are_in_no_order(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """What the job made of them nothing tells, from then on."""
    rules = [*upserts(FIRST), *upserts({"ann": 2}), *upserts({"ann": 3}, partition=1)]
    job = by_hand(new_job, topic, rules, {"plain either": {4: 3, 5: 3}, "plain early": {1: 2}})

    verdict = job.audit(spark)

    assert found(verdict) == {"plain-early": {Check.WRONG_VALUE: 1}}, shown(verdict)
    assert {left.outputs for left in verdict.facts.uncompared} == {4}


@pytest.mark.campaign
def test_rows_of_before_the_last_change_are_compared_with_nothing_once_compaction_has_removed_rules(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """Real compaction. What came behind the last change has met what is there still."""
    at_once = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    at_once["message.timestamp.type"] = "LogAppendTime"  # segments end by the time of their records
    spoil = {"plain early": {1: 2}, "plain stale": {4: 1}}
    job = by_hand(new_job, topic, [*upserts(FIRST), *upserts({"ann": 2})], spoil, **at_once)
    rules = job.topics["rules"]

    def removed() -> bool:
        job.feed(rules, upserts({"zoe": 1}))  # behind all that the job has read: only closed segments are compacted
        time.sleep(1)
        return 0 not in {message.offset() for message in read(job.bootstrap, rules) if message.partition() == 0}

    eventually(removed, "the first rule is compacted away")
    verdict = job.audit(spark)

    assert found(verdict) == {"plain-stale": {Check.WRONG_VALUE: 1}}, shown(verdict)
    assert [left.outputs for left in verdict.facts.uncompared] == [4, 4]


@pytest.mark.campaign
def test_a_change_of_rules_hides_no_rows_of_sinks_that_have_met_others(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """Beside them is a source that meets no rules, and has dead letters."""
    given: dict[str, Any] = {name: topic() for name in ("orders", "rules", "others", "other", "beside", "copies")}
    given |= {"letters": topic(), "topics": {"plain too-early": topic()}}
    job = new_job(APART, **given)
    for rules in ("rules", "others"):
        job.feed(given[rules], upserts(FIRST))
    job.feed(given["beside"], [(0, None, b"no order")])
    job.run(workers=1)
    job.feed(given["others"], upserts(SECOND))
    job.feed(given["orders"], [(0, None, value) for _, _, value in orders(0, 10)])
    job.run(workers=2)

    early = Corruption("plain too-early", other("ann", 2), {Check.WRONG_VALUE: 1})
    ran = spoilt(job, new_job, topic, APART, given, [early], spark)

    ran.expect_named()
    # Whose dead letters came of which rules nothing tells.
    assert {left.sink for left in ran.verdict.facts.uncompared} == {"other", "beside-dead-letters"}
