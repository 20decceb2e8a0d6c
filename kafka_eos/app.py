"""The user's pipeline file, as every process of a job loads it.

Rule: code travels as a path and a name. Each process imports the file itself; no function is ever pickled.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kafka_eos.dsl import Pipeline, find_pipeline
from kafka_eos.errors import ConfigError, KafkaEosError, PlanError
from kafka_eos.ids import AppRef

_numbers = itertools.count(1)
"""Each load is a module of its own name: pipelines of a file loaded before are not this file's."""


def load(ref: AppRef) -> Pipeline:
    """Import the file and find its pipeline. Raises ConfigError or PlanError with what to do about it."""
    if not ref.path.is_file():
        raise ConfigError(f"there is no file {ref.path}; give the path of the Python file that defines the pipeline")
    return find_pipeline(_import(ref.path), ref.pipeline)


def _import(path: Path) -> ModuleType:
    name = f"kafka_eos_app_{next(_numbers)}"
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
    """Which line of the user's files failed, and how: the innermost one beside or below ``path``."""
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
