"""The lineage: the decided epochs that are valid, one history that all terms of a job agree on.

Pure. Rule: the newest term with a base record owns the history. A manifest of an older term that this base does not
name is void, whichever process published it. A claimed term without a base record could still write one, from an
outdated view; so a newer term closes it before it acts (see ``terms_without_base``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId, Term


def lineage(manifests: Collection[EpochId], bases: Mapping[Term, EpochId | None]) -> tuple[EpochId, ...]:
    """Return the valid epochs among those with a manifest, oldest first.

    These are the epochs of the newest term that has a base, before them the epoch that the base names and its
    predecessors in that epoch's term, and so on. Raises Bug if a term claims to continue from itself or a later term.
    """
    counted: list[EpochId] = []
    term, last = max(bases, default=None), None
    while term is not None:
        mine = (m for m in manifests if m.term == term and (last is None or m.epoch <= last))
        counted += sorted(mine, reverse=True)
        base = bases.get(term)
        if base is not None and base.term >= term:
            raise Bug(f"term {term} claims to resume from {base}, which is not before it")
        term, last = (None, None) if base is None else (base.term, base.epoch)
    return tuple(reversed(counted))


def terms_without_base(claims: Collection[Term], bases: Collection[Term], mine: Term) -> tuple[Term, ...]:
    """Return older terms that could still write a base record and change history.

    Such a term is a supervisor that has read the records and sleeps. It has not seen later decisions and commits.
    """
    owner = max((term for term in bases if term < mine), default=Term(0))
    return tuple(sorted(term for term in claims if owner < term < mine))
