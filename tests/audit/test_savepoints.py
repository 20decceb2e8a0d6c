"""Jobs that began with a savepoint: with their earlier checkpoints the whole history is judged, without them all that
came after the savepoint. Real runs; what is spoilt in their output is found.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from msgspec import structs

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from tests.audit.conftest import TOTALS
from tests.audit.job import Job, Out
from tests.chaos.harness import create_topic, read
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)
USERS = ("ann", "bob", "cid", "dee", "eve")
FIRST, MORE = 60, 40
MADE = FIRST * 9 // 10, MORE * 9 // 10
"""Outputs of the two lives: every tenth order is filtered out."""


@dataclass
class Lives:
    """A job that ran, made a savepoint and is about to begin with it, in another checkpoint directory."""

    first: Job
    second: Job
    savepoint: Path
    fed: int = 0

    def feed(self, orders: int) -> None:
        numbers = range(self.fed, self.fed + orders)
        self.first.feed(self.first.topics["input"], [
            (n % 5 % 2, USERS[n % 5], json.dumps({"user": USERS[n % 5], "amount": n % 10}).encode()) for n in numbers
        ])  # fmt: skip
        self.fed += orders

    def go_on(self) -> None:
        """More input, and the second life over all of it."""
        self.feed(MORE)
        self.second.run("--from", str(self.savepoint))

    @property
    def earlier(self) -> list[Path]:
        return [self.first.directory / "checkpoints" / self.first.name]


@pytest.fixture
def lives(new_job: Callable[..., Job], topic: Callable[..., str], tmp_path: Path) -> Callable[..., Lives]:
    """``lives(apart=True)``: the second life has an output topic of its own."""

    def make(*, apart: bool, provenance: str = "header", renamed: bool = False) -> Lives:
        source, target = topic(partitions=2), topic(partitions=2)
        pipeline = TOTALS.replace("config={{", f'provenance="{provenance}", config={{{{')
        first = new_job(pipeline, input=source, output=target)
        topics = {"input": source, "output": topic(partitions=2) if apart else target}
        home = tmp_path / "second"
        home.mkdir()
        app = home / "second.py"
        name = f"{first.name}-renamed" if renamed else first.name
        app.write_text(pipeline.format(name=name, **topics))
        made = Lives(first, Job(first.bootstrap, home, app, name, topics), tmp_path / "savepoint")
        made.feed(FIRST)
        first.run(workers=1)
        write_offline_savepoint(first.settings, first.name, made.savepoint)
        return made

    return make


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def outputs(job: Job) -> list[Out]:
    """What is visible, as it would be written again."""
    return [
        Out(m.key().decode(), m.value(), dict(m.headers())["kafka_eos"].decode(), m.partition())
        for m in read(job.bootstrap, job.topics["output"])
    ]


def cut_off(job: Job, n: int) -> None:
    """Lose the first ``n`` outputs of partition 0: all others are in the topic, which was made anew."""
    outs, topic = outputs(job), job.topics["output"]
    lost = [o for o in outs if o.partition == 0][:n]
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE)
    create_topic(job.bootstrap, topic, 2)
    job.write(topic, [o for o in outs if o not in lost])


@pytest.mark.campaign
def test_the_same_job_is_judged_over_its_whole_history(lives: Callable[..., Lives], spark: Any) -> None:
    both = lives(apart=False)
    both.go_on()

    verdict = both.second.audit(spark, earlier=both.earlier)

    assert (Conclusion.PASS, 0) == (verdict.conclusion, verdict.facts.before_savepoint), verdict.headline
    assert (FIRST + MORE, sum(MADE)) == (verdict.facts.inputs, verdict.facts.outputs)
    assert verdict.skipped == {}

    cut_off(both.second, 3)
    lost = both.second.audit(spark, earlier=both.earlier)

    assert found(lost)[Check.LOST] == 3, lost.headline
    assert found(lost)[Check.WRONG_COUNT] >= 1


@pytest.mark.campaign
def test_with_provenance_in_the_ledger_its_earlier_outputs_need_the_earlier_ledger(
    lives: Callable[..., Lives], spark: Any
) -> None:
    both = lives(apart=False, provenance="ledger")
    both.go_on()

    whole = both.second.audit(spark, earlier=both.earlier)
    alone = both.second.audit(spark)

    assert (Conclusion.PASS, {}) == (whole.conclusion, whole.skipped), whole.headline
    assert (FIRST + MORE, sum(MADE)) == (whole.facts.inputs, whole.facts.outputs)
    assert {Check.FOREIGN: MADE[0]} == found(alone), alone.headline
    assert any("count as foreign" in note for note in alone.facts.notes)


@pytest.mark.campaign
def test_without_its_earlier_checkpoints_what_came_after_the_savepoint_is_judged(
    lives: Callable[..., Lives], spark: Any
) -> None:
    both = lives(apart=False)
    before = outputs(both.first)
    both.go_on()
    shutil.rmtree(both.first.directory / "checkpoints")

    verdict = both.second.audit(spark)

    assert (Conclusion.PASS, MADE[0]) == (verdict.conclusion, verdict.facts.before_savepoint), verdict.headline
    assert (MORE, MADE[1]) == (verdict.facts.inputs, verdict.facts.outputs)
    assert f"{MADE[0]} outputs from before the savepoint not judged" in verdict.headline

    term = parse_provenance(outputs(both.second)[-1].text or "").term
    doubled = replace(before[0], text=str(structs.replace(parse_provenance(before[0].text or ""), term=term)))
    both.second.write(both.second.topics["output"], [doubled])  # as a job that reads again what the savepoint covers

    assert found(both.second.audit(spark))[Check.DUPLICATE] == 1


@pytest.mark.campaign
@pytest.mark.parametrize("provenance", ["header", "ledger"])
def test_a_job_that_was_renamed_is_judged_over_its_whole_history(
    lives: Callable[..., Lives], spark: Any, provenance: str
) -> None:
    """Its earlier outputs are in the same topic, under its earlier name."""
    both = lives(apart=False, provenance=provenance, renamed=True)
    both.go_on()

    whole = both.second.audit(spark, earlier=both.earlier)

    assert (Conclusion.PASS, 0) == (whole.conclusion, whole.facts.before_savepoint), whole.headline
    assert (FIRST + MORE, sum(MADE)) == (whole.facts.inputs, whole.facts.outputs)
    assert "not judged" not in whole.headline


@pytest.mark.campaign
def test_a_job_that_was_renamed_is_judged_from_its_savepoint(lives: Callable[..., Lives], spark: Any) -> None:
    """Its earlier outputs are no outputs of another job. Without its earlier name, they would be."""
    both = lives(apart=False, renamed=True)
    both.go_on()

    alone = both.second.audit(spark)
    wrong = both.second.audit(spark, earlier=[both.first.directory / "checkpoints"])

    assert (Conclusion.PASS, (), MADE[0]) == (alone.conclusion, alone.findings, alone.facts.before_savepoint)
    assert "of other jobs" not in alone.headline
    assert Conclusion.INCONCLUSIVE is wrong.conclusion
    assert "is not a job's checkpoint directory" in wrong.headline


@pytest.mark.campaign
def test_a_new_job_is_compared_with_what_follows_from_the_savepoint(lives: Callable[..., Lives], spark: Any) -> None:
    """Also if the savepoint was changed: its state is what the recompute begins with."""
    both = lives(apart=True)
    with SavepointBuilder.from_snapshot(Snapshot.open(both.savepoint)) as builder:
        builder.put("total", "accumulator", "bob", {"updates": 100, "accumulator": 10_000})
        builder.write(both.savepoint.with_name("changed"))
    both.savepoint = both.savepoint.with_name("changed")
    both.go_on()

    verdict = both.second.audit(spark)

    assert (Conclusion.PASS, 0) == (verdict.conclusion, verdict.facts.before_savepoint), verdict.headline
    assert (MORE, MADE[1], MADE[1]) == (verdict.facts.inputs, verdict.facts.outputs, verdict.facts.expected)
    assert any(json.loads(o.value or b"")["total"] > 10_000 for o in outputs(both.second))

    wrong = replace(outputs(both.second)[-1], value=b'{"user":"ann","total":1}')
    cut_off(both.second, 2)
    both.second.write(both.second.topics["output"], [wrong, outputs(both.first)[0]])
    spoilt = found(both.second.audit(spark))

    assert (2, 1) == (spoilt[Check.LOST], spoilt[Check.DUPLICATE])
    assert spoilt[Check.UPDATE_GAP] >= 1


@pytest.mark.campaign
def test_a_savepoint_that_is_gone_leaves_no_ground(lives: Callable[..., Lives], spark: Any) -> None:
    both = lives(apart=False)
    both.go_on()
    shutil.rmtree(both.savepoint)

    alone = both.second.audit(spark)

    assert Conclusion.INCONCLUSIVE is alone.conclusion
    assert str(both.savepoint) in alone.headline and "--earlier" in alone.headline
    assert Conclusion.PASS is both.second.audit(spark, earlier=both.earlier).conclusion
