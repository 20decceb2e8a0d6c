"""Checks of commits: what each epoch committed according to the ledger, compared with its visible output.

Pure. Rule: the output of an aborted epoch counts for the epoch that committed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_eos.audit.checks.verdict import SHOWN, Evidence, Violation
from kafka_eos.audit.facts.audit_subject import Subject
from kafka_eos.audit.facts.job_ledger import Ledger, RecordedCounts
from kafka_eos.core.ids import EpochId
from kafka_eos.storage.object_names import manifest_name

Seen = Mapping[str, tuple[int, Violation]]
"""By sink: the number of outputs of an epoch, and the first of them."""
ByEpoch = Mapping[EpochId | None, Seen]
"""Outputs by epoch; None is the epoch of records without provenance."""

_NONE = Violation("-", -1, -1, "")


def how_many(seen: Seen) -> int:
    """Return the number of outputs of all sinks."""
    return sum(count for count, _ in seen.values())


def as_committed(ledger: Ledger, found: ByEpoch) -> ByEpoch:
    """Group outputs by the epoch that committed them; they state the epoch that wrote them."""
    merged: dict[EpochId | None, dict[str, tuple[int, Violation]]] = {}
    for epoch, seen in found.items():
        into = merged.setdefault(None if epoch is None else ledger.carried.get(epoch, epoch), {})
        for sink, (count, first) in seen.items():
            so_far, first = into.get(sink, (0, first))
            into[sink] = so_far + count, first
    return merged


def undecided(ledger: Ledger, visible: ByEpoch) -> set[EpochId]:
    """Return the epochs with visible outputs that were never committed."""
    return _named(visible) - ledger.committed


def half_hidden(ledger: Ledger, counts: Counts | None, visible: ByEpoch, hidden: ByEpoch) -> set[EpochId]:
    """Return committed epochs with outputs that are not visible, and the aborted epochs whose outputs they include.

    ``counts``: None if the number of committed outputs is unknown. An epoch that shows as many as it committed is
    complete: the others were written by tasks that lost against another attempt (Spark).
    """
    found = _named(hidden) & ledger.committed
    if counts is not None:
        found -= {epoch for epoch in counts.recorded if counts.whole(epoch, visible.get(epoch, {}))}
    return found | {epoch for epoch, into in ledger.carried.items() if into in found}


def undated(ledger: Ledger, visible: ByEpoch) -> int:
    """Return the number of outputs of committed epochs whose processed input is not in the ledger."""
    known = ledger.dated
    return sum(how_many(s) for epoch, s in visible.items() if epoch in ledger.committed and epoch not in known)


@dataclass(frozen=True)
class Miscount:
    """A sink for which an epoch shows another number of outputs than expected; None stands for all sinks together."""

    sink: str | None
    promised: int
    shown: int


@dataclass(frozen=True)
class Counts:
    """The number of outputs that each commit recorded, and the sinks whose outputs can be counted."""

    recorded: Mapping[EpochId, RecordedCounts]
    sinks: frozenset[str]
    """Sinks whose outputs name their epoch."""
    others: frozenset[str]
    """The plan's other sinks."""

    def wrong(self, epoch: EpochId, seen: Seen) -> list[Miscount]:
        """Return the sinks in which the epoch shows another number of outputs than it committed.

        Outputs that it committed to sinks that it does not name, or that the plan has renamed, may be in any sink.
        """
        recorded = self.recorded[epoch]
        promised = {sink: recorded.by_sink.get(sink, 0) for sink in sorted(self.sinks)}
        shown = {sink: seen[sink][0] if sink in seen else 0 for sink in promised}
        anywhere = self._anywhere(recorded)
        wrong = [
            Miscount(sink, n, shown[sink])
            for sink, n in promised.items()
            if shown[sink] < n or (shown[sink] > n and not anywhere)
        ]
        total, should = sum(shown.values()), sum(promised.values()) + anywhere
        if anywhere and not wrong and (total > should or (total < should and self._all_here(recorded))):
            return [Miscount(None, should, total)]
        return wrong

    def whole(self, epoch: EpochId, seen: Seen) -> bool:
        """Return whether the epoch shows exactly what it committed; False if that is unknown."""
        return self._all_here(self.recorded[epoch]) and not self.wrong(epoch, seen)

    def uncounted(self) -> int:
        """Return the number of epochs with recorded counts that cannot be assigned to one of several sinks."""
        several = len(self.sinks | self.others) > 1
        return sum(bool(self._anywhere(recorded)) for recorded in self.recorded.values()) if several else 0

    def _all_here(self, recorded: RecordedCounts) -> bool:
        """Return whether all committed outputs are in sinks that can be counted, or known to be elsewhere."""
        return not self._anywhere(recorded) or not (self.others or recorded.by_sink.keys() - self.sinks)

    def _anywhere(self, recorded: RecordedCounts) -> int:
        gone = recorded.by_sink.keys() - self.sinks - self.others
        return recorded.untold + sum(recorded.by_sink[sink] for sink in gone)


def counts_of(ledger: Ledger, subject: Subject) -> Counts:
    """Return the counts of a job. An at-least-once sink commits nothing, so no commit records its outputs."""
    sinks = frozenset(sink.node for sink in subject.sinks if sink.marked and sink.node not in subject.at_least_once)
    return Counts(ledger.records, sinks, frozenset(sink.name for sink in subject.plan.sinks) - sinks)


def all_there(ledger: Ledger, counts: Counts, visible: ByEpoch) -> bool:
    """Return whether every committed epoch shows at least as many outputs as it committed."""
    return ledger.committed <= counts.recorded.keys() and not any(
        wrong.shown < wrong.promised
        for epoch in counts.recorded
        for wrong in counts.wrong(epoch, visible.get(epoch, {}))
    )


def wrong_counts(counts: Counts, visible: ByEpoch) -> Evidence:
    """Find epochs that show another number of outputs than they committed, by sink."""
    found: list[Violation] = []
    by_sink: Counter[str] = Counter()
    for epoch in sorted(counts.recorded):
        seen = visible.get(epoch, {})
        for wrong in counts.wrong(epoch, seen):
            to = "" if wrong.sink is None else f" to sink {wrong.sink}"
            first = min((at for sink, (_, at) in seen.items() if wrong.sink in (None, sink)), default=_NONE)
            text = f"epoch {epoch.epoch} of term {epoch.term} committed {wrong.promised} outputs{to}"
            found.append(replace(first, detail=f"{text}, but {wrong.shown} are visible"))
            if wrong.sink is not None:
                by_sink[wrong.sink] += 1
    return Evidence(len(counts.recorded), len(found), tuple(found[:SHOWN]), by_sink)


def altered(ledger: Ledger) -> Evidence:
    """Find stored checkpoints that differ from what was committed according to the ledger."""
    wrong = [Violation(manifest_name(epoch), -1, -1, text) for epoch, text in sorted(ledger.altered.items())]
    return Evidence(len(ledger.written), len(wrong), tuple(wrong[:SHOWN]))


def _named(found: ByEpoch) -> set[EpochId]:
    return {epoch for epoch in found if epoch is not None}
