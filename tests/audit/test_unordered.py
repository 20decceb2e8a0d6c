"""Ids that are compared in groups: topics that agree are only scanned, and what differs is found as without groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import audit_topics
from tests.audit.job import FED_AT
from tests.audit.topic_pair import ORDERS, Pair, first, found
from tests.marks import campaign

pytestmark = pytest.mark.timeout(300)
WITHOUT_ORDER = "order of outputs not compared (--unordered)"


def test_only_groups_that_differ_are_compared_id_by_id(pair: Pair, topic: Callable[..., str], spark: Any) -> None:
    """One output of the second topic is lost, aborted instead, one doubled, and one made up."""
    spoilt, plans = topic(partitions=2), list[str]()
    outs = [replace(o, text=None) for o in pair.outs]
    pair.job.write(pair.output, outs[::-1])
    pair.job.write(spoilt, [*outs[:5], *outs[6:], outs[8], replace(outs[3], value=b'{"id":999}')])
    pair.job.write(spoilt, outs[5:6], commit=False)
    question = pair.question(id="$.id", unordered=True)

    right = audit_topics(question, spark=spark, plans=plans)
    wrong = audit_topics(replace(question, outputs=(spoilt,)), spark=spark)

    assert (Conclusion.PASS, ORDERS, ORDERS) == (right.conclusion, right.facts.inputs, right.facts.outputs)
    assert WITHOUT_ORDER in right.headline and "inputs each" not in right.headline
    assert ["--unordered was given"] == [why for check, why in right.skipped.items() if check is Check.REORDERED]
    assert not [plan for plan in plans if "hashpartitioning(slot" in plan and "kafka" in plan.lower()], "not shuffled"
    expected = {Check.LOST: 1, Check.DUPLICATE: 1, Check.UNEXPECTED: 1, Check.COMMITTED_HIDDEN: 1}
    assert expected == found(wrong), wrong.findings
    assert "id 5: " in first(wrong, Check.LOST) and "id 999: " in first(wrong, Check.UNEXPECTED)
    assert f"it is visible 2 times: expected 1 times, first at {spoilt}/0/4; id 8: " in first(wrong, Check.DUPLICATE)


@pytest.mark.parametrize(
    ("copies", "wrong"),
    [campaign(2, {}, named="two of each"), campaign(3, {Check.DUPLICATE: ORDERS}, named="one too many of each")],
)
def test_an_input_may_have_several_outputs(pair: Pair, spark: Any, copies: int, wrong: dict[Check, int]) -> None:
    pair.job.write(pair.output, [replace(o, text=None) for o in pair.outs] * copies)

    verdict = audit_topics(pair.question(id="$.id", unordered=True, expect="2"), spark=spark)

    assert wrong == found(verdict), verdict.headline


@pytest.mark.campaign
def test_ids_that_most_inputs_share_are_in_the_headline(pair: Pair, spark: Any) -> None:
    """One output has the value of another: with one id for all, nothing tells."""
    outs = [*pair.outs[1:], pair.outs[1]]
    pair.job.write(pair.output, [replace(o, text=None) for o in outs])

    verdict = audit_topics(pair.question(id="'all'", unordered=True), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict))
    assert f"ids are of about {ORDERS}.0 inputs each: only the number of their outputs was compared" in verdict.headline


@pytest.mark.campaign
def test_ids_of_two_kinds_are_no_losses(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, [replace(o, text=None) for o in pair.outs])

    verdict = audit_topics(pair.question(id="$.id", input_id="concat('x', key, offset)", unordered=True), spark=spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert "no output has the id of an input" in verdict.headline


@pytest.mark.campaign
def test_files_are_compared_in_groups_too(pair: Pair, spark: Any, tmp_path: Path) -> None:
    lines = [o.value or b"" for o in pair.outs]
    (tmp_path / "part-1").write_bytes(b"\n".join([*lines[1:], lines[7]]))

    verdict = audit_topics(pair.question(id="$.id", outputs=(f"{tmp_path}/",), unordered=True), spark=spark)

    assert {Check.LOST: 1, Check.DUPLICATE: 1} == found(verdict), verdict.headline


@pytest.mark.campaign
def test_in_a_window_of_times_ids_are_compared_one_by_one(pair: Pair, spark: Any) -> None:
    """At its edges there are always records without a counterpart, in all groups."""
    later = [replace(o, text=None, timestamp=FED_AT + 3_600_000) for o in pair.outs if o is not pair.outs[3]]
    pair.job.write(pair.output, later)
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    inside = {"start": fed - timedelta(minutes=1), "end": fed + timedelta(minutes=1), "slack": 7200.0}

    verdict = audit_topics(pair.question(id="$.id", unordered=True, **inside), spark=spark)

    assert ({Check.LOST: 1}, ORDERS) == (found(verdict), verdict.facts.inputs), verdict.headline
    assert WITHOUT_ORDER in str(verdict.facts.left_out)
