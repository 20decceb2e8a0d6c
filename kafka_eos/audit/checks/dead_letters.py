"""Dead letters of outputs that only their sink could reject, for example because they exceed the topic's size limit.
The recompute produces these outputs, and cannot know that they were rejected.

A dead letter's branch ends with the path and the lane of the rejected output, and the number of the operator that
rejected it (``OperatorChain``). Rule: one letter accounts for one missing output of the same record, path and sink. A
letter whose output exists accounts for nothing, and neither does a second letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LANE = 0
"""Of every dead letter."""


def answered(pairs: DataFrame, letters: Sequence[str]) -> DataFrame:
    """Return ``sink`` and ``id`` of the outputs for which a dead letter accounts, and of these letters.

    ``pairs``: outputs joined with the recompute; ``there`` and ``should`` state which side exists.
    ``letters``: the sinks of dead letters.
    """
    letter_outputs = pairs.where("should is null").where(F.col("sink").isin([*letters]))
    missing = pairs.where("there is null")
    one_to_one = _numbered(letter_outputs, _refused(), "letter").join(
        _numbered(missing, _refusal(), "output"), ["refusal", "n"]
    )
    return one_to_one.select(F.explode(F.array("letter", "output")).alias("one")).select("one.*")


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
    number = F.crc32(F.col("sink").cast("binary")).cast("string")
    return F.concat(record, F.lit(f"/{_LANE}."), branch, lane, F.lit("-"), number, F.lit("-"))


def _ordinal() -> Column:
    return F.regexp_extract("id", r"(\d+)$", 1).cast("long")
