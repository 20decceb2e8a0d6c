"""How many outputs an input should have: what each expectation calls lost and duplicate, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.audit.topics.expectation import Expectation
from kafka_eos.audit.topics.offset_window import OffsetWindow
from kafka_eos.audit.topics.topic_scan import TopicScan
from kafka_eos.core.errors import ConfigError
from tests.audit.topic_pair import ORDERS, Pair, found
from tests.marks import campaign

EXPECTATIONS = {
    "one": Expectation(1, 1, by_id=False),
    "1": Expectation(1, 1, by_id=False),
    "3": Expectation(3, 3, by_id=False),
    "at-least-one": Expectation(1, None, by_id=True),
    "at-most-one": Expectation(0, 1, by_id=True),
    "one-per-id": Expectation(1, 1, by_id=True),
}


@pytest.mark.parametrize("text", EXPECTATIONS)
def test_an_expectation_by_its_name(text: str) -> None:
    assert Expectation.parse(text) == EXPECTATIONS[text]


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5", "²"])
def test_what_names_no_expectation_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--expect is one, at-least-one"):
        Expectation.parse(text)


@pytest.mark.parametrize("asked", [{"id": "provenance"}, {"inputs": (), "id": "$.x"}, {"order": "offset"}])
def test_outputs_of_inputs_are_counted_by_an_id_of_the_user(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--expect counts the outputs of each input"):
        TopicAuditOptions("host:1", **{"inputs": ("i",), "outputs": ("t",), "expect": "2", **asked})


COUNTS = {"1:0": (1, 0), "1:1": (1, 1), "1:2": (1, 2), "1:3": (1, 3), "2:1": (2, 1), "2:2": (2, 2), "2:4": (2, 4)}
"""Numbers of inputs and of outputs of an id."""


@pytest.mark.parametrize(
    ("expect", "lost", "doubled"),
    [
        ("one", {"1:0": 1, "2:1": 1}, {"1:2": 1, "1:3": 2, "2:4": 2}),
        ("2", {"1:0": 2, "1:1": 1, "2:1": 3, "2:2": 2}, {"1:3": 1}),
        ("at-least-one", {"1:0": 1}, None),
        ("at-most-one", None, {"1:2": 1, "1:3": 2, "2:2": 1, "2:4": 3}),
        ("one-per-id", {"1:0": 1}, {"1:2": 1, "1:3": 2, "2:2": 1, "2:4": 3}),
    ],
)
def test_what_an_expectation_calls_lost_and_duplicate(
    spark: Any, expect: str, lost: dict[str, int] | None, doubled: dict[str, int] | None
) -> None:
    question = TopicAuditOptions("host:1", ("i",), ("t",), "$.x", expect=expect)
    conditions = TopicScan(spark, question, OffsetWindow({}, {}, {}), {}, {})._conditions()
    rows = [(name, n_in, n_in, n_out, n_out) for name, (n_in, n_out) in COUNTS.items()]
    counted = spark.createDataFrame(rows, "name string, n_in long, n_judged long, n_out long, n_out_judged long")

    def records(check: Check) -> dict[str, int] | None:
        if check not in conditions:
            return None
        wrong = counted.where(conditions[check].condition).select("name", F.expr(conditions[check].number).alias("n"))
        return {row.name: row.n for row in wrong.collect()}

    assert (lost, doubled) == (records(Check.LOST), records(Check.DUPLICATE))


@pytest.mark.parametrize(
    ("expect", "copies", "conclusion", "wrong", "said"),
    [
        campaign("2", (2,) * ORDERS, Conclusion.PASS, {}, "expected of each input: 2", named="two of each"),
        pytest.param("2", (1, 3, *(2,) * (ORDERS - 2)), Conclusion.FAIL, {Check.LOST: 1, Check.DUPLICATE: 1}, "",
                     id="one lost, one too many"),
        campaign("at-most-one", (0,) * 20 + (1,) * (ORDERS - 20), Conclusion.PASS, {},
                 "expected of each id: at-most-one, so lost was not checked", named="filtered"),
        campaign("at-most-one", (0, 2, *(1,) * (ORDERS - 2)), Conclusion.FAIL, {Check.DUPLICATE: 1}, "",
                 named="filtered, and one twice"),
        campaign("at-least-one", (3, *(1,) * (ORDERS - 1)), Conclusion.PASS, {},
                 "expected of each id: at-least-one, so duplicate was not checked", named="split"),
        campaign("at-least-one", (0, *(2,) * (ORDERS - 1)), Conclusion.FAIL, {Check.LOST: 1}, "",
                 named="split, and one lost"),
    ],
)  # fmt: skip
def test_topics_with_other_numbers_of_outputs(
    pair: Pair, spark: Any, expect: str, copies: tuple[int, ...], conclusion: Conclusion,
    wrong: dict[Check, int], said: str,
) -> None:  # fmt: skip
    outs = [replace(o, text=None, key=None) for o, n in zip(pair.outs, copies, strict=True) for _ in range(n)]
    pair.job.write(pair.output, outs)

    verdict = audit_topics(pair.question(id="$.id", expect=expect), spark=spark)

    assert (conclusion, wrong) == (verdict.conclusion, found(verdict)), verdict.headline
    assert said in verdict.headline
