"""A finding of the audit leads to the command that replays the epoch which made it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from kafka_eos.audit.checks.verdict import Check, Conclusion, Finding, Observations, Verdict, Violation
from kafka_eos.cli.audit import exit_with_verdict


def _verdict(*details: str) -> Verdict:
    found = tuple(Violation("totals", 0, offset, detail) for offset, detail in enumerate(details))
    finding = Finding(Check.WRONG_VALUE, len(found), found)
    return Verdict(Conclusion.FAIL, (), (finding,), (), {}, Observations())


@pytest.mark.parametrize(
    ("details", "record", "test"),
    [
        (
            ["orders/orders/0/17/0.0/4: it is 7: expected 3", "orders/orders/0/18/0.0: it is 1"],
            "orders/0/17",
            "orders_0_17",
        ),
        (
            ["windows/timers/93/1700000000099/0.4711-815-0: it is 7", "day/a%20b.jsonl/0/2/0.0: it is 1"],
            "'a b.jsonl/0/2'",
            "a_b_jsonl_0_2",
        ),
        (["key ann has update 3 after update 1"], None, None),
    ],
)
def test_the_first_input_record_of_a_finding_becomes_a_test(
    details: list[str], record: str | None, test: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        exit_with_verdict(_verdict(*details), Path("report"), app="orders.py")

    printed = capsys.readouterr().out
    command = f"kafka-eos replay orders.py --record {record} --write-test tests/test_{test}.py\n"
    assert (command in printed) == (record is not None)
    assert ("kafka-eos replay" in printed) == (record is not None)
