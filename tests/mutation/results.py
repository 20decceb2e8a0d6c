"""What became of the mutants of a file, one line each, so that a run that was stopped goes on.

Rule: a result counts for the text of the file with which it was found, and for the texts of its tests: of the one that
failed, or of all if none did.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

DIRECTORY = ".mutants"


@dataclass(frozen=True, slots=True)
class Results:
    """``known``: by the name of a mutant, the test that fails; empty if all pass."""

    path: Path
    root: Path
    file: str
    tests: Sequence[str]
    known: dict[str, str]

    @classmethod
    def of(cls, root: Path, file: str, stage: str, tests: Sequence[str]) -> Results:
        """What is known already."""
        results = cls(root / DIRECTORY / f"{file.replace('/', '.')}.{stage}.jsonl", root, file, tests, {})
        lines = results.path.read_text(encoding="utf-8").splitlines() if results.path.exists() else []
        for line in map(json.loads, lines):
            if line["key"] == results._key(line["failed"]):
                results.known[line["mutant"]] = line["failed"]
        return results

    def add(self, mutant: str, failed: str) -> None:
        """Remember one more."""
        self.known[mutant] = failed
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": mutant, "failed": failed, "key": self._key(failed)}) + "\n")

    def _key(self, failed: str) -> str:
        failing = [test for test in self.tests if is_of(failed, test)]
        return digest(self.root, [self.file, *dict.fromkeys(map(file_of, failing or self.tests))])


def file_of(test: str) -> str:
    """The file of a test, or of some: they are named as pytest names them."""
    return test.partition("::")[0]


def is_of(test: str, named: str) -> bool:
    """Is a test the one of that name, or one of that file or function?"""
    return re.match(rf"{re.escape(named)}(::|\[|$)", test) is not None


def digest(root: Path, files: Sequence[str]) -> str:
    """Of the texts of these files."""
    texts = (sha256((root / file).read_bytes()).digest() for file in files)
    return sha256(b"".join(texts)).hexdigest()[:16]
