"""The windows of a row, by its event time, in Spark SQL.

A window is ``struct<start, end>`` in milliseconds since 1970, without its end. Rule: this follows from the definition
of the kinds of windows, and shares nothing with ``plan.window_assigners``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.plan.window_assigners import (
    DayWindows,
    EarlyTumblingWindows,
    PanedAssigner,
    SlidingWindows,
    TumblingWindows,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def windows_of(assigner: PanedAssigner, time: Column) -> Column:
    """Return all windows that contain a row of that time, in the order of their ends."""
    match assigner:
        case TumblingWindows(size=size, offset=offset):
            start = _floor(time, offset, size)
            return F.array(_window(start, start + size))
        case EarlyTumblingWindows(size=size, every=every, offset=offset):
            start = _floor(time, offset, size)
            ends = F.sequence(_floor(time, offset, every) + every, start + size, F.lit(every).cast("long"))
            return F.transform(ends, lambda end: _window(start, end))
        case SlidingWindows(size=size, every=every, offset=offset):
            last = _floor(time, offset, every)
            before = F.floor((F.lit(size - 1) - (time - last)) / every).cast("long")
            starts = F.sequence(last - before * every, last, F.lit(every).cast("long"))
            return F.transform(starts, lambda start: _window(start, start + size))
        case DayWindows(timezone=zone):
            return F.array(_day(time, zone))
    raise TypeError(f"{assigner} are windows that an audit does not know")


def _window(start: Column, end: Column) -> Column:
    return F.struct(start.cast("long").alias("start"), end.cast("long").alias("end"))


def _floor(time: Column, offset: int, size: int) -> Column:
    return time - F.pmod(time - F.lit(offset), F.lit(size).cast("long"))


def _day(time: Column, zone: str) -> Column:
    """Return the calendar day of a time. If a date occurs twice, its second part belongs to the next day."""
    # The session's time zone is UTC: without a zone, a timestamp is what a clock in UTC shows.
    there = F.convert_timezone(F.lit("UTC"), F.lit(zone), F.timestamp_millis(time).cast("timestamp_ntz"))
    date = there.cast("date")
    again = time >= _midnight(F.date_add(date, 1), zone)
    day = F.when(again, F.date_add(date, 1)).otherwise(date)
    return _window(_midnight(day, zone), _midnight(F.date_add(day, 1), zone))


def _midnight(date: Column, zone: str) -> Column:
    """Return the time at which a date begins in a time zone, in milliseconds."""
    local = date.cast("timestamp_ntz")
    return F.unix_millis(F.convert_timezone(F.lit(zone), F.lit("UTC"), local).cast("timestamp"))


def sessions(rows: DataFrame, gap: int) -> DataFrame:
    """Add the sessions of rows as ``windows``; a session is ``loose`` if one of its rows is."""
    in_time = Window.partitionBy("grp").orderBy("time")
    begins = F.coalesce(F.col("time") - F.lag("time").over(in_time) >= gap, F.lit(True))
    numbered = rows.withColumn("begins", begins.cast("int"))
    numbered = numbered.withColumn("session", F.sum("begins").over(in_time.rangeBetween(Window.unboundedPreceding, 0)))
    whole = Window.partitionBy("grp", "session")
    window = _window(F.min("time").over(whole), F.max("time").over(whole) + gap)
    found = numbered.withColumns({"windows": F.array(window), "loose": F.max("loose").over(whole)})
    return found.drop("begins", "session")
