"""Outputs without provenance, compared as multisets: those whose value nobody knows leave the others exact."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka_eos.audit.checks.multiset_checks import flagged
from kafka_eos.audit.checks.verdict import Check

COLUMNS = ("key_hash", "value_hash", "headers_hash", "time", "topic", "partition", "offset", "preview")
KINDS = ("long", "long", "long", "long", "string", "int", "long", "string")
CASES: dict[str, tuple[str, str, str, dict[Check, int]]] = {
    "equal": ("aab", "aab", "", {}),
    "others than the unknown ones": ("aabxy", "aab", "??", {}),
    "a known one is lost": ("abxy", "aab", "??", {Check.LOST: 1}),
    "a known one is lost, and there is one too many": ("abxyz", "aab", "??", {Check.LOST: 1, Check.UNEXPECTED: 1}),
    "an unknown one is lost": ("aabx", "aab", "??", {Check.LOST: 1}),
    "a copy of a known one": ("aaabxy", "aab", "??", {Check.DUPLICATE: 1}),
    "two too many": ("aabbwxyz", "aab", "??", {Check.UNEXPECTED: 2, Check.DUPLICATE: 1}),
}
"""What is there, what should be, unknown outputs beside those, and the findings."""


def test_outputs_of_unknown_values_are_counted_and_all_others_are_compared(spark: Any) -> None:
    def table(texts: dict[str, str], prefix: str, *more: str) -> Any:
        rows = [
            (sink, *((0, ord(text), 0, 0, sink, 0, at, text)), *([text == "?"] if more else []))
            for sink, each in texts.items()
            for at, text in enumerate(each)
        ]
        kinds = ", ".join(f"{prefix}{name} {kind}" for name, kind in zip(COLUMNS, KINDS, strict=True))
        return spark.createDataFrame(rows, ", ".join(["sink string", kinds, *more]))

    there = table({sink: case[0] for sink, case in CASES.items()}, "")
    made = table({sink: case[1] + case[2] for sink, case in CASES.items()}, "e_", "loose boolean")

    rows = flagged(there, made, [*CASES]).collect()

    found = Counter((row["sink"], row["check"]) for row in rows)
    assert found == {(sink, check.name): n for sink, case in CASES.items() for check, n in case[3].items()}
