"""What is seen of the tests while they run: which one fails, and which functions of the library each one calls.

Rule: order and selection come from a run without a mutant. First are the tests that call the mutant's function, the
shortest of them first. Those that neither call anything of its file nor start a process or a fork are left out.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from tests.mutation.signatures import ROOT, SOURCES

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")


@dataclass(frozen=True, slots=True)
class Seen:
    """One test: how long it took, what it called (``file:function``), and whether it started a process."""

    seconds: float
    calls: frozenset[str]
    starts: bool

    def reaches(self, file: str) -> bool:
        """May a mutant of the file be noticed?"""
        return self.starts or any(call.startswith(f"{file}:") for call in self.calls)


class Failure:
    """A plugin of pytest: writes down the first test that fails, as soon as it does."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(report.failed, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._write(report.failed, report.nodeid)

    def _write(self, failed: bool, name: str) -> None:
        if failed and not self._path.exists():
            self._path.write_text(name, encoding="utf-8")


class Nearest:
    """A plugin of pytest: of the tests only those that were seen, and first those that call a function."""

    def __init__(self, seen: Mapping[str, Seen], call: str) -> None:
        self._seen, self._call = seen, call

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._seen), key=self._distance)

    def _distance(self, item: pytest.Item) -> tuple[bool, float]:
        seen = self._seen[item.nodeid]
        return self._call not in seen.calls, seen.seconds


class Recorder:
    """A plugin of pytest: writes down what each test calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, Any]] = {}
        self._codes: set[CodeType] = set()
        self._starts = False

    def pytest_configure(self) -> None:
        sys.addaudithook(self._heard)
        threading.settrace(self._called)
        sys.settrace(self._called)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._codes.clear()
        self._starts = False
        sys.settrace(self._called)
        result = yield
        self._tests[item.nodeid]["calls"] = sorted(set(_named(list(self._codes))))
        self._tests[item.nodeid]["starts"] = self._starts
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self._tests.setdefault(report.nodeid, {"seconds": 0.0})
        test["seconds"] += report.duration

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self._path.write_text(json.dumps(self._tests), encoding="utf-8")

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def _heard(self, event: str, _: object) -> None:
        if event in _STARTS:
            self._starts = True


def seen_in(path: Path) -> dict[str, Seen]:
    """What a recorder has written."""
    tests = json.loads(path.read_text(encoding="utf-8"))
    return {name: Seen(test["seconds"], frozenset(test["calls"]), test["starts"]) for name, test in tests.items()}


def _named(codes: list[CodeType]) -> Iterator[str]:
    for code in codes:
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT):
            parts = path.relative_to(ROOT).parts
            parts = parts[1:] if parts[0] == "kafka_eos" and parts[1] in SOURCES else parts
            if parts[0] in SOURCES:
                yield f"{'/'.join(parts)}:{_function(code.co_qualname)}"


def _function(name: str) -> str:
    """As the mutants of the function name it: functions without a name belong to the one they are in."""
    parts = name.replace(".<locals>", "").split(".")
    return ".".join(part for part in parts if not part.startswith("<"))
