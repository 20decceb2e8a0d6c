"""Compiled sources of the library, for the processes that tests start.

Python keeps what it compiles, unless PYTHONDONTWRITEBYTECODE is set, as it is in many images: then every process
compiles all that it imports, and to start a job takes more than twice as long. Rule: only sources of the repository
are kept. An app that a test writes may be written again within the same second, and what was compiled would pass for
its code.
"""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SOURCES = ("kafka_eos", "connectors")
"""The link in one to the other is not followed."""


def compile_library() -> None:
    """Compile what has changed since it was compiled. A directory that cannot be written stays as it is."""
    for name in _SOURCES:
        compileall.compile_dir(_ROOT / name, quiet=2)


class Kept:
    """While it lasts, what this process imports is kept: the modules of tests, with their assertions rewritten."""

    def __init__(self) -> None:
        self._before = sys.dont_write_bytecode
        sys.dont_write_bytecode = False

    def end(self) -> None:
        sys.dont_write_bytecode = self._before
