"""The tests without a mutant: that they pass, how long they take, and what they call.

Rule: each file of tests, or function that is named alone, runs once for the library as it is, and is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.mutation.results import DIRECTORY, digest, file_of
from tests.mutation.running import Runs, Trial
from tests.mutation.signatures import ROOT, files
from tests.mutation.watching import Seen, seen_in


class CleanRuns:
    """What was seen of each file of tests."""

    def __init__(self, services: str) -> None:
        self._services, self._library = services, digest(ROOT, files())
        self._seen: dict[str, dict[str, Seen]] = {}

    def add(self, tests: Iterable[str], at_once: int) -> list[str]:
        """Run those that are not known; the tests that fail without a mutant."""
        failed, missing = [], []
        for test in dict.fromkeys(tests):
            if self._recording(test).exists():
                self._seen[test] = seen_in(self._recording(test))
            else:
                missing.append(test)
        with Runs(at_once) as runs:
            for test in missing:
                while runs.full:
                    failed += self._ended(runs)
                runs.start(test, Trial([test], recording=self._recording(test), services=self._services))
            while not runs.idle:
                failed += self._ended(runs)
        return failed

    def of(self, tests: Iterable[str]) -> dict[str, Seen]:
        """What was seen of these files, by test; of those that fail, nothing."""
        return {name: seen for test in tests for name, seen in self._seen.get(test, {}).items()}

    def passed(self, tests: Iterable[str]) -> bool:
        return all(test in self._seen for test in tests)

    def _ended(self, runs: Runs) -> list[str]:
        failed = []
        for test, result in runs.ended():
            print(f"  {result.seconds:6.1f} s  {test}  {result.failed}", flush=True)
            if result.failed and result.failed != _NO_TESTS:
                self._recording(test).unlink(missing_ok=True)
                failed.append(result.failed)
            else:
                self._seen[test] = seen_in(self._recording(test))
        return failed

    def _recording(self, test: str) -> Path:
        directory = ROOT / DIRECTORY / "clean"
        directory.mkdir(parents=True, exist_ok=True)
        return directory / f"{test.replace('/', '.')}.{digest(ROOT, [file_of(test)])}.{self._library}.json"


_NO_TESTS = "ended with 5"
"""All tests of the file are left to the campaign."""
