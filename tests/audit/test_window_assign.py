"""The windows of a time, and sessions, in Spark SQL are those of the operators: two definitions that share nothing."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from pyspark.sql import functions as F

from kafka_eos.audit.tables.windows.window_assignment import sessions, windows_of
from kafka_eos.plan.window_assigners import (
    DayWindows,
    EarlyTumblingWindows,
    PanedAssigner,
    SlidingWindows,
    TumblingWindows,
)

pytestmark = pytest.mark.timeout(300)

ASSIGNERS: tuple[PanedAssigner, ...] = (
    TumblingWindows(300, 7),
    TumblingWindows(1, 0),
    EarlyTumblingWindows(300, 60, 10),
    SlidingWindows(600, 300, 5),
    SlidingWindows(100, 40, 0),
    SlidingWindows(1000, 1000, 0),
    DayWindows("Europe/Berlin"),
    DayWindows("America/Sao_Paulo"),  # clocks leapt at midnight
    DayWindows("America/St_Johns"),  # clocks went back across midnight
    DayWindows("America/Havana"),
)
MINUTE = 60_000


def test_windows_of_a_time(spark: Any) -> None:
    random = Random(5)
    times = [random.randrange(-(10**12), 2 * 10**12) for _ in range(1000)] + [*range(-20, 20)]
    times += [10**12 + n * 53 * MINUTE for n in range(10_000)]
    table = spark.createDataFrame([(time,) for time in times], "time long")
    rows = table.select("time", *(windows_of(a, F.col("time")).alias(f"w{n}") for n, a in enumerate(ASSIGNERS)))

    for row in rows.collect():
        for n, assigner in enumerate(ASSIGNERS):
            ends = assigner.ends(assigner.pane(row["time"]))
            found = [(window["start"], window["end"]) for window in row[f"w{n}"]]
            assert found == [(assigner.start(end), end) for end in ends], (assigner, row["time"])


@pytest.mark.parametrize("gap", [1, 7, 20])
def test_sessions(spark: Any, gap: int) -> None:
    random = Random(gap)
    rows = [(b"%d" % random.randrange(3), random.randrange(-300, 300), random.random() < 0.02) for _ in range(120)]
    table = spark.createDataFrame(rows, "grp binary, time long, loose boolean")

    found = {(bytes(r["grp"]), r["time"], *r["windows"][0], r["loose"]) for r in sessions(table, gap).collect()}

    assert found == {(key, time, *session_of(rows, key, time, gap)) for key, time, _ in rows}


def session_of(rows: list[tuple[bytes, int, bool]], key: bytes, time: int, gap: int) -> tuple[int, int, bool]:
    times = sorted({at for other, at, _ in rows if other == key})
    first = max(
        (after for before, after in pairwise(times) if after - before >= gap and after <= time), default=times[0]
    )
    last = min(
        (before for before, after in pairwise(times) if after - before >= gap and before >= time), default=times[-1]
    )
    return first, last + gap, any(loose for other, at, loose in rows if other == key and first <= at <= last)
