"""The user's pipeline file, as every process of a job loads it.

Rule: code travels as a path and a name. Each process imports the file itself; no function is ever pickled. All
processes of a job run the same code: a new one compares its ``CodeFingerprint`` with that of the process that began the
job.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Protocol, TypeGuard
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

_builders: WeakKeyDictionary[Program, AppRef] = WeakKeyDictionary()
"""The function that created a program of this process, where there is one."""

_numbers = itertools.count(1)
"""Each load is a module with its own name: pipelines of a file loaded before do not belong to this file."""


_PREFIX = "kafka_eos_app_"


def register(program: Program, frame: FrameType) -> None:
    """Register ``program``, which is created in ``frame``, for ``find``, as long as it is referenced."""
    _made[program] = str(frame.f_globals.get("__name__", ""))
    if (builder := _find_builder(frame)) is not None:
        _builders[program] = builder


def find_reference(program: Program, made_in: str) -> AppRef:
    """Return the reference by which another process can load the program.

    That is the file with a variable for it, which a function of another file may have created; else the function that
    has returned it; else its name in ``made_in``.
    """
    apps = [module for name, module in sys.modules.items() if name == "__main__" or _PREFIX in name]
    holders = (module.__file__ for module in apps if any(value is program for value in vars(module).values()))
    file = next(filter(None, holders), None)
    builder = _builders.get(program)
    if file is None and builder is not None and not _is_running(builder):
        return builder
    return AppRef(Path(made_in if file is None else file).absolute(), program.name)


def _find_builder(frame: FrameType | None) -> AppRef | None:
    """Return the nearest function on the stack that another process can find and call: without parameters, and at the
    top level of its file."""
    while frame is not None and frame.f_code.co_name != "<module>":
        code = frame.f_code
        function = frame.f_globals.get(code.co_name)
        if _is_builder(function) and inspect.unwrap(function).__code__ is code:
            return AppRef(Path(code.co_filename).absolute(), code.co_name)
        frame = frame.f_back
    return None


def _is_running(builder: AppRef) -> bool:
    """Return whether the function has not returned yet: one that runs its pipeline itself cannot be called for it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == builder.pipeline and Path(code.co_filename).absolute() == builder.path:
            return True
        frame = frame.f_back
    return False


def _is_builder(value: object) -> TypeGuard[FunctionType]:
    """Return whether it is a function that can be called without arguments."""
    if not isinstance(value, FunctionType):
        return False
    parameters = inspect.signature(value).parameters.values()
    flexible = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in flexible for each in parameters)


def load_program(ref: AppRef) -> Program:
    """Import the user's file and return its pipeline. Raises ConfigError or PlanError with the remedy."""
    if not ref.path.is_file():
        raise ConfigError(
            f"file {ref.path} does not exist; give the Python file that defines the pipeline, FILE.py, or a function "
            "that returns it, FILE.py:FUNCTION or MODULE:FUNCTION (a module of the current directory, or of packages "
            "with __init__.py). Code of a notebook must be in a file, which all processes of the job load"
        )
    return find(_import(ref.path), ref.pipeline)


def find(module: ModuleType, name: str | None = None) -> Program:
    """Return the pipeline of ``module``: by variable, by its name, or by the name of a function that returns it.

    Raises PlanError if there is none, or several.
    """
    known = {id(program) for program in _made}
    variables: dict[str, Program] = {key: value for key, value in vars(module).items() if id(value) in known}
    made = [program for program, maker in _made.items() if maker == module.__name__]
    found = list({id(program): program for program in (*variables.values(), *made)}.values())
    names = ", ".join(sorted(program.name for program in found))
    function = None if name is None or name in variables else vars(module).get(name)
    if isinstance(function, FunctionType) and all(program.name != name for program in found):
        return _build(module, function)
    if not found:
        raise PlanError(
            f'{module.__file__} defines no pipeline; write pipeline = Pipeline("name") at its top level, or name the '
            "function that returns it: FILE.py:FUNCTION"
        )
    if name is None:
        if len(found) > 1:
            raise PlanError(f"{module.__file__} defines several pipelines ({names}); choose one with FILE.py:NAME")
        return found[0]
    if name in variables:
        return variables[name]
    chosen = [program for program in found if program.name == name]
    if len(chosen) != 1:
        problem = "no pipeline" if not chosen else "several pipelines"
        raise PlanError(f"{module.__file__} defines {problem} named {name!r}; it defines {names}")
    return chosen[0]


def _build(module: ModuleType, function: FunctionType) -> Program:
    """Return the pipeline that a function of ``module`` returns."""
    call = f"{function.__name__}() of {module.__file__}"
    if not _is_builder(function):
        raise PlanError(f"{call} is called without arguments: give each of its parameters a default")
    try:
        program = function()
    except KafkaEosError:
        raise
    except Exception as error:
        raise PlanError(_describe_failure(f"{call} failed", Path(str(module.__file__)).parent, error)) from error
    if not any(program is each for each in _made):
        raise PlanError(f"{call} returns {program!r:.80}, not a Pipeline")
    made: Program = program
    return made


def _find_package(path: Path) -> tuple[Path, str]:
    """Return the package of a file, and the directory that has the package: in it, or in its parents, is no
    ``__init__.py``.

    The name is empty for a file in no package.
    """
    home, names = path.parent, list[str]()
    while home.name.isidentifier() and (home / "__init__.py").is_file():
        home, names = home.parent, [home.name, *names]
    return home, ".".join(names)


def _code_directory(app: Path) -> Path:
    """Return the directory whose files are the code of the pipeline: that of its file, or of the whole package."""
    home, package = _find_package(app.absolute())
    return home / package.partition(".")[0]


def _import(path: Path) -> ModuleType:
    home, package = _find_package(path)
    name = f"{package}.{_PREFIX}{next(_numbers)}".lstrip(".")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    for directory in dict.fromkeys((home, path.parent)):
        if str(directory) not in sys.path:
            sys.path.insert(0, str(directory))
    try:
        if package:
            importlib.import_module(package)
        spec.loader.exec_module(module)
    except KafkaEosError:
        raise
    except Exception as error:
        raise PlanError(_describe_failure(f"{path} cannot be imported", home, error)) from error
    return module


def _describe_failure(failed: str, home: Path, error: Exception) -> str:
    """Describe which line of the user's files failed, and how: the innermost one in ``home`` or below."""
    what, file, line, text = str(error), "", None, None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_of(home, f.filename)]
    if isinstance(error, SyntaxError):
        what, file, line, text = error.msg, error.filename or file, error.lineno, error.text
    elif frames:
        file, line, text = frames[-1].filename, frames[-1].lineno, frames[-1].line
    place = f"\n  {file}, line {line}" if line else ""
    quoted = f"\n    {text.strip()}" if text else ""
    return f"{failed}: {type(error).__name__}: {what}{place}{quoted}"


def _is_of(directory: Path, file: str) -> bool:
    return Path(file).is_relative_to(directory) and "site-packages" not in Path(file).parts


class CodeFingerprint(msgspec.Struct, frozen=True):
    """Fingerprint of the user code a process has loaded: plan hash and file hashes."""

    plan: str
    """The plan's fingerprint, which depends on the operators and their order."""
    files: dict[str, str]
    """SHA-256 of the app's file and of files that were loaded from its directory or below, by relative path.

    For a file in a package it is the directory of the whole package.
    """

    @classmethod
    def compute(cls, app: Path, plan: Plan) -> CodeFingerprint:
        """Compute the fingerprint of what this process has loaded."""
        home = _code_directory(app)
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
                f"{', '.join(changed)} in {_code_directory(app)} changed since the job was started: a new process "
                "would run other code than the rest of the job. Nothing is lost. Start the job again: then all of it "
                "runs the new code, from the last checkpoint. Stop a job before you change its code: kafka-eos stop"
            )
        if self.plan != given.plan:
            raise Fatal(
                f"{app} builds another pipeline in each process of the job: its operators or their order "
                "depend on something that differs, such as the order of a set, the time, or a file that has "
                "changed since the job was started. Write lists or sorted(…), and start the job again. Nothing is lost"
            )


def list_code_files(app: Path, code: CodeFingerprint) -> dict[str, Path]:
    """Return the files that another machine needs to load ``app``, by their paths there, and the app's file first.

    They are the files of ``code``, and whole packages of which files were loaded.
    """
    home, package = _find_package(app.absolute())
    directory = _code_directory(app)
    files = {file for name in code.files if (file := directory / name).is_file()}
    tops = {directory} if package else {directory / Path(name).parts[0] for name in code.files}
    for top in tops:
        if (top / "__init__.py").is_file():
            files |= {file for file in top.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    ordered = [app.absolute(), *sorted(files - {app.absolute()})]
    return {str(file.relative_to(home)): file for file in ordered}


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _digest(file: Path) -> str:
    """Return the digest of a file; empty if it cannot be read any more."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
