"""Checks of outputs with provenance: each check is a condition on rows, and a sentence about the rows that meet it.

Rule: a finding names the sink, the record, and the problem; one row may violate several checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.checks.verdict import Check
from kafka_eos.audit.tables.float_tolerance import same_value
from kafka_eos.audit.tables.plan_cut import Cut, refuser_of
from kafka_eos.core.ids import EpochId
from kafka_eos.core.provenance import TIMERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from kafka_eos.runtime.state.timers import GroupWatermark

AT = ("topic", "partition", "offset")
_BY_NUMBER = ("series", "sink")
_OF_A_KEY = (*_BY_NUMBER, "grp_text")
"""The columns of a key, with its text, because two keys may share a number."""
_COLUMNS = frozenset({
    "copy", "id", "epoch", "term", "sink", "preview", "e_preview", "update", "e_update", "before", "grp_text", "home",
    "written_id", "read_id", "x.preview", "y.e_preview", "time", "e_time", "file_epoch", "first", "end",
})  # fmt: skip


def visible(table: DataFrame, undecided: Collection[EpochId]) -> DataFrame:
    """Return violations among the visible outputs alone."""
    aborted = _text("it was written by epoch ", "epoch", " of term ", "term", ", which was never committed: ", "id")
    copy = _text("copy ", "copy", " of the output ", "id", ", written by epoch ", "epoch", " of term ", "term")
    away = F.when(
        F.col("file_epoch").isNotNull(),
        _text("it is in a file of epoch ", "file_epoch", ", but epoch ", "epoch", " wrote it: ", "id"),
    ).otherwise(_text("its key belongs in partition ", "home", ": ", "preview"))
    elsewhere = F.col("home").isNotNull() | (F.col("file_epoch") != F.col("epoch"))
    return flagged(
        table,
        [
            _malformed(),
            flag(Check.FOREIGN, ~F.col("ours") & ~F.col("torn"), F.lit("it has no valid kafka_eos header")),
            flag(Check.DUPLICATE, F.col("copy") > 1, copy),
            flag(Check.ABORTED_VISIBLE, _written_by(undecided), aborted),
            flag(Check.MISPLACED, F.col("ours") & elsewhere, away),
        ],
    )


def malformed(table: DataFrame) -> DataFrame:
    """Flag malformed lines among outputs without provenance."""
    return flagged(table, [_malformed()])


def _malformed() -> Column:
    return flag(Check.MALFORMED, F.col("torn"), _text("it is not a complete line of this sink: ", "preview"))


def hidden(table: DataFrame, committed: Collection[EpochId]) -> DataFrame:
    """Flag outputs of committed epochs that are not visible."""
    detail = _text("epoch ", "epoch", " of term ", "term", " is committed, but its output is not visible: ", "id")
    return flagged(table, [flag(Check.COMMITTED_HIDDEN, _written_by(committed), detail)])


def misdated(table: DataFrame, intervals: DataFrame) -> DataFrame:
    """Return visible outputs of a committed epoch that did not process their input record, with the columns of
    ``jobs.Scan``.
    """
    with_intervals = table.withColumn("stream", F.concat_ws("/", "source", "s_topic")).join(
        F.broadcast(intervals), ["term", "epoch", "stream", "s_partition"]
    )
    wrong = ~F.col("s_offset").between(F.col("first"), F.col("end") - 1)
    detail = _text(
        "it names epoch ", "epoch", " of term ", "term", ", which processed offsets from ", "first",
        " up to, but not including, ", "end", ": ", "id",
    )  # fmt: skip
    return flagged(with_intervals, [flag(Check.WRONG_EPOCH, wrong, detail)])


def premature(table: DataFrame, reached: Mapping[str, Sequence[GroupWatermark]]) -> DataFrame:
    """Return visible event-time firings whose time the watermark had not reached when the job ended; see
    ``windows.judged``.
    """
    early = F.lit(False)
    for operator, floors in reached.items():
        for first, last, time in floors:
            beyond = F.col("s_partition").between(first, last) & (F.col("s_offset") > time)
            early |= (F.col("source") == operator) & beyond
    detail = _text("when the job ended, the watermark had not reached the time of the firing ", "id", ": ", "preview")
    return flagged(table.where(F.col("s_topic") == TIMERS), [flag(Check.UNEXPECTED, early, detail)])


def pairs(table: DataFrame, cut: Cut, excluded: Collection[str], suspected: Collection[Check]) -> list[DataFrame]:
    """Return violations among outputs compared with the recompute, with the columns of ``jobs.Scan``.

    ``excluded``: sinks that are not compared.
    ``suspected``: the checks that may find something among the rows of a series; see ``suspects``.
    """
    comparable = _comparable(table, cut)
    numbered = comparable.where(~F.col("loose") | ~F.col("sink").isin([*excluded])) if excluded else comparable
    of_series = {
        Check.WRONG_TOTAL: lambda: _wrong_totals(table.where("not excused")),
        Check.UPDATE_GAP: lambda: gaps(numbered, cut.steady),
        Check.REORDERED: lambda: _overtaking(comparable, cut),
    }
    return [flagged(table, _compared(cut)), *(of_series[check]() for check in of_series if check in suspected)]


def _comparable(table: DataFrame, cut: Cut) -> DataFrame:
    """Drop rows of other code, and rows that may belong to another key than in the recompute, because of the order or
    of unsteady outputs.
    """
    table = table.where("not excused")
    return table.where(~F.col("loose")) if cut.nested else table


def suspects(table: DataFrame, cut: Cut) -> DataFrame:
    """Return, in the column ``check``, the checks along a series that may find something.

    These checks sort texts several times, mostly without a finding. Rule: if each output of a series has the expected
    number and value, no two have the same number, and none is missing, there is no gap and no wrong total.
    """
    plain = F.col("there").isNotNull() & ~F.col("loose") & ~F.col("summed") & ~F.col("answered")
    plain &= F.col("update").eqNullSafe(F.col("e_update")) & same_value()
    odd = (
        table.where("should and e_update is not null and not excused")
        .where(~plain | F.lit(not cut.one_an_update))
        .limit(1)
    )
    of_numbers = F.explode(F.array(F.lit(Check.WRONG_TOTAL.name), F.lit(Check.UPDATE_GAP.name)))
    reordered = _in_order(_comparable(table, cut), cut, _BY_NUMBER).where("late or early").limit(1)
    return odd.select(of_numbers.alias("check")).union(reordered.select(F.lit(Check.REORDERED.name).alias("check")))


def doubtful(sinks: Collection[str], cut: Cut) -> Column:
    """Return whether a difference may be caused by the order of records, by expired state or by the number of workers.

    For a missing output the recompute knows whether its key has such an order; for a dead letter, which operator
    rejected the record. ``sinks``: the sinks to which this applies.
    """
    letter, copied = F.col("sink").isin([*cut.letters]), F.col("sink").isin([*cut.copied])
    fickle = copied | F.when(letter, refuser_of("id").isin([*cut.moody])).otherwise(
        F.col("should").isNull() | F.col("loose")
    )
    alone = F.col("there").isNull() | F.col("should").isNull()
    return F.col("sink").isin([*sinks]) & alone & ~F.col("answered") & ~F.col("excused") & fickle


def differs() -> Column:
    """Return whether an output is missing, unexpected or not what the recompute makes."""
    alone = (F.col("there").isNull() & ~F.col("summed")) | F.col("should").isNull()
    return (alone & ~F.col("answered")) | F.col("absent") | F.col("again") | _is_wrong()


def is_near(tolerance: float) -> Column:
    """Return whether the floats of a compared output are near the recomputed ones, but not within ``tolerance``."""
    compared = (F.col("strict") & ~F.col("summed")) | F.col("closing")
    return compared & same_value() & ~same_value(tolerance=tolerance)


def _is_wrong() -> Column:
    one = F.col("strict") & ~F.col("summed") & (_says_other() | _has_other_update())
    return one | (F.col("closing") & _says_other())


def _says_other() -> Column:
    """Return whether key, value, headers or timestamp of an output differ from those of the recompute."""
    equal = same_value()
    for column in ("key_hash", "headers_hash"):
        equal &= F.col(column).eqNullSafe(F.col(f"e_{column}"))
    return ~equal | _has_other_time()


def _has_other_time() -> Column:
    # Null where it is the time of sending, or the broker's.
    return F.coalesce(F.col("time") != F.col("e_time"), F.lit(False))


def _has_other_update() -> Column:
    return ~F.col("update").eqNullSafe(F.col("e_update"))


def _compared(cut: Cut) -> list[Column]:
    # What is refused below a fold with merge= the recompute refuses of other records.
    untraced = F.col("summed") & F.lit(bool(cut.letters))
    wrong_value = ~same_value()
    wrong_key = ~F.col("key_hash").eqNullSafe(F.col("e_key_hash"))
    wrong_headers = ~F.col("headers_hash").eqNullSafe(F.col("e_headers_hash"))
    what = (
        F.when(wrong_value, _text("id", ": it is ", "preview", ": expected ", "e_preview"))
        .when(wrong_key, _text("id", ": its key differs from the recomputed one"))
        .when(wrong_headers, _text("id", ": its headers differ from the recomputed ones"))
        .when(_has_other_time(), _text("id", ": its timestamp is ", "time", ": expected ", "e_time"))
        .otherwise(_text("id", ": its update number is ", "update", ": expected ", "e_update"))
    )
    no_answer = _text("the dead letter ", "id", " does not account for a missing output: ", "preview")
    unknown = F.when(F.col("sink").isin([*cut.letters]), no_answer).otherwise(
        _text("the recompute does not produce ", "id", ": ", "preview")
    )
    settled = F.col("answered") | F.col("doubted") | F.col("excused")
    missing = _text("its output ", "id", " to sink ", "sink", " is missing: ", "e_preview")
    # The update number of a sum counts epochs; see ``gaps``.
    again = _text("key ", "grp_text", " has another output of epoch ", "epoch", ": ", "id")
    return [
        flag(Check.LOST, (F.col("there").isNull() & ~F.col("summed") & ~settled) | F.col("absent"), missing, at="e_"),
        flag(Check.UNEXPECTED, F.col("should").isNull() & ~untraced & ~settled, unknown),
        flag(Check.UNEXPECTED, F.col("again"), again),
        flag(Check.WRONG_VALUE, _is_wrong(), what),
    ]


def _wrong_totals(table: DataFrame) -> DataFrame:
    comparable = table.where("should and not answered and (summed or not loose) and e_update is not null")
    is_last = F.max_by(F.struct(*AT, "value_hash", "floats", "preview"), F.struct("update", "topic", "offset"))
    made = F.struct(*(f"e_{c}" for c in (*AT, "value_hash", "floats", "preview")))
    should_last = F.max_by(made, F.col("e_update"))
    grouped = comparable.groupBy(*_OF_A_KEY).agg(is_last.alias("x"), should_last.alias("y"))
    wrong = grouped.where(~same_value("x.", "y."))
    detail = _text("the last value of key ", "grp_text", " is ", "x.preview", ": expected ", "y.e_preview")
    at = [F.coalesce(F.col(f"x.{c}"), F.col(f"y.e_{c}")).alias(c) for c in AT]
    return wrong.select(F.lit(Check.WRONG_TOTAL.name).alias("check"), "sink", *at, detail.alias("detail"))


def gaps(table: DataFrame, steady: bool) -> DataFrame:
    """Return outputs whose update number does not follow the expected one.

    Nodes between a keyed operator and a sink may legitimately omit some outputs, so the recompute determines the
    sequence. For keys whose order is unknown, the numbers are 1, 2, 3 … if every update emits an output (``steady``).
    Outputs of such a key that a sink rejected have unknown numbers in between: the existing numbers are different, and
    none is beyond the last.
    """
    of_key = Window.partitionBy(*_OF_A_KEY)
    # 0, or as many updates as the key had in the savepoint that the recompute began with.
    first = F.min("e_update").over(of_key) - 1
    before = F.coalesce(F.lag("update").over(of_key.orderBy("update", *AT)), first)
    e_before = F.coalesce(F.lag("e_update").over(of_key.orderBy("e_update", "id")), first)
    # What its sink refused is not there with right. Its number is known where the order of its key is.
    number = F.when(F.col("answered") & ~F.col("loose"), F.col("e_update")).otherwise(F.col("update"))
    rows = table.where("should and e_update is not null").withColumn("update", number)
    holed, last = F.max("answered").over(of_key), first + F.count(F.lit(1)).over(of_key)
    ordered = rows.withColumns({"holed": holed, "last": last, "before": before, "e_before": e_before})
    known = (F.col("before") != F.col("e_before")) | (F.col("update") != F.col("e_update"))
    skipped = F.col("update") != F.col("before") + 1
    outside = (F.col("update") <= F.col("before")) | (F.col("update") > F.col("last"))
    counted = F.lit(steady) & F.when(F.col("holed"), outside).otherwise(skipped)
    gap = F.when(F.col("summed"), skipped).when(~F.col("loose"), known).otherwise(counted)
    detail = _text("key ", "grp_text", " has update ", "update", " after update ", "before")
    return flagged(ordered.where("there and update is not null"), [flag(Check.UPDATE_GAP, gap, detail)])


def _overtaking(table: DataFrame, cut: Cut) -> DataFrame:
    """Return outputs after a later one in the output, or before an earlier one of their input partition."""
    detail = F.when(
        F.col("late"), _text("the output ", "id", " comes after ", "written_id", ", which is later")
    ).otherwise(_text("the output ", "id", " has a lower update than ", "read_id", ", which was read before it"))
    ordered = _in_order(table, cut, _OF_A_KEY)
    return flagged(ordered, [flag(Check.REORDERED, F.col("late") | F.col("early"), detail)])


def _in_order(table: DataFrame, cut: Cut, series: Sequence[str]) -> DataFrame:
    """Return outputs with ``late`` and ``early``, and the ids of the preceding outputs, as written and as read.

    Between input partitions, and after an exchange other than by key, only update numbers define an order. Dead letters
    have no order, because records are rejected in several workers.
    """
    keyed = F.col("update").isNotNull()
    head = F.substring_index("path", "-", 1).cast("bigint")
    path = F.when(F.contains("path", F.lit("-")), F.split("path", "-").cast("array<bigint>"))
    both = table.where("there and should").withColumns(
        {
            "number": F.coalesce("update", "s_offset"),
            "head": head,
            "rest": F.coalesce(path, F.array().cast("array<bigint>")),
        }
    )
    stream = ("source", "s_topic", "s_partition", "lane")
    of_stream = [F.when(~keyed, F.col(c)) for c in stream]
    written = Window.partitionBy(*series, *of_stream, "partition").orderBy("topic", "offset")
    read = Window.partitionBy(*series, *stream).orderBy("s_offset", "head", "rest")
    columns = ("number", "head", "rest", "id")
    both = both.withColumns({f"written_{c}": F.lag(c).over(written) for c in columns})
    both = both.withColumns({f"read_{c}": F.lag(c).over(read) for c in ("number", "id")})
    shuffled, astray = F.col("sink").isin([*cut.shuffled, *cut.letters]), F.col("sink").isin([*cut.astray])
    behind = F.col("number") < F.col("written_number")
    late = (keyed & ~astray & behind) | (~keyed & ~shuffled & (behind | _same_record_later()))
    early = keyed & ~shuffled & ~F.col("sink").isin([*cut.parted]) & (F.col("number") < F.col("read_number"))
    return both.withColumns({"late": F.coalesce(late, F.lit(False)), "early": F.coalesce(early, F.lit(False))})


def _same_record_later() -> Column:
    """Return whether the preceding row comes from the same record, by a later path."""
    further = (F.col("head") == F.col("written_head")) & (F.col("rest") < F.col("written_rest"))
    return (F.col("number") == F.col("written_number")) & ((F.col("head") < F.col("written_head")) | further)


# ---------------------------------------------------------------- rows that break a check


def flag(check: Check, broken: Column, detail: Column, at: str = "") -> Column:
    """Return the violation of a row, or null. ``at``: the prefix of the columns that locate it."""
    place = [F.col(f"{at}{c}").alias(c) for c in AT]
    return F.when(broken, F.struct(F.lit(check.name).alias("check"), "sink", *place, detail.alias("detail")))


def flagged(table: DataFrame, flags: Sequence[Column]) -> DataFrame:
    """Return one row for each flag of each row: ``check``, ``sink``, location and ``detail``."""
    table = table.where(F.coalesce(*(flag["check"] for flag in flags)).isNotNull())
    return table.select(F.inline(F.array_compact(F.array(*flags))))


def _written_by(epochs: Collection[EpochId]) -> Column:
    attempts = [f"{epoch.term}.{epoch.epoch}" for epoch in epochs]
    return F.concat_ws(".", "term", "epoch").isin(attempts) & F.col("ours")


def _text(*parts: str) -> Column:
    """Return a sentence as a column: names of columns stand for their values, other parts are literal."""
    return F.concat_ws("", *(F.col(part).cast("string") if part in _COLUMNS else F.lit(part) for part in parts))
