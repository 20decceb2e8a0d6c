"""The input that was processed by other code than the audit has loaded, by the job's history.

Pure. Each start records digests of the user's files. Rule: the code of a start is unknown if it recorded
no digests, or none of a file that the audit has loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_eos.audit.facts.epoch_intervals import Offsets, offsets
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.core.ids import EpochId


@dataclass(frozen=True, slots=True)
class OtherCode:
    """Code that the audit has not loaded: the newest epoch that it processed, and the end of that epoch's input."""

    newest: EpochId
    ends: Offsets

    def __str__(self) -> str:
        return f"other code than the audit has loaded processed the input up to epoch {self.newest.epoch.n}"


def other_code(ledger: Ledger, files: Mapping[str, str]) -> OtherCode | None:
    """Return the code before the newest change of it; None if no change is known.

    ``files``: the digests of the files that the audit has loaded.
    """
    terms = _terms_of_others(ledger.events, files)
    epochs = [epoch for epoch in ledger.committed if epoch.term.n in terms and epoch in ledger.entries]
    if not epochs:
        return None
    newest = max(epochs, key=lambda epoch: (epoch.term, epoch.epoch))
    return OtherCode(newest, offsets(ledger.entries[newest].sources))


def _terms_of_others(events: Sequence[Mapping[str, Any]], files: Mapping[str, str]) -> set[int]:
    """Return the terms of processes that had loaded other files. A start is recorded before its terms."""
    terms: set[int] = set()
    is_other = False
    for event in events:
        if event.get("event") == "started":
            recorded = event.get("code", {})
            is_other = any(recorded[file] != digest for file, digest in files.items() if file in recorded)
        elif event.get("event") == "recovered" and is_other:
            terms.add(event["term"])
    return terms
