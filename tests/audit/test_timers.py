"""What timers make is not computed again, and the headline says so; a firing that is there twice or early is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, monotonic
from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.state import audit_state
from kafka_eos.audit.tables.plan_cut import cut
from kafka_eos.core.ids import AppRef
from kafka_eos.core.provenance import HEADER, parse_provenance
from kafka_eos.runtime.program import load_program
from kafka_eos.testing import ListSource, MemorySink
from tests.audit.job import FED_AT, Job, Out
from tests.chaos.harness import read

pytestmark = pytest.mark.timeout(600)

FIRED = """
from kafka_eos import Pipeline, ProcessFunction, monotonic
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Each(ProcessFunction):
    def open(self, ctx):
        self.ctx, self.timers = ctx, ctx.timers()

    def process(self, key, word):
        self.timers.register(self.ctx.timestamp + 5)
        return []

    def on_timer(self, key, time):
        yield key

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="orders") \\
    .with_timestamps(lambda word: FED_AT + int(word[1:]), watermarks=monotonic())
words.sink(KafkaSink("{copies}", value=str), name="copies")
words.key_by(lambda word: word[0]).process(Each, name="each").sink(KafkaSink("{output}", value=str), name="fired")
""".replace("FED_AT", str(FED_AT))


@pytest.mark.campaign
def test_a_run_passes_without_what_timers_made_and_a_firing_that_is_there_twice_fails_it(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, fired, copies = topic(partitions=2), topic(), topic()
    job = new_job(FIRED, input=source, output=fired, copies=copies)
    job.feed(source, [(n % 2, None, b"%c%d" % (97 + n % 3, n)) for n in range(40)])
    job.run()
    outputs = read(job.bootstrap, fired)

    verdict = job.audit(spark)

    assert len(outputs) == 33  # up to time 37, less the five milliseconds
    assert (verdict.conclusion, verdict.findings) == (Conclusion.PARTIAL, ()), verdict.headline
    assert "sink fired not recomputed: its outputs come from timers" in verdict.headline
    assert (verdict.facts.outputs, verdict.facts.expected) == (73, 40)

    ref = AppRef(job.app, job.name)
    state = audit_state(load_program(ref), job.settings, app=ref, spark=spark)
    assert state.findings == (), state.headline
    assert "no record shows the watermark, or the time of the clock" in state.headline

    text = dict(outputs[0].headers())[HEADER].decode()
    too_early = str(replace(parse_provenance(text), offset=FED_AT + 38))  # event time is 37
    job.write(fired, [Out(None, outputs[0].value(), each) for each in (text, too_early)])
    wrong = job.audit(spark)

    assert wrong.conclusion is Conclusion.FAIL
    assert {f.check: f.count for f in wrong.findings} == {
        Check.DUPLICATE: 1,
        Check.UNEXPECTED: 1,
        Check.WRONG_COUNT: 1,
    }


@pytest.mark.campaign
def test_a_firing_that_is_missing_shows_in_the_count_of_its_epoch(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, fired, copies = topic(), topic(), topic()
    job = new_job(FIRED, input=source, output=fired, copies=copies)
    job.feed(source, [(0, None, b"%c%d" % (97 + n % 3, n)) for n in range(40)])
    job.run(workers=1)
    outs = [
        Out(None, each.value(), dict(each.headers())[HEADER].decode(), 0, (), each.timestamp()[1])
        for each in read(job.bootstrap, fired)
    ]
    less = topic()
    job.app.write_text(job.app.read_text().replace(fired, less))
    job.write_all({less: outs[:5] + outs[6:]})

    verdict = job.audit(spark)

    assert {f.check: dict(f.by_sink) for f in verdict.findings} == {Check.WRONG_COUNT: {"fired": 1}}, verdict.headline


SIDES = """
from kafka_eos import OutputTag, Pipeline, ProcessFunction
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

ODD = OutputTag("odd", str)

class Parts(ProcessFunction):
    side_outputs = (ODD,)

    def open(self, ctx):
        self.ctx, self.count = ctx, ctx.value_state("count", int, 0)

    def process(self, key, word):
        self.count.put(self.count.get() + 1)
        if int(word[1:]) % 2:
            self.ctx.output(ODD, f"{{word}} {{self.count.get()}}")
            self.ctx.output(ODD, f"{{word}} again")
        yield f"{{word}} {{self.count.get()}}"

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="orders")
parts = words.key_by(lambda word: word[0]).process(Parts, name="parts")
parts.sink(KafkaSink("{output}", value=str), name="all")
parts.side_output(ODD).sink(KafkaSink("{copies}", value=str), name="odd")
"""


@pytest.mark.campaign
def test_side_outputs_are_computed_again_each_in_its_sink(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    source, output, odd = topic(partitions=2), topic(), topic()
    job = new_job(SIDES, input=source, output=output, copies=odd)
    job.feed(source, [(n % 3 % 2, None, b"%c%d" % (97 + n % 3, n)) for n in range(30)])
    job.run()

    verdict = job.audit(spark)

    assert (verdict.conclusion.is_clean, verdict.findings) == (True, ()), verdict.headline
    assert (verdict.facts.outputs, verdict.facts.expected) == (60, 60)

    first = read(job.bootstrap, odd)[1]
    text = dict(first.headers())[HEADER].decode()
    job.write(odd, [Out(None, first.value(), text)])
    twice = job.audit(spark)

    assert twice.conclusion is Conclusion.FAIL
    assert Check.DUPLICATE in {f.check for f in twice.findings}


class Nothing(ProcessFunction[str, str, str]):
    def open(self, ctx: ProcessContext) -> None:
        ctx.timers()

    def process(self, key: str, value: str) -> list[str]:
        return []

    def on_timer(self, key: str, time: int) -> list[str]:
        return []


class NothingByTheClock(ProcessFunction[str, str, str]):
    def process(self, key: str, value: str) -> list[str]:
        return []

    def on_processing_timer(self, key: str, time: int) -> list[str]:
        return []


def test_what_lies_behind_timers_is_told_by_the_plan() -> None:
    pipeline = Pipeline("timed")
    words = pipeline.source(ListSource([]), name="words").with_timestamps(watermarks=monotonic())
    keyed = words.key_by(str, name="word")
    keyed.process(Nothing, name="fires").map(str, name="text").sink(MemorySink(), name="fired")
    keyed.process(NothingByTheClock, name="ticks").sink(MemorySink(), name="ticked")
    keyed.reduce(max, name="highest").sink(MemorySink(), name="lasting")

    parts = cut(pipeline.plan())

    assert parts.timed == {"fires", "text", "fired", "ticks", "ticked"}
    assert parts.stages == ("word",)
    assert "words-timestamps" in {node.name for node in parts.head.nodes}
