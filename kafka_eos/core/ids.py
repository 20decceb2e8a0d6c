"""Ids are types: an epoch is never confused with an offset, nor a job's name with a path.

Rule: every name that ends up in a path, a transactional id or a header passes through ``ensure_name``.
"""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import NewType

from msgspec import Struct

from kafka_eos.core.errors import ConfigError

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}"
"""A pattern of the names that ``ensure_name`` accepts, for Python and for Java."""
_TOKEN = re.compile(NAME)
_IDENTITY = re.compile(r"[0-9a-f]{12}")

SplitId = NewType("SplitId", str)
"""One independently readable part of a source, e.g. ``orders/3`` for a Kafka partition."""

KeyGroup = NewType("KeyGroup", int)
"""A bucket of keys, the unit in which keyed state is owned and moved. In ``range(max_key_groups)``."""


def ensure_name(text: object, what: str) -> str:
    """Return the text if it is a safe name, else raise ConfigError."""
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise ConfigError(
            f"{what} {text!r} is not usable as a name: use 1 to 80 letters, digits, '_' or '-', "
            "starting with a letter or a digit."
        )
    return text


class Epoch(Struct, frozen=True, order=True):
    """The number of a checkpoint. It grows by at least one, and is never reused within a job."""

    n: int

    def next(self) -> Epoch:
        return Epoch(self.n + 1)

    def __str__(self) -> str:
        return str(self.n)


class Term(Struct, frozen=True, order=True):
    """A fencing token: the number of the attempt that owns the job. Every recovery takes a new one."""

    n: int

    def next(self) -> Term:
        return Term(self.n + 1)

    def __str__(self) -> str:
        return str(self.n)


class EpochId(Struct, frozen=True, order=True):
    """A checkpoint attempt: ``epoch`` of ``term``. Unique among all attempts of a job."""

    epoch: Epoch
    term: Term

    def __str__(self) -> str:
        return f"{self.epoch}/{self.term}"


class JobIdentity(Struct, frozen=True, order=True):
    """The incarnation of a job: 12 random hex digits, created once for each job directory.

    Two jobs of one name, started in two directories, are two incarnations: neither touches the output of the other.
    """

    text: str

    def __post_init__(self) -> None:
        if not _IDENTITY.fullmatch(self.text):
            raise ConfigError(f"{self.text!r} is not a job identity: use 12 hex digits in lower case")

    @classmethod
    def new(cls) -> JobIdentity:
        return cls(secrets.token_hex(6))

    def __str__(self) -> str:
        return self.text


def find_module_file(name: str) -> Path | None:
    """Return the file of a module, without importing it; None if there is none.

    It is looked for in the current directory first, then where Python finds modules. Each directory of a dotted name
    must be a package, with an ``__init__.py``.
    """
    *packages, last = name.split(".")
    if name.endswith(".py") or not all(map(str.isidentifier, (*packages, last))):
        return None
    for base in ("", *sys.path):
        home, found = Path(base), True
        for package in packages:
            home /= package
            found = found and (home / "__init__.py").is_file()
        for file in (home / f"{last}.py", home / last / "__init__.py"):
            if found and file.is_file():
                return file
    return None


class AppRef(Struct, frozen=True):
    """The definition of a pipeline: a Python file, and what defines the pipeline there if it holds several.

    That is a variable, the name of a pipeline, or a function that returns one.
    """

    path: Path
    pipeline: str | None = None

    @classmethod
    def parse(cls, text: str) -> AppRef:
        """Read ``APP.py``, ``APP.py:pipeline`` or ``MODULE:pipeline``."""
        path, _, name = text.partition(":")
        return cls((find_module_file(path) or Path(path)).resolve(), name or None)

    def __str__(self) -> str:
        return f"{self.path}:{self.pipeline}" if self.pipeline else str(self.path)
