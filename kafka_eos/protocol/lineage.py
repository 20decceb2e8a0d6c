"""Which decided epochs count: the one history that all terms of a job agree on.

Pure. Rule: the newest term with a base record owns history; a manifest of an older term that this base does not name
never happened, whoever published it. A term that was claimed and has no base record yet could still write one, with
what it once saw; so a newer term closes it before it acts (see ``unbased``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import EpochId, Term


def lineage(manifests: Collection[EpochId], bases: Mapping[Term, EpochId | None]) -> tuple[EpochId, ...]:
    """The epochs that count, of those with a manifest, oldest first.

    They are those of the newest term that has a base, before them what that base names and what was before it in
    its own term, and so on. Raises Bug if a term claims to go on from itself, or from a later one.
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


def unbased(claims: Collection[Term], bases: Collection[Term], mine: Term) -> tuple[Term, ...]:
    """Terms before ``mine`` that could still write a base record with which history would be another.

    Such a term is a supervisor that has looked, and sleeps. What was decided or committed since, it has not seen.
    """
    owner = max((term for term in bases if term < mine), default=Term(0))
    return tuple(sorted(term for term in claims if owner < term < mine))
