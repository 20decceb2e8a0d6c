"""What flows between operators: batches of rows in columns, and where each row came from.

Rule: an operator never loses the origin of a row. ``rows[i]`` says which row of ``origin`` made
``values[i]``; one origin row may make none, one or many values, and values keep the order of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class RawRecord:
    """An input record as it arrived, before decoding."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the Unix epoch; -1 if the record has none."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that could not be processed, on its way to a dead letter sink."""

    raw: RawRecord
    operator: str
    """Name of the operator that refused it."""
    error_type: str
    message: str


class Origin(Protocol):
    """The rows of one read, kept as columns for as long as batches made from them live."""

    @property
    def source(self) -> str:
        """Name of the source operator."""

    @property
    def topic(self) -> str:
        """Topic (or its counterpart) of every row."""

    @property
    def partitions(self) -> Sequence[int]: ...

    @property
    def offsets(self) -> Sequence[int]: ...

    def timestamps(self) -> Sequence[int]:
        """Milliseconds since the Unix epoch, one a row. May be computed on the first call."""

    def raw(self, row: int) -> RawRecord:
        """The undecoded record of a row, for error messages and dead letters."""


@dataclass(slots=True)
class Batch(Generic[T]):
    """Rows in columns. All columns that are not None have the same length.

    ``rows``      index into ``origin`` for each value, ascending
    ``keys``      set after ``key_by``
    ``lane``      number of the path from the source; two paths that meet in a union differ
    ``updates``   set by keyed operators: how many outputs this key has had, this one included
    ``branch``    set by exchanges: which of several outputs of its row each value was; see ``provenance``
    """

    values: list[T]
    rows: Sequence[int]
    origin: Origin
    keys: list[Any] | None = None
    lane: int = 0
    updates: list[int] | None = None
    branch: list[str] | None = None

    def __len__(self) -> int:
        return len(self.values)
