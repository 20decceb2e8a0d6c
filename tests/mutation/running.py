"""Runs tests against one mutant, each time in a process of its own, several at once.

Rule: a forked process imports the mutant in place of the file (``instead``), so whatever it breaks or never ends goes
with it. It finds examples of hypothesis as they are found every time, and makes none of them small. What needs a
broker or a PostgreSQL shares those of the whole run (``--join``).
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.instead import import_mutant, name_mutant
from tests.mutation.watching import Failure, Nearest, Recorder, Seen

MEMORY, COMPUTING = 4 << 30, 900
"""Bytes and seconds of computing that a mutant may take: some would take all there are, also when nobody waits."""
OF_MAKE_TEST = "not planted and not campaign and not slow and not cluster"
_PROFILE = "mutants"
_TOO_LONG = "took too long"
_FORK = multiprocessing.get_context("fork")


for _each in ("confluent_kafka.admin", "hypothesis.strategies", "_pytest.assertion.rewrite"):
    importlib.import_module(_each)  # once, not in each process


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests to run, with ``tree`` in place of ``file``; without a file they run as they are, and are recorded."""

    tests: Sequence[str]
    seconds: float | None = None
    file: str = ""
    tree: ast.Module | None = None
    function: str = ""
    seen: Mapping[str, Seen] | None = None
    """What is known of the tests; None: all of them run, in their order."""
    recording: Path | None = None
    services: str = ""
    """Where the broker of the run is."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a trial has shown: ``failed`` is the test that failed, or what else went wrong; empty if all passed."""

    failed: str
    seconds: float


@dataclass(slots=True)
class _Running:
    key: Any
    process: ForkProcess
    failure: Path
    begun: float
    ends: float


class Runs:
    """Trials that run at the same time: ``at_once`` of them at most."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._running: list[_Running] = []
        self._directory = tempfile.TemporaryDirectory(prefix="kafka-eos-mutants-")
        self._started = 0

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            _end(each)
        self._directory.cleanup()

    @property
    def full(self) -> bool:
        return len(self._running) >= self._at_once

    @property
    def idle(self) -> bool:
        return not self._running

    def start(self, key: Any, trial: Trial) -> None:
        """``key`` comes back with the result."""
        self._started += 1
        failure = Path(self._directory.name, f"{self._started}.failed")
        source = Path(self._directory.name, f"{self._started}.py")
        if trial.tree is not None:
            source.write_text(ast.unparse(trial.tree), encoding="utf-8")
        process = _FORK.Process(target=_run, args=(trial, source, failure))
        process.start()
        now = time.monotonic()
        self._running.append(_Running(key, process, failure, now, now + (trial.seconds or float("inf"))))

    def ended(self) -> Iterator[tuple[Any, Result]]:
        """Wait until one has ended, or has taken longer than it may: all that have."""
        soonest = min(each.ends for each in self._running) - time.monotonic()
        sentinels = [each.process.sentinel for each in self._running]
        over = wait(sentinels, None if soonest == float("inf") else max(soonest, 0))
        now = time.monotonic()
        for each in [each for each in self._running if each.process.sentinel in over or each.ends <= now]:
            late = each.process.sentinel not in over
            self._running.remove(each)
            _end(each)
            yield each.key, Result(_TOO_LONG if late else _failed(each), now - each.begun)


def result_of(trial: Trial) -> Result:
    """The result of one trial alone."""
    with Runs(1) as runs:
        runs.start(None, trial)
        return next(result for _, result in runs.ended())


def _end(run: _Running) -> None:
    """The process and what is left of its group."""
    assert run.process.pid is not None
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.join()


def _failed(run: _Running) -> str:
    if run.failure.exists():
        return run.failure.read_text(encoding="utf-8")
    return "" if run.process.exitcode == 0 else f"ended with {run.process.exitcode}"


def _run(trial: Trial, source: Path, failure: Path) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (COMPUTING, COMPUTING))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    plugins: list[object] = [Failure(failure)]
    if trial.tree is not None:
        name_mutant(source, trial.file)
        import_mutant()
        if trial.seen is not None:
            plugins.append(Nearest(trial.seen, f"{trial.file}:{trial.function}"))
    if trial.recording is not None:
        plugins.append(Recorder(trial.recording))
    if not trial.tests:
        os._exit(0)
    settings.register_profile(
        _PROFILE,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", OF_MAKE_TEST, f"--hypothesis-profile={_PROFILE}"]
    if trial.services:
        options.append(f"--join={trial.services}")
    os._exit(pytest.main([*options, *trial.tests], plugins=plugins))
