"""``explain`` prints the graph, the guarantee of every path, and where every setting came from."""

import pytest

from kafka_eos import DerivedNameWarning, Pipeline
from kafka_eos.cores import usable_cores
from kafka_eos.explain import explain
from kafka_eos.interfaces import DeadLetters
from kafka_eos.settings import Settings
from kafka_eos.testing import ListSource, MemorySink

EXPECTED = """\
pipeline totals
  fingerprint {fingerprint}

operators
  numbers               source  list=numbers, splits=1, values=2; on error: dead letters
  numbers-dead-letters  sink    <- numbers (refused records)  {sink}
  key-by-1              key-by  <- numbers
  sum                   fold    <- key-by-1  keeps state
  sums                  sink    <- sum  {sink}

guarantees
  numbers -> numbers-dead-letters
    exactly-once: offsets, state and output are committed as one epoch
  numbers -> key-by-1 -> sum -> sums
    exactly-once: offsets, state and output are committed as one epoch

notices
  the broker keeps transactions for 15 minutes
"""


def totals() -> Pipeline:
    pipeline = Pipeline("totals", batch_size=10)
    source = ListSource([1, 2], name="numbers")
    stream = pipeline.source("numbers", source, on_error=DeadLetters(MemorySink()))
    stream.key_by(str).fold("sum", init=int, step=lambda acc, n: acc + n).sink("sums", MemorySink())
    return pipeline


def test_the_text_is_the_golden_one() -> None:
    plan = totals().plan()
    sink = ", ".join(f"{name}={value}" for name, value in MemorySink().describe().items() if value)
    expected = EXPECTED.format(fingerprint=plan.fingerprint[:16], sink=sink)

    assert expected == explain(plan, notices=["the broker keeps transactions for 15 minutes"])


def test_every_setting_is_shown_with_its_origin() -> None:
    text = totals().explain()
    rows = [line.split() for line in text.split("settings\n")[1].splitlines()]

    assert [row[0] for row in rows] == list(Settings.model_fields)
    assert ["batch_size", "10", "code"] in rows
    assert ["parallelism", str(min(usable_cores(), 128)), "default"] in rows


def test_a_derived_name_of_state_is_a_notice() -> None:
    pipeline = Pipeline("p")
    keyed = pipeline.source("numbers", ListSource([1])).key_by(str)
    keyed.fold(init=int, step=lambda acc, n: acc + n).sink("out", MemorySink())

    with pytest.warns(DerivedNameWarning):
        plan = pipeline.plan()

    assert "'fold-1' has no name of its own" in explain(plan)
