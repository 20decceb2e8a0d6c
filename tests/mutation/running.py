"""Runs the tests of a file against one mutant of it, in a process of its own.

Rule: no source is touched. A forked process imports the mutant in place of the file, so whatever it breaks or never
ends goes with it. It finds examples of hypothesis as they are found every time, and makes none of them small.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

MEMORY, COMPUTING = 4 << 30, 900
"""Bytes and seconds of computing that a mutant may take: some would take all there are, also when nobody waits."""
_PROFILE = "mutants"
_FORK = multiprocessing.get_context("fork")


for _each in ("confluent_kafka.admin", "hypothesis.strategies", "_pytest.assertion.rewrite"):
    importlib.import_module(_each)  # once, not in each process


def passes(file: str, tree: ast.Module, tests: Sequence[str], seconds: float | None) -> bool:
    """Do all tests pass with ``tree`` in place of ``file``? What takes longer than ``seconds`` does not."""
    process = _FORK.Process(target=_run, args=(module_of(file), tree, tests))
    process.start()
    try:
        process.join(seconds)
    finally:
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
    return process.exitcode == 0


def module_of(file: str) -> str:
    """Under which name a file is imported: some folders of the package lie beside it."""
    parts = Path(file).with_suffix("").parts
    return ".".join(parts if parts[0] == "kafka_eos" else ("kafka_eos", *parts))


def _run(module: str, tree: ast.Module, tests: Sequence[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (COMPUTING, COMPUTING))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.meta_path.insert(0, _Instead(module, tree))
    settings.register_profile(
        _PROFILE,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--hypothesis-profile={_PROFILE}"]
    os._exit(pytest.main([*options, *tests]))


class _Instead(MetaPathFinder):
    """Finds the mutant where the module is looked for."""

    def __init__(self, module: str, tree: ast.Module) -> None:
        self._module, self._tree = module, tree

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._tree)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._code = compile(tree, path, "exec")

    def get_code(self, fullname: str) -> CodeType:
        return self._code
