"""The user's pipeline file, as every process of a job loads it.

Rule: code travels as a path and a name. Each process imports the file itself; no function is ever pickled.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kafka_eos.dsl import Pipeline, find_pipeline
from kafka_eos.errors import ConfigError
from kafka_eos.ids import AppRef

_MODULE = "kafka_eos_app"


def load(ref: AppRef) -> Pipeline:
    """Import the file and find its pipeline. Raises ConfigError or PlanError with what to do about it."""
    if not ref.path.is_file():
        raise ConfigError(f"there is no file {ref.path}; give the path of the Python file that defines the pipeline")
    return find_pipeline(_import(ref.path), ref.pipeline)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module
