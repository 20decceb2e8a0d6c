"""``explain`` prints the graph, the guarantee of every path, and where every setting came from."""

import pytest

from kafka_eos import DerivedNameWarning, Pipeline
from kafka_eos.cores import usable_cores
from kafka_eos.explain import explain
from kafka_eos.interfaces import DeadLetters, Ttl
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
    stream = pipeline.source(source, name="numbers", on_error=DeadLetters(MemorySink()))
    stream.key_by(str).fold(name="sum", init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="sums")
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
    keyed = pipeline.source(ListSource([1]), name="numbers").key_by(str)
    keyed.fold(init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="out")

    with pytest.warns(DerivedNameWarning):
        plan = pipeline.plan()

    assert "'fold-1' has no name of its own" in explain(plan)


def test_how_long_state_is_kept_is_shown() -> None:
    pipeline = Pipeline("lifetimes")
    keyed = pipeline.source(ListSource([]), name="numbers").key_by(str)
    keyed.fold(name="hour", init=int, step=max, ttl=Ttl(3600)).sink(MemorySink(), name="one")
    keyed.reduce(max, name="half-second", ttl=Ttl(0.5, clock="event")).sink(MemorySink(), name="other")
    keyed.fold(name="day", init=int, step=max, merge=max, ttl=Ttl(86_400)).sink(MemorySink(), name="third")

    shown = explain(pipeline.plan())

    assert "keeps state for 3600 s of processing time\n" in shown
    assert "keeps state for 0.5 s of event time\n" in shown
    assert "keeps state for 86400 s of processing time; one output a key and epoch" in shown
