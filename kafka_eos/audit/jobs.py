"""The scans: what is visible, what should be, and every record that breaks a check.

Parsing, joining, ordering and counting run in the JVM; Python workers only run the pipeline's own functions
(``tasks``). Rule: each check looks at the records themselves; nothing is derived from offset arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from kafka_eos.audit import reads
from kafka_eos.audit.ledger import Ledger
from kafka_eos.audit.reads import Bounds
from kafka_eos.audit.recompute import expected
from kafka_eos.audit.subject import Cut, Subject
from kafka_eos.audit.verdict import Check, Offender

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN = 5
"""Offending records that are kept for each check."""

Found = Mapping[Check, tuple[int, tuple[Offender, ...]]]


@dataclass(frozen=True)
class Scope:
    """What to scan: everything is fixed before the first scan."""

    app: str
    """Where workers find the user's file, as ``AppRef.parse`` reads it."""
    subject: Subject
    cut: Cut
    ledger: Ledger
    inputs: Mapping[str, Bounds]
    """By source: from the job's start to the position of its last committed epoch."""
    ahead: Mapping[str, Bounds]
    """By source: from there to the pinned end."""
    outputs: Mapping[str, Bounds]
    """By sink: the whole topic up to the pinned end."""

    @property
    def streams(self) -> int:
        """Input partitions with something in them."""
        return sum(end > start for bounds in self.inputs.values() for start, end in bounds.values())


@dataclass(frozen=True)
class Totals:
    """What was looked at, in records."""

    inputs: int
    ahead: int
    """Input that no committed epoch covers yet."""
    outputs: int
    invisible: int
    expected: int
    loose: int
    """Outputs whose values cannot be compared: see ``recompute``."""
    keys: int


class Scan:
    """One audit's tables. ``close`` frees what Spark holds for them."""

    def __init__(self, spark: SparkSession, scope: Scope) -> None:
        self._spark, self._scope = spark, scope
        topics = [(sink, scope.outputs[sink.node]) for sink in scope.subject.sinks]
        copies = Window.partitionBy("sink", "id").orderBy("topic", "partition", "offset")
        visible = reads.outputs(spark, topics, committed=True)
        self._visible = visible.withColumn("copy", F.when(F.col("ours"), F.row_number().over(copies))).persist()
        self._all = reads.outputs(spark, topics, committed=False)
        self._inputs = self._read(scope.inputs)

    def close(self) -> None:
        self._visible.unpersist()
        if "_pairs" in self.__dict__:
            self._pairs.unpersist()

    # ------------------------------------------------------------ tables

    def _read(self, bounds: Mapping[str, Bounds]) -> DataFrame:
        sources = self._scope.subject.sources
        return _union([reads.inputs(self._spark, source, bounds[source.node]) for source in sources])

    @cached_property
    def _pairs(self) -> DataFrame:
        """Each output that exists or should, once: what is there beside what the recompute made."""
        sinks = frozenset(sink.node for sink in self._scope.subject.sinks)
        first = self._visible.where("copy = 1")
        should = expected(self._scope.app, self._scope.cut, sinks, self._inputs, first, self._scope.streams)
        should = should.where(F.col("sink").isin(*sinks)).withColumn("should", F.lit(True))
        pairs = first.withColumn("there", F.lit(True)).join(should, ["sink", "id"], "full")
        return pairs.withColumn("strict", F.col("there") & F.col("should") & ~F.col("loose")).persist()

    @cached_property
    def _hidden(self) -> DataFrame:
        """Outputs that read_committed readers do not get."""
        return self._all.join(self._visible, ["topic", "partition", "offset"], "left_anti")

    @cached_property
    def _committed(self) -> DataFrame:
        """(term, epoch) of every epoch that was committed."""
        rows = [(id.term.n, id.epoch.n) for id in self._scope.ledger.committed]
        return F.broadcast(self._spark.createDataFrame(rows, "term int, epoch long"))

    # ------------------------------------------------------------ totals

    def totals(self, *, recompute: bool) -> Totals:
        """Count what was looked at; ``recompute`` says whether expected outputs are to be counted too."""
        counts = [
            _counted("inputs", self._inputs),
            _counted("ahead", self._read(self._scope.ahead)),
            _counted("outputs", self._visible),
            _counted("invisible", self._hidden),
        ]
        if recompute:
            should = self._pairs.where("should")
            counts.append(_counted("expected", should))
            counts.append(_counted("loose", should.where("loose")))
            counts.append(_counted("keys", should.where("e_update is not null").select("grp").distinct()))
        found = {row["what"]: int(row["n"]) for row in _union(counts).collect()}
        names = ("inputs", "ahead", "outputs", "invisible", "expected", "loose", "keys")
        return Totals(*(found.get(name, 0) for name in names))

    def by_epoch(self) -> dict[tuple[int, int], tuple[int, Offender]]:
        """Visible outputs of each (term, epoch), and the first of them."""
        first = F.min(F.struct("topic", "partition", "offset")).alias("first")
        table = self._visible.where("ours").groupBy("term", "epoch").agg(F.count("*").alias("n"), first)
        return {
            (row["term"], row["epoch"]): (row["n"], Offender(*row["first"], detail="the first output of the epoch"))
            for row in table.collect()
        }

    # ------------------------------------------------------------ findings

    def find(self, checks: Sequence[Check]) -> Found:
        """Every offending record of ``checks``: how many, and the first of them. One Spark action."""
        makers = {
            Check.FOREIGN: self._foreign,
            Check.DUPLICATE: self._duplicates,
            Check.ABORTED_VISIBLE: self._aborted_visible,
            Check.COMMITTED_HIDDEN: self._committed_hidden,
            Check.LOST: self._lost,
            Check.UNEXPECTED: self._unexpected,
            Check.WRONG_VALUE: self._wrong_values,
            Check.WRONG_TOTAL: self._wrong_totals,
            Check.UPDATE_GAP: self._update_gaps,
            Check.REORDERED: self._reordered,
        }
        tables = [makers[check]().withColumn("check", F.lit(check.name)) for check in checks]
        every = _union(tables)
        ranked = Window.partitionBy("check").orderBy("topic", "partition", "offset", "detail")
        whole = Window.partitionBy("check")
        kept = every.withColumn("n", F.count("*").over(whole)).withColumn("rank", F.row_number().over(ranked))
        rows = kept.where(F.col("rank") <= SHOWN).orderBy("check", "rank").collect()
        found: dict[Check, tuple[int, tuple[Offender, ...]]] = {}
        for row in rows:
            offender = Offender(row["topic"], row["partition"], row["offset"], row["detail"])
            found[Check[row["check"]]] = (row["n"], (*found.get(Check[row["check"]], (0, ()))[1], offender))
        return found

    def _foreign(self) -> DataFrame:
        return self._visible.where("not ours").select(*_at(), _text("it has no valid kafka_eos header"))

    def _duplicates(self) -> DataFrame:
        detail = _text("copy ", "copy", " of the output ", "id", ", written by epoch ", "epoch", " of term ", "term")
        return self._visible.where("copy > 1").select(*_at(), detail)

    def _aborted_visible(self) -> DataFrame:
        detail = _text("it was written by epoch ", "epoch", " of term ", "term", ", which was never committed: ", "id")
        rows = self._visible.where("ours").join(self._committed, ["term", "epoch"], "left_anti")
        return rows.select(*_at(), detail)

    def _committed_hidden(self) -> DataFrame:
        detail = _text("epoch ", "epoch", " of term ", "term", " is committed, but this output of it is not: ", "id")
        return self._hidden.where("ours").join(self._committed, ["term", "epoch"]).select(*_at(), detail)

    def _lost(self) -> DataFrame:
        detail = _text("its output ", "id", " to sink ", "sink", " is missing: ", "e_preview")
        return self._pairs.where("there is null").select(*_at("e_"), detail)

    def _unexpected(self) -> DataFrame:
        detail = _text("the recompute does not make the output ", "id", ": ", "preview")
        return self._pairs.where("should is null").select(*_at(), detail)

    def _wrong_values(self) -> DataFrame:
        wrong_value = ~F.col("value_hash").eqNullSafe(F.col("e_value_hash"))
        wrong_key = ~F.col("key_hash").eqNullSafe(F.col("e_key_hash"))
        wrong_update = ~F.col("update").eqNullSafe(F.col("e_update"))
        what = (
            F.when(wrong_value, _joined("it is ", "preview", " and should be ", "e_preview"))
            .when(wrong_key, F.lit("its key is not what the recompute makes"))
            .otherwise(_joined("its update number is ", "update", " and should be ", "e_update"))
        )
        rows = self._pairs.where("strict").where(wrong_value | wrong_key | wrong_update)
        return rows.select(*_at(), F.concat_ws("", F.col("id"), F.lit(": "), what).alias("detail"))

    def _wrong_totals(self) -> DataFrame:
        comparable = self._pairs.where("should and not loose and e_update is not null")
        is_last = F.max_by(F.struct("topic", "partition", "offset", "value_hash", "preview"), F.col("update"))
        should_last = F.max_by(
            F.struct("e_topic", "e_partition", "e_offset", "e_value_hash", "e_preview"), F.col("e_update")
        )
        grouped = comparable.groupBy("sink", "grp", "grp_text").agg(is_last.alias("x"), should_last.alias("y"))
        wrong = grouped.where(~F.col("x.value_hash").eqNullSafe(F.col("y.e_value_hash")))
        return wrong.select(
            *(F.coalesce(F.col(f"x.{c}"), F.col(f"y.e_{c}")).alias(c) for c in ("topic", "partition", "offset")),
            _text("the last value of key ", "grp_text", " is ", "x.preview", " and should be ", "y.e_preview"),
        )

    def _update_gaps(self) -> DataFrame:
        numbered = self._pairs.where("there and should and update is not null")
        last = F.max_by(F.struct("topic", "partition", "offset"), F.col("update")).alias("at")
        seen = (F.count("*").alias("n"), F.countDistinct("update").alias("distinct"), F.max("update").alias("top"))
        grouped = numbered.groupBy("sink", "grp", "grp_text").agg(*seen, last)
        gaps = grouped.where("n <> distinct or n <> top")
        detail = _text("key ", "grp_text", " has ", "n", " outputs with ", "distinct", " numbers up to ", "top")
        return gaps.select("at.topic", "at.partition", "at.offset", detail)

    def _reordered(self) -> DataFrame:
        """Against the order of the output partition, and, for keys, against the order of the input partition."""
        both = self._pairs.where("there and should").withColumn("series", _series()).withColumn("turn", _turn())
        out = Window.partitionBy("topic", "partition", "series").orderBy("offset")
        late = both.withColumn("before", F.lag("turn").over(out)).withColumn("before_id", F.lag("id").over(out))
        after = late.where(F.col("turn") < F.col("before"))
        said = _text("the output ", "id", " comes after ", "before_id", " and should come before it")
        keyed = both.where("update is not null")
        read = Window.partitionBy("series", "s_topic", "s_partition", "lane").orderBy("s_offset", "ordinal")
        early = keyed.withColumn("before", F.lag("turn").over(read)).withColumn("before_id", F.lag("id").over(read))
        overtaken = early.where(F.col("turn") < F.col("before"))
        told = _text("the output ", "id", " has a lower update number than ", "before_id", ", which was read before it")
        found = after.select(*_at(), said).unionByName(overtaken.select(*_at(), told))
        return found.dropDuplicates(["topic", "partition", "offset"])


def _union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), tables)


def _counted(what: str, table: DataFrame) -> DataFrame:
    return table.agg(F.count("*").alias("n")).select(F.lit(what).alias("what"), "n")


def _series() -> Column:
    """What must keep its order: the outputs of a key, or without keys those of an input partition on one path."""
    path = F.concat_ws("/", "sink", "source", "s_topic", "s_partition", "lane")
    return F.when(F.col("update").isNotNull(), F.col("grp").cast("string")).otherwise(path)


def _turn() -> Column:
    keyed = F.col("update").isNotNull()
    number = F.when(keyed, F.col("update")).otherwise(F.col("s_offset"))
    return F.struct(number.alias("number"), F.when(keyed, F.lit(0)).otherwise(F.col("ordinal")).alias("then"))


def _at(prefix: str = "") -> list[Column]:
    return [F.col(f"{prefix}{name}").alias(name) for name in ("topic", "partition", "offset")]


def _text(*parts: str) -> Column:
    return _joined(*parts).alias("detail")


_COLUMNS = frozenset(
    "copy id epoch term sink e_preview preview update e_update grp_text n distinct top before_id "
    "x.preview y.e_preview".split()
)


def _joined(*parts: str) -> Column:
    """A sentence: names of columns give their values, everything else stands for itself."""
    return F.concat_ws("", *(F.col(part).cast("string") if part in _COLUMNS else F.lit(part) for part in parts))
