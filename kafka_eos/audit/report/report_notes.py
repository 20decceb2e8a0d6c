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
            f"its state. {before} visible outputs from before the savepoint were only checked for copies. To judge the "
            "whole history, name the job's earlier directories with --earlier. Without it, earlier outputs "
            "whose provenance is in the ledger of such a directory count as foreign."
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
            f"{loose} outputs were compared by existence only, not by value: they are behind state with a time to "
            "live, or their keys have input from several partitions or a loop, whose order the outputs do not show."
        )
    if cut.serial and cut.lasting:
        lines.append("The plan keeps state in several places one after the other; it was recomputed in one task.")
    if ledger.start is None:
        lines.append("No record shows where the job began to read; the audit assumes offset 0.")
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
            why = "no record shows in which order the input of their keys was read"
            if name in cut.timed:
                why = "no record shows which windows were closed when rows arrived behind a watermark"
            elif name in cut.expiring:
                why = "they depend on when state with a time to live expired"
            elif name in fickle:
                why = "the functions before it return other values when they run again"
            what, claims = (
                ("values and order", (OutputClaim.VALUES, OutputClaim.ORDER))
                if cut.nested
                else ("values", (OutputClaim.VALUES,))
            )
            if not sink.marked and not (isinstance(sink, DatabaseTable) and sink.keyed):
                what, claims = "all but the number", (*OutputClaim,)
            left_out.append(UncomparedOutput(name, what, why, n, claims))
        if n := untold.get(name):
            why = "they are early results of windows, and no record shows which rows had arrived by then"
            if name in ruled:
                why = "no record shows which rules their rows met: the rules were read in the same epoch, or are gone"
            left_out.append(UncomparedOutput(name, "existence and values", why, n, _WHOLE))
        if n := excused.get(name):
            why = "other code than the audit has loaded produced them, or the state that they depend on"
            left_out.append(UncomparedOutput(name, "existence and values", why, n, _WHOLE))
        if n := made.untimed.get(name):
            broker = "the broker sets them (message.timestamp.type=LogAppendTime)"
            either = "the broker sets them, or some are the time of sending"
            left_out.append(UncomparedOutput(name, "timestamps", broker if sink.marked else either, n))
        if n := made.midway.get(name):
            why = "no record shows which input they sum up"
            left_out.append(UncomparedOutput(name, "values", why, n, (OutputClaim.VALUES,)))
        if n := made.near.get(name):
            why = "the order of additions may change their last digits, and nothing tells which output is which"
            if sink.marked:
                why = "they differ by more than the order of additions explains, and not in the first nine digits"
            left_out.append(UncomparedOutput(name, "floats", why, n, (OutputClaim.VALUES,)))
        if name in cut.letters and cut.summed:
            why = "they depend on where its epochs ended"
            left_out.append(UncomparedOutput(name, "dead letters from behind a fold with merge=", why, claims=_WHOLE))
        if name in cut.letters and cut.timed | cut.forgetting:
            why = "they depend on the effects of timers"
            left_out.append(
                UncomparedOutput(name, "dead letters from timers, and from behind them,", why, claims=_WHOLE)
            )
        if name in cut.letters and cut.asked:
            why = "they depend on the responses of a service, or on which rules their rows met"
            left_out.append(
                UncomparedOutput(
                    name, "dead letters from async_map or broadcast state, and from behind it,", why, claims=_WHOLE
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
            return UncomparedOutput(node, "all but the newest value of each key", "the table stores no others")
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
            f"Sink {sink.node} has no provenance, because it is a table: each row was compared with the newest "
            "recomputed value of its key."
        )
    return (
        f"Sink {sink.node} writes no provenance: keys, values, headers and timestamps were compared as a multiset; "
        "order and epochs were not compared."
    )


def _shape(subject: Subject, cut: Cut, unsure: set[str]) -> list[str]:
    """Return the notes about a fold with ``merge=`` and about broadcasts."""
    sinks = {sink.node for sink in subject.sinks}
    lines: list[str] = []
    if totals := (cut.totals & sinks) - unsure:
        lines.append(
            f"{', '.join(sorted(totals))}: a fold with merge= writes one output per key and epoch. Each was compared "
            "with the value of the key at the end of the epoch, if the ledger records that end."
        )
    if expiring := (cut.expiring & sinks) - unsure:
        lines.append(
            f"{', '.join(sorted(expiring))}: their values depend on when state with a time to live expired, and this "
            "depends on when the input was read and together with which records. A recompute cannot know that."
        )
    if copied := sorted(cut.copied & sinks):
        lines.append(
            f"Outputs behind a broadcast ({', '.join(copied)}) were recomputed for {cut.parallelism} workers, the "
            "largest number in any stored epoch."
        )
    if cut.letters and cut.summed:
        lines.append("Dead letters from behind a fold with merge= were not recomputed.")
    return lines
