"""The checks of commits: what each epoch committed, as the ledger says, beside what is visible of it.

Pure. Rule: outputs of an epoch that was given up count for the committed one that took them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafka_eos.audit.ledger import Ledger
from kafka_eos.audit.verdict import Evidence, Offender
from kafka_eos.checkpoints.paths import manifest_name
from kafka_eos.ids import EpochId

ByEpoch = Mapping[EpochId | None, tuple[int, Offender]]
"""How many records, and the first of them; None for records without provenance."""

_SHOWN = 5


def as_committed(ledger: Ledger, found: ByEpoch) -> ByEpoch:
    """By the epochs that committed the outputs; those say which one wrote them."""
    merged: dict[EpochId | None, tuple[int, Offender]] = {}
    for epoch, (count, first) in found.items():
        into = None if epoch is None else ledger.carried.get(epoch, epoch)
        so_far, first = merged.get(into, (0, first))
        merged[into] = so_far + count, first
    return merged


def undecided(ledger: Ledger, visible: ByEpoch) -> set[EpochId]:
    """Epochs with visible outputs that were never committed."""
    return _named(visible) - ledger.committed


def half_hidden(ledger: Ledger, visible: ByEpoch, hidden: ByEpoch, *, counted: bool) -> set[EpochId]:
    """Committed epochs with outputs that are not visible, and those given up whose outputs they took.

    ``counted``: the ledger tells how many each committed. One that shows as many is whole: what else was written in
    it is of tasks that lost (Spark).
    """
    found = _named(hidden) & ledger.committed
    if counted:
        found -= {epoch for epoch, told in ledger.records.items() if epoch in visible and visible[epoch][0] == told}
    return found | {epoch for epoch, into in ledger.carried.items() if into in found}


def undated(ledger: Ledger, visible: ByEpoch) -> int:
    """Outputs of committed epochs of which the ledger does not tell what they processed."""
    dated = {each.epoch for each in ledger.intervals}
    return sum(n for epoch, (n, _) in visible.items() if epoch in ledger.committed and epoch not in dated)


def all_there(ledger: Ledger, visible: ByEpoch) -> bool:
    """Does every committed epoch show at least as many outputs as it committed?"""
    told = ledger.records
    return ledger.committed <= told.keys() and all(
        epoch in visible and visible[epoch][0] >= n for epoch, n in told.items() if n
    )


def wrong_counts(ledger: Ledger, visible: ByEpoch) -> Evidence:
    """Epochs that show another number of outputs than they committed."""
    wrong = []
    for epoch, promised in sorted(ledger.records.items()):
        count, first = visible.get(epoch, (0, Offender("-", -1, -1, "")))
        if count != promised:
            text = f"epoch {epoch.epoch} of term {epoch.term} committed {promised} outputs, {count} are visible"
            wrong.append(replace(first, detail=text))
    return Evidence(len(ledger.records), len(wrong), tuple(wrong[:_SHOWN]))


def altered(ledger: Ledger) -> Evidence:
    """Stored checkpoints that are not what the ledger says was committed."""
    wrong = [Offender(manifest_name(epoch), -1, -1, text) for epoch, text in sorted(ledger.altered.items())]
    return Evidence(len(ledger.written), len(wrong), tuple(wrong[:_SHOWN]))


def _named(found: ByEpoch) -> set[EpochId]:
    return {epoch for epoch in found if epoch is not None}
