"""Ids are types: an epoch is never confused with an offset, nor a job's name with a path.

Rule: every name that ends up in a path, a transactional id or a header passes through ``ensure_name``.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

from kafka_eos.core.errors import ConfigError

_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
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


@dataclass(frozen=True, order=True, slots=True)
class Epoch:
    """The number of a checkpoint. It grows by at least one, and is never reused within a job."""

    n: int

    def next(self) -> Epoch:
        return Epoch(self.n + 1)

    def __str__(self) -> str:
        return str(self.n)


@dataclass(frozen=True, order=True, slots=True)
class Term:
    """A fencing token: the number of the attempt that owns the job. Every recovery takes a new one."""

    n: int

    def next(self) -> Term:
        return Term(self.n + 1)

    def __str__(self) -> str:
        return str(self.n)


@dataclass(frozen=True, order=True, slots=True)
class EpochId:
    """A checkpoint attempt: ``epoch`` of ``term``. Unique among all attempts of a job."""

    epoch: Epoch
    term: Term

    def __str__(self) -> str:
        return f"{self.epoch}/{self.term}"


@dataclass(frozen=True, order=True, slots=True)
class JobIdentity:
    """The incarnation of a job: 12 random hex digits, created once for each job directory.

    Two jobs of one name, started in two directories, are two incarnations: neither touches the output of the other.
    """

    text: str

    def __post_init__(self) -> None:
        if not _IDENTITY.fullmatch(self.text):
            raise ConfigError(f"{self.text!r} is not the identity of a job: it is 12 hex digits, in lower case")

    @classmethod
    def new(cls) -> JobIdentity:
        return cls(secrets.token_hex(6))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class AppRef:
    """The definition of a pipeline: a Python file, and the pipeline's variable or name if it holds several."""

    path: Path
    pipeline: str | None = None

    @classmethod
    def parse(cls, text: str) -> AppRef:
        """Read ``APP.py`` or ``APP.py:pipeline``."""
        path, _, name = text.partition(":")
        return cls(Path(path).resolve(), name or None)

    def __str__(self) -> str:
        return f"{self.path}:{self.pipeline}" if self.pipeline else str(self.path)
