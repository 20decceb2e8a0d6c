"""Readable findings of an audit of topics: records that break a check, counts and fingerprints, the report.

Rule: a record is shown with its text, looked up by its offset. Equal hashes of unequal ids are not shown and not
counted, as far as they are among the records shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from kafka_eos.audit.checks.verdict import SHOWN, Check, Observations, SkippedCheck, Violation
from kafka_eos.audit.report.report_files import Context
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.audit.topics import offset_window as window
from kafka_eos.audit.topics import topic_tables as tables
from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_scan import TERM, Attempt, Suspect, Suspects, Tally, TopicScan
from kafka_eos.audit.topics.topic_tables import OffsetWindow, Places
from kafka_eos.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Spot = tuple[int, int]
"""Place and offset."""
PARTITION = (
    "role string, topic string, partition int, records long, invisible long, sum string, xor string, first long, "
    "last long"
)
"""The columns of ``partitions`` as a table."""


def offenders(
    scan: TopicScan, question: TopicAuditOptions, check: Check, suspects: Suspects
) -> tuple[int, tuple[Violation, ...]]:
    """Return the violations with their texts, and their number."""
    n, first = suspects
    if not first:
        return n, ()
    spots = [(s.place, s.offset) for s in first if s.file is None] + [s.other for s in first if s.other is not None]
    texts = _texts(scan, question, spots)
    kept = first
    if check is Check.DUPLICATE and n <= SHOWN:
        kept = tuple(s for s in first if s.other is None or _same(texts, (s.place, s.offset), s.other))
        n -= len(first) - len(kept)
    return n, tuple(_offender(scan.places, texts, check, suspect) for suspect in kept)


def untold(scan: TopicScan, question: TopicAuditOptions, check: Check, suspects: Suspects) -> SkippedCheck:
    """Return a check as skipped, because some ids are both inside and outside of the judged range."""
    n, (first, *_) = suspects
    name, _ = _texts(scan, question, [(first.place, first.offset)]).get((first.place, first.offset), ("", ""))
    there, should = first.counts
    more_or_less = "fewer" if check is Check.LOST else "more"
    return SkippedCheck(
        f"{n} ids also occur outside of the judged range, and have {more_or_less} outputs than inputs in all (id "
        f"{name}: {there} of {should}), so it is unknown which belong together. Judge offsets (--from, --to) instead "
        "of times or a group, or use an id that belongs to one record"
    )


def _same(texts: Mapping[Spot, tuple[str, str]], a: Spot, b: Spot) -> bool:
    return a not in texts or b not in texts or texts[a][0] == texts[b][0]


def _offender(places: Places, texts: Mapping[Spot, tuple[str, str]], check: Check, suspect: Suspect) -> Violation:
    topic, partition = places.names[suspect.place]
    name, preview = texts.get((suspect.place, suspect.offset), ("", ""))
    what = f"id {name}: {preview}" if name else preview
    other = ""
    if suspect.other is not None:
        (place, number), offset = places.names[suspect.other[0]], suspect.other[1]
        other = f" {place}/{number}/{offset}"
    there, should = suspect.counts
    detail = {
        Check.DUPLICATE: f"it is visible {there} times: expected {should} times, first at{other}; {what}",
        Check.LOST: f"this input has {there} outputs and should have {max(1, should)}; {what}",
        Check.UNEXPECTED: f"no input has its id; {what}",
        Check.REORDERED: f"it comes after{other}, which is later; {what}",
        Check.MISPLACED: f"its key belongs in partition {suspect.home}; {what}",
        Check.FOREIGN: f"it has no id; {what}",
        Check.ABORTED_VISIBLE: f"another term also wrote its epoch, and only one of the two can be committed; {what}",
        Check.COMMITTED_HIDDEN: f"it is in an aborted transaction and nowhere else; {what}",
    }.get(check, what)
    return Violation(suspect.file or topic, partition, suspect.offset, detail.rstrip("; "))


def _texts(scan: TopicScan, question: TopicAuditOptions, spots: Sequence[Spot]) -> dict[Spot, tuple[str, str]]:
    """Return id and beginning of the records at some offsets of topics; each read takes one record of a partition."""
    places = scan.places
    found: dict[Spot, tuple[str, str]] = {}
    todo = {spot for spot in spots if "/" not in places.names[spot[0]][0]}
    while todo:
        chosen = dict(sorted(todo))
        todo -= set(chosen.items())
        bounds: dict[str, dict[int, tuple[int, int]]] = {}
        for place, offset in chosen.items():
            topic, partition = places.names[place]
            bounds.setdefault(topic, {})[partition] = (offset, offset + 1)
        table = scan.read(bounds, committed=False)
        name = F.regexp_extract("provenance", tables.COPY, 1)
        if not question.by_provenance:
            table = tables.with_id(tables.with_id(table, question.id), question.input_id or question.id, "of_input")
            name = F.when(F.col("topic").isin([*question.inputs]), F.col("of_input")).otherwise(F.col("named"))
        rows = table.select("topic", "partition", "offset", name.alias("id"), reads.preview("value").alias("text"))
        number = {place: i for i, place in enumerate(places.names)}
        for row in rows.collect():
            found[number[row.topic, row.partition], row.offset] = (row.id or "", row.text or "")
    return found


def attempts(scan: TopicScan, some_invisible: bool) -> dict[Check, Suspects]:
    """Judge the attempts (job, term and epoch, by source) in provenance, without the job's history.

    An epoch is committed in one term only, with all of its outputs. An incarnation of the job that began again from
    nothing may have used the same numbers. So only attempts at the same record are rivals.
    """
    visible = scan.attempts
    by_epoch: dict[tuple[str, str], list[str]] = {}
    for topic, attempt in visible:
        by_epoch.setdefault((topic, re.sub(TERM, "", attempt)), []).append(attempt)
    contested = {attempt for some in by_epoch.values() if len(some) > 1 for attempt in some}
    rivals = {
        (topic, min(some, key=lambda a: visible[topic, a][0]))
        for topic, some in (scan.rivals(contested) if contested else ())
    }
    aborted = scan.aborted() if some_invisible else {}
    committed = {attempt for _, attempt in visible}
    half = {at: found for at, found in aborted.items() if at[1] in committed}
    scan.keep_attempts(Check.ABORTED_VISIBLE, rivals)
    scan.keep_attempts(Check.COMMITTED_HIDDEN, half)
    return {Check.ABORTED_VISIBLE: _all({at: visible[at] for at in rivals}), Check.COMMITTED_HIDDEN: _all(half)}


def _all(wrong: Mapping[Attempt, tuple[int, Suspect]]) -> Suspects:
    first = sorted(wrong.values(), key=lambda found: (found[1].place, found[1].offset))[:SHOWN]
    return sum(n for n, _ in wrong.values()), tuple(suspect for _, suspect in first)


def partitions(
    question: TopicAuditOptions, tallies: Mapping[tuple[str, int], Tally], uncommitted: Mapping[tuple[str, int], int]
) -> list[dict[str, Any]]:
    """Return counts and fingerprints, one entry per partition (or directory), inputs first."""
    return [
        {
            "role": "input" if topic in question.inputs else "output",
            "topic": topic,
            "partition": partition,
            "records": tally.records,
            "invisible": None if topic in question.inputs else uncommitted.get((topic, partition), 0) - tally.records
            if "/" not in topic else 0,
            "sum": f"{tally.sum:016x}",
            "xor": f"{tally.xor:016x}",
            "first": tally.first,
            "last": tally.last,
        }
        for (topic, partition), tally in sorted(tallies.items(), key=lambda t: (t[0][0] not in question.inputs, t[0]))
    ]  # fmt: skip


def write_rows(path: Path, table: DataFrame) -> None:
    """Write the rows of a table to a file of this machine, one JSON object per line."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for (line,) in table.select(F.to_json(F.struct("*"))).toLocalIterator():
            file.write(f"{line}\n")


def reported(
    context: Context,
    question: TopicAuditOptions,
    facts: Observations,
    held: Sequence[Mapping[str, Any]],
    read: OffsetWindow,
    identity: Mapping[str, Any],
) -> Context:
    """Return the context of the report; a later audit may resume from one that covered everything."""
    records = (facts.inputs or 0, facts.outputs)
    listed = [
        {"role": "input" if topic in question.inputs else "output", "operator": "–", "topic": topic,
         "partition": p, "begin": start, "end": end, "processed": None}
        for topic, bounds in read.judged.items() for p, (start, end) in sorted(bounds.items())
    ]  # fmt: skip
    extra: dict[str, Any] = {"question": question.asked, "partitions": list(held)}
    if question.whole:
        extra["resume"] = {**window.ends(read, question, identity), "records": records}
    return replace(context, reads=listed, extra=extra)


@contextmanager
def sized(spark: SparkSession, tasks: int) -> Iterator[None]:
    """Set enough shuffle partitions for the amount of data within the block."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    spark.conf.set(name, str(max(int(before or 2), min(tasks, 2000))))
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


@contextmanager
def explained() -> Iterator[None]:
    """Convert Spark's errors about a wrong expression or query to an error that the user can act on."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        first = str(error).split("\n")[0]
        raise ConfigError(f"Spark does not understand an expression or the query: {first}") from error
