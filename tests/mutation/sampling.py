"""Which mutants a run makes.

Rule: a sample depends on the seed and on the mutants alone. It takes those whose hashes with the seed are the least, so
that a change of one file leaves the others of the sample as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from tests.mutation.decisions import decision_mutants
from tests.mutation.losses import loss_mutants
from tests.mutation.places import Mutant
from tests.mutation.signatures import ROOT, Optional


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A mutant of a file of the library."""

    file: str
    room: str
    mutant: Mutant

    def __str__(self) -> str:
        return f"{self.file}:{self.mutant.line}: {self.mutant.name}"


def all_decisions(files: dict[str, str]) -> list[Candidate]:
    """Every mistake in a decision, by the files and their rooms."""
    return list(_made(files, decision_mutants))


def sample(files: dict[str, str], number: int, seed: int, optional: Optional) -> list[Candidate]:
    """So many of the mistakes that lose something. ``optional``: what may be left out of a call."""
    candidates = _made(files, lambda source: loss_mutants(source, optional))
    return sorted(candidates, key=lambda each: _rank(each, seed))[:number]


def _made(files: dict[str, str], mutants: Callable[[str], Iterable[Mutant]]) -> Iterator[Candidate]:
    for file, room in files.items():
        for mutant in mutants((ROOT / file).read_text(encoding="utf-8")):
            yield Candidate(file, room, mutant)


def _rank(candidate: Candidate, seed: int) -> bytes:
    return sha256(f"{seed}:{candidate.file}:{candidate.mutant.name}".encode()).digest()
