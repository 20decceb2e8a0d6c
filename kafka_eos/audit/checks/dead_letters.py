"""Dead letters of outputs that only their sink could reject, for example because they exceed the topic's size limit,
and of timers whose function raised. The recompute may produce these outputs, and cannot know that they were rejected.

A dead letter's branch ends with the path and the lane of the rejected output, and the number of the operator that
rejected it (``OperatorChain``). Rule: one letter accounts for one missing output of the same record, path and sink. A
letter whose output exists accounts for nothing, and neither does a second letter. A letter of a timer accounts for all
missing outputs of its firing, of which there may be none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.tables.plan_cut import refuser_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LANE = 0
"""The lane of every dead letter."""


def answered(pairs: DataFrame, letters: Sequence[str], timers: Collection[str] = ()) -> DataFrame:
    """Return ``sink`` and ``id`` of the outputs for which a dead letter accounts, and of these letters.

    ``pairs``: outputs joined with the recompute; ``there`` and ``should`` state which side exists.
    ``letters``: the sinks of dead letters. ``timers``: the operators with timers.
    """
    letter_outputs = pairs.where("should is null").where(F.col("sink").isin([*letters]))
    missing = pairs.where("there is null")
    one_to_one = _numbered(letter_outputs, _refused(), "letter").join(
        _numbered(missing, _refusal(), "output"), ["refusal", "n"]
    )
    found = one_to_one.select(F.explode(F.array("letter", "output")).alias("one")).select("one.*")
    if not timers:
        return found
    fired = letter_outputs.where(is_of_timer(timers))
    outputs = missing.where(_operator().isin([*timers])).withColumn("firing", _firing())
    unfired = outputs.join(fired.select(_firing().alias("firing")), "firing", "left_semi")
    return found.union(fired.select("sink", "id")).union(unfired.select("sink", "id")).distinct()


def is_of_timer(timers: Collection[str]) -> Column:
    """Return whether a dead letter is of a timer of one of these operators, and not of a row that it rejected."""
    return _operator().isin([*timers]) & (refuser_of("id") == _number_of(_operator()))


def _numbered(table: DataFrame, refusal: Column, name: str) -> DataFrame:
    """Return the rows of ``table`` as ``name``, numbered within ``refusal``, the identity of a rejection."""
    order = Window.partitionBy("refusal").orderBy(_ordinal())
    numbered = table.select("sink", "id", refusal.alias("refusal")).withColumn("n", F.row_number().over(order))
    return numbered.select("refusal", "n", F.struct("sink", "id").alias(name))


def _refused() -> Column:
    """Return the rejected record that a dead letter names: its id without its number."""
    return F.regexp_replace("id", r"\d+$", "")


def _refusal() -> Column:
    """Return the id, without its number, that a dead letter of an output would have."""
    record, path = F.substring_index("id", "/", 4), F.substring_index("id", "/", -1)
    lane, branch = F.substring_index(path, ".", 1), F.regexp_extract(path, r"\.((?:\d+-)*)\d+$", 1)
    return F.concat(record, F.lit(f"/{_LANE}."), branch, lane, F.lit("-"), _number_of(F.col("sink")), F.lit("-"))


def _number_of(operator: Column) -> Column:
    """Return what ``rejections.hash_operator`` does."""
    return F.crc32(operator.cast("binary")).cast("string")


def _operator() -> Column:
    """Return the operator whose timers emitted an output, or the source of another one."""
    return F.substring_index("id", "/", 1)


def _firing() -> Column:
    """Return the operator, the kind of timers, the time and the key of a firing."""
    return F.concat(F.substring_index("id", "/", 4), F.lit("/"), F.regexp_extract("id", r"\.(\d+-\d+-)[^/]*$", 1))


def _ordinal() -> Column:
    return F.regexp_extract("id", r"(\d+)$", 1).cast("long")
