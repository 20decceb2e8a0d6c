"""The tables of an audit of state: the stored rows, the recomputed rows, and their differences.

Rule: rows are matched by their whole state key, never by a hash of it. Only rows that differ in a byte are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit.checks.comparison_tables import ComparisonTables
from kafka_eos.audit.checks.observed_tables import ObservedTables
from kafka_eos.audit.checks.verdict import SHOWN
from kafka_eos.audit.facts.checkpoint_state import Checkpoint
from kafka_eos.audit.state import difference_text as words
from kafka_eos.audit.state import state_rows as rows
from kafka_eos.audit.state.state_rows import Form
from kafka_eos.audit.state.uncertain_state import Name
from kafka_eos.core.json_values import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AT = ("operator", "state", "place")


@dataclass(frozen=True)
class StateScope:
    """The state to compare. ``compared.steps`` is the input of the recompute."""

    app: str
    workers: int
    serial: bool
    seen: ObservedTables
    compared: ComparisonTables
    checkpoint: Checkpoint
    handles: int
    """The number of state handles in the checkpoint."""
    savepoint: str | None
    """The location of the state with which the recompute begins; None if it begins without state."""
    form: Form
    described: Mapping[Name, Mapping[str, Json]]
    """The stored descriptions of the states."""


@dataclass(frozen=True)
class Difference:
    """Rows of a state that differ in one way: how many, and the first of them in words."""

    operator: str
    state: str
    kind: str
    loose: bool
    count: int
    first: tuple[str, ...]


class StateScan:
    """One comparison of a checkpoint with its recompute. ``ObservedTables`` holds the tables; its owner closes it."""

    def __init__(self, spark: SparkSession, scope: StateScope) -> None:
        self._spark, self._scope = spark, scope

    def stored(self) -> dict[Name, tuple[int, int]]:
        """Count for each state the rows of the checkpoint that are compared, and those that are not."""
        compared = F.count("place")
        counted = self._stored.groupBy("operator", "state").agg(
            compared.alias("n"), (F.count(F.lit(1)) - compared).alias("others")
        )
        return {(row["operator"], row["state"]): (row["n"], row["others"]) for row in counted.collect()}

    def made(self) -> int:
        """Return how many rows the recompute makes."""
        return self._expected.count()

    def differences(self) -> list[Difference]:
        """Return all rows that differ, by state and kind; ``loose`` rows are those of keys with an unknown order."""
        scope = self._scope
        judged = partial(words.describe_differences, scope.app, scope.workers, scope.form.merging, scope.described)
        described = scope.seen.hold(self._different().mapInArrow(judged, words.TOLD))
        kind = ("operator", "state", "kind", "loose")
        of_kind = Window.partitionBy(*kind)
        numbered = described.withColumn("n", F.count("*").over(of_kind))
        ranked = numbered.withColumn("rank", F.row_number().over(of_kind.orderBy("place", "detail")))
        found: dict[tuple[str, str, str, bool], tuple[int, list[str]]] = {}
        for row in ranked.where(F.col("rank") <= SHOWN).orderBy(*kind, "rank").collect():
            _, first = found.setdefault(tuple(row[c] for c in kind), (row["n"], []))
            first.append(row["detail"])
        return [Difference(*of, count, tuple(first)) for of, (count, first) in found.items()]

    # ------------------------------------------------------------ tables

    @cached_property
    def _stored(self) -> DataFrame:
        scope = self._scope
        numbers = self._spark.range(0, scope.handles, 1, max(1, scope.handles))
        return scope.seen.hold(numbers.mapInArrow(partial(rows.stored, scope.checkpoint, scope.form), rows.STORED))

    @cached_property
    def _made(self) -> DataFrame:
        scope = self._scope
        table, _ = scope.compared.steps
        run = rows.recomputed_alone if scope.serial else rows.recomputed
        task = partial(run, scope.app, scope.workers, scope.savepoint, scope.form)
        return scope.seen.hold(table.mapInArrow(task, rows.MADE))

    @cached_property
    def _expected(self) -> DataFrame:
        """Return the recomputed state, and the state that a savepoint holds for keys that are not in the input."""
        scope = self._scope
        made = self._made.where("state is not null").select(*_AT, "grp", F.col("value").alias("made"))
        if scope.savepoint is None or scope.serial:
            return made
        seen = self._made.where("state is null").select("operator", "grp")
        task = partial(rows.restored, scope.app, scope.workers, scope.savepoint, scope.form)
        kept = self._spark.range(0, 1, 1, 1).mapInArrow(task, rows.MADE).join(seen, ["operator", "grp"], "left_anti")
        return made.unionByName(kept.select(*_AT, "grp", F.col("value").alias("made")))

    def _different(self) -> DataFrame:
        here = self._stored.where("place is not null and not astray").select(*_AT, "grp", "value")
        both = here.join(self._expected.withColumnRenamed("grp", "made_grp"), [*_AT], "full")
        both = both.where(~F.col("value").eqNullSafe(F.col("made")))
        both = both.select(*_AT, F.coalesce("grp", "made_grp").alias("grp"), "value", "made").withColumn(
            "astray", F.lit(False)
        )
        astray = self._stored.where("astray").select(
            *_AT, "grp", "value", F.lit(None).cast("binary").alias("made"), "astray"
        )
        loose = self._made.where("state is null and loose").select("operator", "grp", F.lit(True).alias("loose"))
        every = both.unionByName(astray).join(loose, ["operator", "grp"], "left")
        return every.select(*_AT, "value", "made", "astray", F.coalesce("loose", F.lit(False)).alias("loose"))
