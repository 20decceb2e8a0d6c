"""Notes of a report about the comparison, where it limits what the verdict proves.

Rule: whatever a check leaves out for a sink is noted here, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafka_eos.audit.checks.verdict import OutputClaim, UncomparedOutput
from kafka_eos.audit.facts.audit_subject import DatabaseTable, Directory, Place, Subject, Topic
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.tables.plan_cut import Cut

if TYPE_CHECKING:
    from kafka_eos.audit.checks.job_scan import ExpectedCounts


_WHOLE, _ORDER = (OutputClaim.EXISTENCE, OutputClaim.VALUES), (OutputClaim.ORDER,)


def notes(subject: Subject, cut: Cut, ledger: Ledger, loose: int, unsure: Mapping[str, str], before: int) -> list[str]:
    """Return the notes about the comparison.

    ``loose``: outputs whose values were not compared.
    ``unsure``: sinks that were not compared, and the reason (without provenance, nothing is left to check then).
    ``before``: outputs from before the savepoint.
    """
    lines = []
    if ledger.origin is not None:
        lines.append(
            f"The job began with savepoint {ledger.origin.savepoint} ({ledger.origin.path}): the recompute starts with "
            f"its state. {before} visible outputs of before it were looked at for copies only; with --earlier, which "
            "names the job's checkpoint directory of then, the whole history is judged. Outputs of then whose "
            "provenance is in the ledger of that directory count as foreign without it."
        )
    lines += [_said_of(sink) for sink in subject.sinks if not sink.marked and sink.node not in unsure]
    lines += [
        f"Sink {sink} was not compared with a recompute: {why}. Duplicates, epochs and their counts were checked."
        for sink, why in unsure.items()
        if sink not in subject.unmarked
    ]
    lines += _shape(subject, cut, {*unsure})
    if loose:
        lines.append(
            f"{loose} outputs belong to keys whose input comes from several partitions, or from a loop, and whose "
            "order the outputs do not tell, or lie behind state with a time to live; for them existence was compared, "
            "values were not."
        )
    if cut.serial and cut.lasting:
        lines.append("The plan keeps state in several places one after the other; it was recomputed in one task.")
    if ledger.start is None:
        lines.append("Nothing tells any more where the job began to read; the audit assumes offset 0.")
    return lines


def uncompared(
    subject: Subject,
    cut: Cut,
    made: ExpectedCounts,
    untold: Mapping[str, int],
    excused: Mapping[str, int],
    unsure: Mapping[str, str],
    ruled: Collection[str],
    fickle: Collection[str],
) -> list[UncomparedOutput]:
    """Return for the headline what is unknown about the outputs of sinks that were otherwise compared.

    ``untold``: by sink, outputs that may exist or not. ``excused``: by sink, outputs of other code. ``ruled``: sinks
    after broadcast state. ``fickle``: sinks whose values differ each time that functions run.
    """
    left_out: list[UncomparedOutput] = []
    for sink in (sink for sink in subject.sinks if sink.node not in unsure):
        name = sink.node
        if n := made.loose.get(name):
            why = "nothing tells in which order the input of their keys was read"
            if name in cut.timed:
                why = "nothing tells which windows were over when rows came behind a watermark"
            elif name in cut.expiring:
                why = "they depend on when state with a time to live had expired"
            elif name in fickle:
                why = "the functions before it return others when they run again"
            what, claims = (
                ("values and order", (OutputClaim.VALUES, OutputClaim.ORDER))
                if cut.nested
                else ("values", (OutputClaim.VALUES,))
            )
            if not sink.marked and not (isinstance(sink, DatabaseTable) and sink.keyed):
                what, claims = "all but the number", (*OutputClaim,)
            left_out.append(UncomparedOutput(name, what, why, n, claims))
        if n := untold.get(name):
            why = "they are results before the end of windows, and nothing tells which rows had come by then"
            if name in ruled:
                why = "nothing tells which rules their rows met, that were read in the same epoch, or are gone"
            left_out.append(UncomparedOutput(name, "existence and values", why, n, _WHOLE))
        if n := excused.get(name):
            why = "other code than the audit has loaded made them, or the state that they depend on"
            left_out.append(UncomparedOutput(name, "existence and values", why, n, _WHOLE))
        if n := made.untimed.get(name):
            broker = "the broker writes those of its topic (message.timestamp.type=LogAppendTime)"
            either = "the broker writes those of its topic, or some are the time of sending"
            left_out.append(UncomparedOutput(name, "timestamps", broker if sink.marked else either, n))
        if n := made.midway.get(name):
            why = "nothing tells which records these sums are of"
            left_out.append(UncomparedOutput(name, "values", why, n, (OutputClaim.VALUES,)))
        if name in cut.letters and cut.summed:
            why = "they depend on where its epochs ended"
            left_out.append(UncomparedOutput(name, "letters from behind a fold with merge=", why, claims=_WHOLE))
        if name in cut.letters and cut.timed | cut.forgetting:
            why = "they depend on what timers have changed"
            left_out.append(
                UncomparedOutput(name, "letters from operators with timers, and behind them,", why, claims=_WHOLE)
            )
        if name in cut.letters and cut.asked:
            why = "they depend on what a service has answered, or on which rules rows have met"
            left_out.append(
                UncomparedOutput(
                    name, "letters from async_map or broadcast state, and from behind it,", why, claims=_WHOLE
                )
            )
        if name in subject.at_least_once:
            left_out.append(
                UncomparedOutput(name, "counts by epoch", "no commit records what an at-least-once sink wrote")
            )
        if not sink.marked:
            left_out.append(_without_provenance(sink))
    return left_out


def _without_provenance(sink: Place) -> UncomparedOutput:
    match sink:
        case DatabaseTable(node, keyed=True):
            return UncomparedOutput(node, "all but the newest value of each key", "a table has no others")
        case DatabaseTable(node):
            return UncomparedOutput(node, "order and epochs", "rows of a table carry no provenance", claims=_ORDER)
        case Topic(node):
            remedy = 'KafkaSink(…, provenance="header") writes it'
        case Directory(node):
            remedy = "FileSink(…, envelope=True) writes it"
    return UncomparedOutput(node, "order and epochs", f"its outputs carry no provenance; {remedy}", claims=_ORDER)


def _said_of(sink: Place) -> str:
    """Return how outputs without provenance were compared."""
    if isinstance(sink, DatabaseTable) and sink.keyed:
        return (
            f"Sink {sink.node} is not audited by provenance, rows of a table have none: each row was compared with the "
            "newest value that the recompute makes of its key."
        )
    return (
        f"Sink {sink.node} is not audited by provenance, its outputs have none: they were compared as a multiset of "
        "keys, values, headers and timestamps; order and epochs were not."
    )


def _shape(subject: Subject, cut: Cut, unsure: set[str]) -> list[str]:
    """Return the notes about a fold with ``merge=`` and about broadcasts."""
    sinks = {sink.node for sink in subject.sinks}
    lines: list[str] = []
    if totals := (cut.totals & sinks) - unsure:
        lines.append(
            f"Of {', '.join(sorted(totals))}, which a fold with merge= fills, there is one output for each key and "
            "epoch: each was compared with what the key had at the end of the epoch, as far as the ledger tells it."
        )
    if expiring := (cut.expiring & sinks) - unsure:
        lines.append(
            f"{', '.join(sorted(expiring))}: their values depend on when state with a time to live had expired, which "
            "follows from when, and beside which other records, the input was read. A recompute cannot know it."
        )
    if copied := sorted(cut.copied & sinks):
        lines.append(
            f"Outputs behind a broadcast ({', '.join(copied)}) were recomputed for {cut.parallelism} workers, the most "
            "that a stored epoch had."
        )
    if cut.letters and cut.summed:
        lines.append("Dead letters from behind a fold with merge= were not recomputed.")
    return lines
