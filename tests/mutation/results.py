"""What became of the mutants of a file, one line each, so that a run that was stopped goes on.

Rule: a result counts for the text of the file and of its tests with which it was found, and for no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DIRECTORY = ".mutants"


@dataclass(frozen=True, slots=True)
class Results:
    """``known``: by the name of a mutant, whether it survives."""

    path: Path
    known: dict[str, bool]

    @classmethod
    def of(cls, root: Path, file: str, tests: Sequence[str]) -> Results:
        """What is known already."""
        texts = [root / file, *(text for test in tests for text in _texts(root / test))]
        key = sha256(b"".join(sha256(text.read_bytes()).digest() for text in texts)).hexdigest()[:16]
        path = root / DIRECTORY / f"{file.replace('/', '.')}.{key}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return cls(path, {line["mutant"]: line["survives"] for line in map(json.loads, lines)})

    def add(self, mutant: str, survives: bool) -> None:
        """Remember one more."""
        self.known[mutant] = survives
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": mutant, "survives": survives}) + "\n")


def _texts(test: Path) -> Iterator[Path]:
    yield from sorted(test.rglob("*.py")) if test.is_dir() else [test]
