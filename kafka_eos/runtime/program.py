"""The user's pipeline file, as every process of a job loads it.

Rule: code travels as a path and a name. Each process imports the file itself; no function is ever pickled. All
processes of a job run the same code: a new one compares its ``CodeFingerprint`` with that of the process that began the
job.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from kafka_eos.core.errors import ConfigError, Fatal, KafkaEosError, PlanError
from kafka_eos.core.ids import AppRef
from kafka_eos.core.package import PACKAGE
from kafka_eos.plan import Plan


class Program(Protocol):
    """The object that a user's file defines, for the engines and the commands: a ``Pipeline``."""

    name: str
    code_settings: Mapping[str, object]

    @property
    def app(self) -> AppRef:
        """Return the reference by which other processes of the job load it."""

    def plan(self) -> Plan:
        """Return the plan. Raises PlanError."""


_made: WeakKeyDictionary[Program, str] = WeakKeyDictionary()
"""All programs of this process, and the name of the module that created each."""

_numbers = itertools.count(1)
"""Each load is a module with its own name: pipelines of a file loaded before do not belong to this file."""


_PREFIX = "kafka_eos_app_"


def register(program: Program, module: str) -> None:
    """Register ``program``, which ``module`` creates, for ``find``, as long as it is referenced."""
    _made[program] = module


def find_defining_file(program: Program, made_in: str) -> Path:
    """Return the file from which another process can load the program.

    That is the file with a variable for it, which a function of another file may have created; else ``made_in``.
    """
    files = [module for name, module in sys.modules.items() if name == "__main__" or name.startswith(_PREFIX)]
    holders = (module.__file__ for module in files if any(value is program for value in vars(module).values()))
    return Path(next(filter(None, holders), made_in)).absolute()


def load_program(ref: AppRef) -> Program:
    """Import the user's file and return its pipeline. Raises ConfigError or PlanError with the remedy."""
    if not ref.path.is_file():
        raise ConfigError(f"file {ref.path} does not exist; give the path of the Python file that defines the pipeline")
    return find(_import(ref.path), ref.pipeline)


def find(module: ModuleType, name: str | None = None) -> Program:
    """Return the pipeline of ``module``, by pipeline or variable name.

    Raises PlanError if there is none, or several.
    """
    known = {id(program) for program in _made}
    variables: dict[str, Program] = {key: value for key, value in vars(module).items() if id(value) in known}
    made = [program for program, maker in _made.items() if maker == module.__name__]
    found = list({id(program): program for program in (*variables.values(), *made)}.values())
    names = ", ".join(sorted(program.name for program in found))
    if not found:
        raise PlanError(f'{module.__file__} defines no pipeline; write pipeline = Pipeline("name") at its top level')
    if name is None:
        if len(found) > 1:
            raise PlanError(f"{module.__file__} defines several pipelines ({names}); choose one with FILE.py:NAME")
        return found[0]
    if name in variables:
        return variables[name]
    chosen = [program for program in found if program.name == name]
    if len(chosen) != 1:
        problem = "no pipeline" if not chosen else "several pipelines"
        raise PlanError(f"{module.__file__} makes {problem} named {name!r}; it makes {names}")
    return chosen[0]


def _import(path: Path) -> ModuleType:
    name = f"{_PREFIX}{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except KafkaEosError:
        raise
    except Exception as error:
        raise PlanError(_cannot_import(path, error)) from error
    return module


def _cannot_import(path: Path, error: Exception) -> str:
    """Describe which line of the user's files failed, and how: the innermost one in the directory of ``path`` or
    below."""
    what, file, line, text = str(error), str(path), None, None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_of(path.parent, f.filename)]
    if isinstance(error, SyntaxError):
        what, file, line, text = error.msg, error.filename or file, error.lineno, error.text
    elif frames:
        file, line, text = frames[-1].filename, frames[-1].lineno, frames[-1].line
    place = f"{file}, line {line}" if line else file
    quoted = f"\n    {text.strip()}" if text else ""
    return f"{path} cannot be imported: {type(error).__name__}: {what}\n  {place}{quoted}"


def _is_of(directory: Path, file: str) -> bool:
    return Path(file).is_relative_to(directory) and "site-packages" not in Path(file).parts


class CodeFingerprint(msgspec.Struct, frozen=True):
    """Fingerprint of the user code a process has loaded: plan hash and file hashes."""

    plan: str
    """The plan's fingerprint, which depends on the operators and their order."""
    files: dict[str, str]
    """SHA-256 of the app's file and of files that were loaded from its directory or below, by relative path."""

    @classmethod
    def compute(cls, app: Path, plan: Plan) -> CodeFingerprint:
        """Compute the fingerprint of what this process has loaded."""
        home = app.absolute().parent
        loaded = (os.path.abspath(file) for module in [*sys.modules.values()] if (file := _file(module)))
        # a few of hundreds: a quick check keeps starts fast
        near = [Path(file) for file in loaded if file.startswith(str(home))]
        own = {app.absolute(), *(file for file in near if _is_of(home, str(file)) and PACKAGE not in file.parents)}
        return cls(plan.fingerprint, {os.path.relpath(file, home): _digest(file) for file in sorted(own)})

    def ensure_equal(self, given: CodeFingerprint, app: Path) -> None:
        """Raise Fatal if this process has loaded other code than the process that began the job.

        Files that only one of them has loaded do not count: a script imports more than its workers, for example.
        """
        both = self.files.keys() & given.files.keys()
        if changed := sorted(file for file in both if self.files[file] != given.files[file]):
            raise Fatal(
                f"{', '.join(changed)} in {app.absolute().parent} changed since the job was started: a new process "
                "would run other code than the rest of the job. Nothing is lost. Start the job again: then all of it "
                "runs the new code, from the last checkpoint. Stop a job before you change its code: kafka-eos stop"
            )
        if self.plan != given.plan:
            raise Fatal(
                f"{app} makes another pipeline in each process of the job: which operators there are, or in which "
                "order, depends on something that differs, such as the order of a set, the time, or a file that has "
                "changed since the job was started. Write lists or sorted(…), and start the job again. Nothing is lost"
            )


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _digest(file: Path) -> str:
    """Return the digest of a file; empty if it cannot be read any more."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
