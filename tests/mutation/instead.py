"""Imports a mutant in place of a file of the library: in this process, and in those that it starts.

    MUTANT_SOURCE   the source of the mutant, in a file
    MUTANT_MODULE   the module that it takes the place of

Rule: no source is touched.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.mutation.rounds import MADE_KNOWN

SOURCE, MODULE = "MUTANT_SOURCE", "MUTANT_MODULE"
ROOT = Path(__file__).parents[2]
_SITE = Path(__file__).parent / "site"


def name_mutant(source: Path, file: str) -> None:
    """Let this process and its children import ``source`` in place of ``file``: see ``import_mutant``."""
    os.environ[SOURCE], os.environ[MODULE] = str(source), module_of(file)
    search = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), str(ROOT), search]))


def import_mutant() -> None:
    """From now on the module is imported from the mutant's source."""
    source = Path(os.environ[SOURCE]).read_text(encoding="utf-8")
    sys.meta_path.insert(0, _Finder(os.environ[MODULE], source))


def module_of(file: str) -> str:
    """Under which name a file is imported: some folders of the package lie beside it."""
    parts = Path(file).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts if parts[0] == "kafka_eos" else ("kafka_eos", *parts))


class _Finder(MetaPathFinder):
    """Finds the mutant where the module is looked for."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._source)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._code = compile(ast.parse(source), path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(MADE_KNOWN)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        return self._code
