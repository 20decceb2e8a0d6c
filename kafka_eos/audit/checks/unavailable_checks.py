"""Checks that cannot be made of a job, with the reasons.

Pure. Rule: a check that would miss what it looks for is not made; its reason goes into the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.audit.checks.epoch_commits import Counts
from kafka_eos.audit.checks.verdict import Check
from kafka_eos.audit.facts.audit_subject import Subject
from kafka_eos.audit.facts.job_ledger import Ledger

Impossible = dict[Check, str]
"""The reason by the check that cannot be made."""

_HISTORY = (Check.ABORTED_VISIBLE, Check.COMMITTED_HIDDEN)
_RECOMPUTE = (
    Check.LOST, Check.UNEXPECTED, Check.WRONG_VALUE, Check.WRONG_TOTAL, Check.UPDATE_GAP, Check.REORDERED
)  # fmt: skip
_MARKED = (
    *_HISTORY, Check.WRONG_EPOCH, Check.WRONG_VALUE, Check.WRONG_TOTAL, Check.UPDATE_GAP, Check.REORDERED,
    Check.WRONG_COUNT, Check.FOREIGN, Check.MISPLACED, Check.MALFORMED,
)  # fmt: skip
"""Checks that need to know where each output comes from."""


def impossible(
    subject: Subject, ledger: Ledger, counts: Counts, compacted: Sequence[str], *, strict: bool
) -> Impossible:
    """Return the checks that are known to be impossible before the scan.

    ``compacted``  topics from which compaction may have removed records
    ``strict``     no epoch processed input behind its barrier
    """
    why: Impossible = {}
    if not ledger.has_history:
        why |= dict.fromkeys(_HISTORY, "the job's history has no committed epochs")
    if not ledger.written:
        why[Check.ALTERED_CHECKPOINT] = "the job is older than the ledger of commits"
    if not ledger.dated:
        why[Check.WRONG_EPOCH] = "no record shows which input each epoch processed"
    if not strict:
        why[Check.WRONG_EPOCH] = 'with checkpoint_mode="at-least-once" an epoch may process input of the next one'
    if not counts.sinks or not counts.recorded or (counts.others and counts.uncounted()):
        why[Check.WRONG_COUNT] = "not every commit of every sink is recorded with its number of outputs"
    if _all_unmarked(subject):
        reason = f"outputs of {', '.join(subject.unmarked)} have no provenance"
        is_applicable = {
            Check.MALFORMED: bool(subject.directories),
            Check.WRONG_TOTAL: any(table.keyed for table in subject.tables),
        }
        why |= dict.fromkeys((check for check in _MARKED if not is_applicable.get(check)), reason)
    if (blind := subject.why_blind) is not None:
        why |= dict.fromkeys(recomputed(subject), blind)
    if compacted:
        reason = f"compaction may have removed records of {', '.join(compacted)}"
        why |= dict.fromkeys((*recomputed(subject), Check.WRONG_COUNT), reason)
    return why


def by_expiry(subject: Subject, expired: Sequence[str]) -> Impossible:
    """Return the checks that would miss expired outputs. ``expired``: beginnings of partitions, as text."""
    reason = f"outputs have expired ({', '.join(expired[:8])}): audit sooner, or lengthen the topic's retention"
    return dict.fromkeys((*recomputed(subject), Check.WRONG_COUNT, Check.COMMITTED_HIDDEN), reason)


def recomputed(subject: Subject) -> tuple[Check, ...]:
    """Return the checks that need the recompute: all checks, if no sink writes provenance."""
    return (*_RECOMPUTE, Check.DUPLICATE) if _all_unmarked(subject) else _RECOMPUTE


def _all_unmarked(subject: Subject) -> bool:
    return len(subject.unmarked) == len(subject.sinks)
