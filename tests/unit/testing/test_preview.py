"""``preview`` shows the way of each record through the plan, and ends neither at a late row nor at a rejected one."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from kafka_eos import OutputTag, agg, bounded, tumbling
from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import RawRecord
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local


def division(**options: Any) -> Pipeline:
    pipeline = Pipeline("division")
    numbers = pipeline.source(KafkaSource("in", value=int), name="numbers", **options)
    quotients = numbers.filter(lambda n: n < 10, name="small").map(lambda n: 12 // n, name="divide")
    quotients.sink(KafkaSink("out", value=int), name="quotients")
    return pipeline


def test_each_record_has_the_rows_of_every_operator() -> None:
    found = division().preview(inputs={"numbers": [3, 11]})

    first, second = found.rows
    assert (first.place, first.value) == ("in/0/0", "3")
    assert [(s.operator, s.kind, s.values) for s in first.steps] == [
        ("small", "filter", ("3",)), ("divide", "map", ("4",)), ("quotients", "sink", ("4",)),
    ]  # fmt: skip
    assert (first.outcome, second.outcome) == ("→ quotients (1)", "no row from small")
    assert [(t.operator, t.rows_in, t.rows_out) for t in found.totals] == [
        ("numbers", 0, 2), ("small", 2, 1), ("divide", 1, 1), ("quotients", 1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"on_error": dead_letter("dead")}], ids=["stop", "dead-letter"])
def test_rejected_records_are_shown_in_their_place(options: dict[str, Any]) -> None:
    broken = RawRecord("in", 0, 1, -1, None, b"x", ())
    zero = RawRecord("in", 0, 2, -1, None, b"0", ())
    good = RawRecord("in", 0, 3, -1, None, b"4", ())
    rows = (
        division(**options)
        .preview(inputs={"numbers": [RawRecord("in", 0, 0, -1, None, b"3", ()), broken, zero, good]})
        .rows
    )

    assert [row.place for row in rows] == ["in/0/0", "in/0/1", "in/0/2", "in/0/3"]
    assert [row.outcome.split(":")[0] for row in rows] == [
        "→ quotients (1)", "rejected by numbers", "rejected by divide", "→ quotients (1)",
    ]  # fmt: skip
    assert "ZeroDivisionError" in rows[2].outcome


LATE = OutputTag("late", int)


def timed() -> Pipeline:
    pipeline = Pipeline("timed")
    numbers = pipeline.source(ListSource([]), name="numbers").with_timestamps(watermarks=bounded(seconds=0))
    counts = (
        numbers.key_by(lambda n: "all").window(tumbling(seconds=10), late=LATE).aggregate(agg.count(), name="counts")
    )
    counts.sink(MemorySink(), name="to-counts")
    counts.side_output(LATE).sink(MemorySink(), name="to-late")
    return pipeline


ROWS = [TimestampedValue(1, 1_000), TimestampedValue(2, 30_000), TimestampedValue(3, 2_000)]


def test_event_time_and_late_rows_are_shown() -> None:
    rows = timed().preview(inputs={"numbers": ROWS}).rows

    assert [row.event_time for row in rows] == [1_000, 30_000, 2_000]
    assert [row.watermark for row in rows] == [999, 29_999, 29_999]
    assert [row.late_at for row in rows] == [[], [], ["counts"]]
    assert [row.outcome for row in rows] == ["no row from counts", "→ to-counts (1)", "late at counts; → to-late (1)"]


def test_a_preview_changes_nothing_for_a_run() -> None:
    pipeline = timed()
    pipeline.preview(inputs={"numbers": ROWS})

    run = run_local(pipeline, {"numbers": ROWS})
    assert run["to-late"] == [3]
    assert run.late == {"counts": 1}


def test_it_is_a_table_in_a_terminal_and_html_in_a_notebook() -> None:
    found = timed().preview(inputs={"numbers": ROWS})

    assert "1970-01-01 00:00:30.000" in str(found) and "late at counts" in str(found)
    page = found._repr_html_()
    assert page.count("<details>") == 3 and "<li>late at counts</li>" in page
    console = Console(width=200)
    with console.capture() as captured:
        console.print(found.way(2))
    assert "to-counts (sink)" in captured.get()


def test_values_are_escaped_in_html() -> None:
    page = timed().preview(inputs={"numbers": [TimestampedValue("<script>", 1)]})._repr_html_()

    assert "<script>" not in page and "&lt;script&gt;" in page


def test_a_source_that_cannot_be_read_without_a_job_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--from numbers=FILE"):
        timed().preview()


def test_control_characters_of_records_are_escaped_in_texts_and_pages() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([]), name="in").map(str, name="text").sink(MemorySink(), name="out")

    found = pipeline.preview(inputs={"in": ["\x1b]0;owned\x07<script>"]})

    assert "\x1b" not in str(found)
    assert "<script>" not in found._repr_html_()
